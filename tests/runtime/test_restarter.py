"""A keeper starts its child again, with pauses, until it is stopped."""

from __future__ import annotations

import signal
import threading

import pytest

from edl.runtime.errors import ProcessFailed
from edl.runtime.supervise import Command, Process, Restarter
from edl.tests.runtime.programs import DOCILE, WAIT_S, python
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system

RESTARTER = "edl.runtime.supervise.restarter"
FAILS = "raise SystemExit(3)"
Ended = list[tuple[Process, int]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{RESTARTER}.BASE_S", 0.001)
    monkeypatch.setattr(f"{RESTARTER}.CAP_S", 0.01)


def test_a_child_that_is_killed_is_replaced_and_both_ends_are_reported() -> None:
    started, ended = list[Process](), Ended()
    keeper = Restarter(
        python(DOCILE), on_start=started.append, on_exit=lambda *end: ended.append(end)
    )
    first = keeper.start()
    first.expect("ready", WAIT_S)
    first.kill()
    wait_until(lambda: len(started) == 2)
    second = keeper.process
    assert second is started[1]
    assert second.pid != first.pid
    assert second.alive
    assert ended == [(first, -signal.SIGKILL)]
    assert keeper.restarts == 1
    assert keeper.stop() == -signal.SIGTERM
    assert not second.alive
    assert len(ended) == 1, "an end that `stop` brought about is not reported"


def test_stop_ends_the_restarts_for_good() -> None:
    ended = Ended()
    keeper = Restarter(python(FAILS), on_exit=lambda *end: ended.append(end))
    keeper.start()
    wait_until(lambda: keeper.restarts >= 3)
    keeper.stop()
    last = keeper.process
    assert last is not None
    assert not last.alive
    assert {code for _, code in ended} == {3}
    keeper.stop()
    with pytest.raises(ProcessFailed, match="does not start again"):
        keeper.start()
    assert keeper.process is last


def test_a_child_that_stayed_long_enough_begins_the_count_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{RESTARTER}.HEALTHY_S", 0.0)
    started: list[Process] = []
    keeper = Restarter(python(FAILS), on_start=started.append)
    keeper.start()
    wait_until(lambda: len(started) >= 4)
    assert keeper.restarts <= 1
    keeper.stop()


def test_stop_does_not_wait_for_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{RESTARTER}.BASE_S", 3600.0)
    monkeypatch.setattr(f"{RESTARTER}.CAP_S", 3600.0)
    keeper = Restarter(python(FAILS))
    keeper.start()
    wait_until(lambda: keeper.restarts == 1)
    keeper.stop()
    with pytest.raises(ProcessFailed, match="no-such-program"):
        Restarter(Command("x", ("no-such-program",))).start()


def test_the_first_child_does_not_outlive_a_callback_that_fails() -> None:
    children: list[Process] = []

    def fail(process: Process) -> None:
        children.append(process)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Restarter(python(DOCILE), on_start=fail).start()
    assert not children[0].alive


def test_callbacks_that_fail_later_do_not_end_the_keeping() -> None:
    children: list[Process] = []

    def on_start(process: Process) -> None:
        children.append(process)
        if len(children) == 2:
            raise ValueError("second")

    def on_exit(process: Process, code: int) -> None:
        raise ValueError("exit")

    keeper = Restarter(python(DOCILE), on_start=on_start, on_exit=on_exit)
    keeper.start().kill()
    wait_until(lambda: len(children) == 3)
    assert children[1].wait(WAIT_S) == -signal.SIGKILL
    assert children[2].alive
    keeper.stop()


def test_a_keeper_may_be_stopped_by_its_own_callback() -> None:
    def give_up(process: Process, code: int) -> None:
        keeper.stop()

    keeper = Restarter(python(FAILS), on_exit=give_up)
    process = keeper.start()
    assert process.wait(WAIT_S) == 3
    wait_until(lambda: "edl-restarter" not in {thread.name for thread in threading.enumerate()})
    assert keeper.process is process
