"""How programs of ours begin and end: signals, periodic work, log lines."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from edl.lifecycle import Periodic, Stop, stop_on_signals
from edl.supervise import start

from .programs import WAIT_S, python, wait_for

ROOT = Path(__file__).parents[2]


def test_a_stop_wakes_everyone_who_waits_and_stays() -> None:
    stop = Stop()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(stop.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not stop.wait(0.01)
    assert not stop.wait(-1.0)
    stop.request()
    for thread in threads:
        thread.join(WAIT_S)
    assert woken == [True] * 3
    assert stop.wait()
    assert stop.requested
    assert stop.signal is None


def test_a_signal_sets_the_flag_and_the_former_handlers_come_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert signal.getsignal(signal.SIGTERM) is not former
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(WAIT_S)
        assert stop.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is former


def test_ctrl_c_is_raised_again_at_the_orderly_end() -> None:
    ended = False

    def body() -> None:
        nonlocal ended
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(WAIT_S)
            ended = True

    with pytest.raises(KeyboardInterrupt):
        body()
    assert ended


def test_the_first_process_of_a_container_ends_with_the_signals_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its kernel throws away a signal that it does not handle, even one of its own.
    ignored: list[int] = []

    def body() -> None:
        with stop_on_signals(reraise=(signal.SIGTERM,)) as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(WAIT_S)
            monkeypatch.setattr(os, "getpid", lambda: 1)
            monkeypatch.setattr(signal, "raise_signal", ignored.append)

    with pytest.raises(SystemExit) as ended:
        body()
    assert ended.value.code == 128 + signal.SIGTERM
    assert ignored == [signal.SIGTERM]


def test_an_error_of_the_body_is_not_hidden_by_the_signal() -> None:
    def body() -> None:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            stop.wait(WAIT_S)
            raise RuntimeError("drain failed")

    with pytest.raises(RuntimeError, match="drain failed"):
        body()


SERVER = """
    import sys, time
    from edl.lifecycle import stop_on_signals
    with stop_on_signals() as stop:
        print("ready")
        stop.wait()
        print("draining")
        if "hang" in sys.argv:
            time.sleep(60)
    print("drained")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)])
def test_the_exit_code_says_how_a_server_ended(number: int, code: int) -> None:
    process = start(python(SERVER))
    process.expect("ready", WAIT_S)
    process.send_signal(number)
    assert process.wait(WAIT_S) == code
    assert "draining" in process.tail()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(number: int) -> None:
    process = start(python(SERVER, "hang"))
    process.expect("ready", WAIT_S)
    process.send_signal(number)
    process.expect("draining", WAIT_S)
    process.send_signal(number)
    assert process.wait(WAIT_S) == -number


def test_who_wishes_so_hears_of_the_second_signal_and_ends_by_the_third() -> None:
    hurries = SERVER.replace("stop_on_signals()", "stop_on_signals(hurries=True)").replace(
        "time.sleep(60)",
        "while not stop.urgent: time.sleep(0.01)\n            print('hurry'); time.sleep(60)",
    )
    process = start(python(hurries, "hang"))
    for line in ("ready", "draining", "hurry"):
        process.expect(line, WAIT_S)
        process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == -signal.SIGTERM


def test_periodic_work_goes_on_after_an_error() -> None:
    calls: list[float] = []

    def action() -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise ValueError("once")

    periodic = Periodic("edl-test", 0.001, action)
    periodic.start()
    wait_for(lambda: len(calls) >= 3)
    periodic.stop()
    count = len(calls)
    assert not periodic._thread.is_alive()
    assert len(calls) == count


@pytest.mark.serial
def test_the_beat_does_not_drift_and_missed_beats_are_skipped() -> None:
    calls: list[float] = []

    def action() -> None:
        calls.append(time.monotonic())
        time.sleep(0.12 if len(calls) == 2 else 0.02)  # the second call overruns two beats

    began = time.monotonic()
    periodic = Periodic("edl-test", 0.05, action)
    periodic.start()
    wait_for(lambda: len(calls) >= 8)
    periodic.stop()
    phases = [((call - began) / 0.05) % 1.0 for call in calls]
    assert sorted(min(phase, 1 - phase) for phase in phases)[len(phases) // 2] < 0.3
    assert calls[2] - calls[1] > 0.12
    assert calls[7] - calls[2] == pytest.approx(5 * 0.05, abs=0.04)


def test_periodic_work_may_stop_itself() -> None:
    periodic = Periodic("edl-test", 0.001, lambda: periodic.stop())
    periodic.start()
    wait_for(lambda: not periodic._thread.is_alive())


def test_stopping_waits_for_a_call_but_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    entered, leave = threading.Event(), threading.Event()

    def action() -> None:
        entered.set()
        leave.wait(WAIT_S)

    periodic = Periodic("edl-test", 0.001, action)
    periodic.start()
    entered.wait(WAIT_S)
    periodic.stop(timeout_s=0.05)
    assert "edl-test still runs after 0.05 s" in caplog.text
    leave.set()
    periodic.stop()


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_a_beat_needs_an_interval(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s must be positive"):
        Periodic("edl-test", interval_s, lambda: None)


def test_a_server_may_have_as_many_descriptors_as_its_system_lets_it() -> None:
    code = """
        import resource
        from edl.lifecycle import open_all_descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
        open_all_descriptors()
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    process = start(python(code))
    process.wait(WAIT_S)
    assert process.tail() == ["200 200"]


def test_log_records_take_one_line_each() -> None:
    code = """
        import logging, sys
        from edl.lifecycle import configure_logging
        configure_logging("verbose" in sys.argv)
        log = logging.getLogger("edl.x")
        log.debug("detail")
        for library in ("grpc._cython.cygrpc", "asyncio"):
            logging.getLogger(library).debug("chatter")
        try:
            raise ValueError("two" + chr(10) + "lines")
        except ValueError:
            log.exception("it %s", "failed")
    """
    process = start(python(code))
    process.wait(WAIT_S)
    (line,) = process.tail()
    assert line.endswith("ERROR edl.x: it failed (ValueError: two | lines)")
    process = start(python(code, "verbose"))
    process.wait(WAIT_S)
    assert process.tail()[0].endswith("DEBUG edl.x: detail")
    assert not any("chatter" in line for line in process.tail())
    assert "Traceback (most recent call last):" in process.tail()
