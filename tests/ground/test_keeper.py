"""A keeper starts its child again, with pauses, until it is stopped."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable

import pytest

from edl.errors import ProcessFailed
from edl.supervise import Command, Keeper, Process
from edl.tests.ground.programs import DOCILE, WAIT_S, python
from edl.tests.waiting import wait_until

pytestmark = pytest.mark.system


class Recorder:
    def __init__(self) -> None:
        self.started: list[Process] = []
        self.ended: list[tuple[Process, int]] = []

    def on_start(self, process: Process) -> None:
        self.started.append(process)

    def on_exit(self, process: Process, code: int) -> None:
        self.ended.append((process, code))


def keeper_of(
    command: Command | Callable[[], Command], recorder: Recorder, *, healthy_s: float = 60.0
) -> Keeper:
    return Keeper(
        command,
        on_start=recorder.on_start,
        on_exit=recorder.on_exit,
        base_s=0.001,
        cap_s=0.01,
        healthy_s=healthy_s,
    )


def test_a_child_that_is_killed_is_replaced_and_both_ends_are_reported() -> None:
    recorder = Recorder()
    keeper = keeper_of(python(DOCILE), recorder)
    first = keeper.start()
    first.expect("ready", WAIT_S)
    first.kill()
    wait_until(lambda: len(recorder.started) == 2)
    second = keeper.process
    assert second is recorder.started[1]
    assert second.pid != first.pid
    assert second.alive
    assert recorder.ended == [(first, -signal.SIGKILL)]
    assert keeper.failures == 1
    assert keeper.stop() == -signal.SIGTERM
    assert not second.alive
    assert len(recorder.ended) == 1, "an end that `stop` brought about is not reported"


def test_stop_ends_the_restarts_for_good() -> None:
    recorder = Recorder()
    keeper = keeper_of(python("raise SystemExit(3)"), recorder)
    keeper.start()
    wait_until(lambda: keeper.failures >= 3)
    keeper.stop()
    count = len(recorder.started)
    assert keeper.process is not None
    assert not keeper.process.alive
    assert {code for _, code in recorder.ended} == {3}
    keeper.stop()
    assert len(recorder.started) == count
    with pytest.raises(ProcessFailed, match="does not start again"):
        keeper.start()
    assert len(recorder.started) == count


def test_a_child_that_stayed_long_enough_begins_the_count_anew() -> None:
    """A function gives a fresh command for each start."""
    numbers, recorder = itertools.count(), Recorder()
    code = "import sys; print(sys.argv[1]); raise SystemExit(3)"
    keeper = keeper_of(lambda: python(code, next(numbers)), recorder, healthy_s=0.0)
    keeper.start()
    wait_until(lambda: len(recorder.started) >= 4)
    assert keeper.failures <= 1
    keeper.stop()
    assert [process.tail() for process in recorder.started[:3]] == [["0"], ["1"], ["2"]]


def test_stop_does_not_wait_for_a_long_pause() -> None:
    keeper = Keeper(python("raise SystemExit(3)"), base_s=3600.0, cap_s=3600.0)
    keeper.start()
    wait_until(lambda: keeper.failures == 1)
    keeper.stop()
    with pytest.raises(ProcessFailed, match="no-such-program"):
        Keeper(Command("x", ("no-such-program",))).start()


def test_the_first_child_does_not_outlive_a_callback_that_fails() -> None:
    children: list[Process] = []

    def fail(process: Process) -> None:
        children.append(process)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Keeper(python(DOCILE), on_start=fail).start()
    assert not children[0].alive


def test_callbacks_that_fail_later_do_not_end_the_keeping() -> None:
    children: list[Process] = []

    def on_start(process: Process) -> None:
        children.append(process)
        if len(children) == 2:
            raise ValueError("second")

    def on_exit(process: Process, code: int) -> None:
        raise ValueError("exit")

    keeper = Keeper(python(DOCILE), on_start=on_start, on_exit=on_exit, base_s=0.001, cap_s=0.01)
    keeper.start().kill()
    wait_until(lambda: len(children) == 3)
    assert children[1].wait(WAIT_S) == -signal.SIGKILL
    assert children[2].alive
    keeper.stop()


def test_a_keeper_may_be_stopped_by_its_own_callback() -> None:
    def give_up(process: Process, code: int) -> None:
        keeper.stop()

    keeper = Keeper(python("raise SystemExit(3)"), on_exit=give_up)
    process = keeper.start()
    assert process.wait(WAIT_S) == 3
    wait_until(lambda: "edl-keeper" not in {thread.name for thread in threading.enumerate()})
    assert keeper.process is process
