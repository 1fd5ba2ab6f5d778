"""Stop flags, signal handlers and periodic work."""

from __future__ import annotations

import os
import resource
import signal
import threading
from types import SimpleNamespace

import pytest

from edl.runtime import lifecycle
from edl.runtime.lifecycle import Periodic, Stop, stop_on_signals
from edl.tests.runtime.programs import WAIT_S
from edl.tests.waiting import wait_until


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


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_check_raises_what_the_signal_means(number: int | None) -> None:
    stop = Stop()
    stop.check()
    stop.request(number)
    expected = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(expected) as raised:
        stop.check()
    assert raised.value.args == (() if number == signal.SIGINT else (143,))


def test_a_signal_sets_the_flag_and_the_former_handlers_come_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert signal.getsignal(signal.SIGTERM) is not former
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(WAIT_S)
        assert stop.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is former


def test_a_late_sigterm_is_no_failure_of_a_process_that_ends_anyway() -> None:
    former = signal.getsignal(signal.SIGTERM)
    try:
        with stop_on_signals(ignore_sigterm_after=True) as stop:
            stop.request()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, former)


def interrupted(error: Exception | None = None) -> None:
    """Ctrl-C comes, and perhaps an error after it."""
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(WAIT_S)
        if error:
            raise error


@pytest.mark.parametrize("error", [None, RuntimeError("drain failed")])
def test_ctrl_c_is_raised_again_at_the_orderly_end(error: Exception | None) -> None:
    with pytest.raises(type(error) if error else KeyboardInterrupt):
        interrupted(error)


def test_an_ignored_ctrl_c_is_an_exit_code() -> None:
    """A shell without job control has what it starts by `&` ignore SIGINT; others may send it."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            interrupted()
    finally:
        signal.signal(signal.SIGINT, former)
    assert ended.value.code == 128 + signal.SIGINT


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


def test_periodic_work_goes_on_after_an_error_and_may_stop_itself() -> None:
    calls: list[None] = []

    def action() -> None:
        calls.append(None)
        if len(calls) == 1:
            raise ValueError("once")
        periodic.stop()

    periodic = Periodic("edl-test", 0.001, action)
    periodic.start()
    wait_until(lambda: not runs("edl-test"))
    assert len(calls) == 2
    for interval_s in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="interval_s must be positive"):
            Periodic("edl-test", interval_s, action)


def test_the_beat_does_not_drift_and_missed_beats_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, calls = 0.0, list[float]()

    class VirtualEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            now += timeout or 0.0
            return len(calls) == 5

    def action() -> None:
        nonlocal now
        calls.append(now)
        now += 12.0 if len(calls) == 2 else 2.0  # the second call overruns two beats

    virtual = SimpleNamespace(Event=VirtualEvent, Thread=threading.Thread)
    monkeypatch.setattr(lifecycle, "threading", virtual)
    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(monotonic=lambda: now))
    periodic = Periodic("edl-test", 5.0, action)
    periodic.start()
    wait_until(lambda: not runs("edl-test"))
    assert calls == [5.0, 10.0, 25.0, 30.0, 35.0]


def runs(name: str) -> bool:
    return name in {thread.name for thread in threading.enumerate()}


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


def test_a_condition_is_awaited_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, checks = [0.0], list[float]()
    clock = SimpleNamespace(
        monotonic=lambda: now_s[0], sleep=lambda pause_s: now_s.append(now_s.pop() + pause_s)
    )
    monkeypatch.setattr(lifecycle, "time", clock)
    assert lifecycle.wait_until(lambda: now_s[0] >= 2, 5.0, 0.5, lambda: checks.append(now_s[0]))
    assert (now_s, checks) == ([2.0], [0.0, 0.5, 1.0, 1.5])
    assert not lifecycle.wait_until(lambda: False, 5.0, 0.5)
    assert now_s == [7.5]
    with pytest.raises(KeyboardInterrupt):
        lifecycle.wait_until(lambda: False, 5.0, 0.5, lambda: signal.raise_signal(signal.SIGINT))


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65536),
        (1 << 20, resource.RLIM_INFINITY, 1 << 20),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_limit_of_descriptors_is_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int
) -> None:
    limits = {resource.RLIMIT_NOFILE: (soft, hard)}
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", limits.__getitem__)
        patch.setattr(resource, "setrlimit", limits.__setitem__)
        lifecycle.raise_descriptor_limit()
    assert limits == {resource.RLIMIT_NOFILE: (expected, hard)}
