"""A fleet's processes: started, replaced, let go, ended with it; by small programs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable

import pytest

from edl.cli import command_line
from edl.mesh.agent import teacher_fleet
from edl.mesh.agent.teacher_fleet import LocalFleetConfig, LocalFleetRunner, ServicePoller
from edl.mesh.local import TeacherSpec
from edl.runtime import supervise
from edl.runtime.errors import UsageError
from edl.runtime.supervise import Command, Process
from edl.tests.cli_output import refusal_of
from edl.tests.mesh.threads import in_thread
from edl.tests.runtime.programs import python
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system
#: Says that it is ready, and ends when told to; how it ended stands in its last line.
TEACHER = """
    import signal, sys, threading
    from edl.runtime.supervise import end_with_parent
    end_with_parent()
    over = threading.Event()
    if sys.argv[1] in sys.argv[2:]:
        sys.exit(2)
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    print(f"teacher ready: {sys.argv[1]} s on 127.0.0.1:1", flush=True)
    while not over.wait(0.05):
        pass
"""
#: Drains until SIGUSR1.
DRAINS = """
    import signal, sys
    from edl.runtime.supervise import end_with_parent
    end_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: print("drains"))
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit())
    print("teacher ready: f-1 s on 127.0.0.1:1", flush=True)
    while True:
        signal.pause()
"""
HANGS = """
    import signal
    from edl.runtime.supervise import end_with_parent
    end_with_parent()
    signal.pause()
"""
MISUSED = """
    print("edl: --model is what?")
    raise SystemExit(2)
"""


class Fleet:
    def __init__(self, program: str = TEACHER, most: int = 2, *misused: str) -> None:
        self.started: list[str] = []
        started = self.started

        class Programs(TeacherSpec):
            def command(self, teacher_id: str, *_: object, **__: object) -> Command:
                started.append(teacher_id)
                return python(program, teacher_id, *misused, name=teacher_id)

        spec = Programs("s", "m", ttl_s=0.04, grace_s=5.0)
        self.service = ServicePoller("redis://nowhere", "s")
        local = LocalFleetConfig(spec, "redis://nowhere", "f", 0, most)
        self.runner = LocalFleetRunner(local, self.service)

    @property
    def running(self) -> list[str]:
        return [one.name for one in self.runner.teachers if one.process.alive and not one.leaving]

    @property
    def serving(self) -> list[str]:
        """Of those that run, the ones that are ready: a fast one is before it is in the list."""
        return [name for name in self.running if name in self.runner.ready]


def test_there_are_as_many_as_are_desired_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = Fleet()
    with in_thread(one.runner.run) as (_, ended):
        assert one.running == []  # nobody has said anything
        one.service.managed_target = 9
        wait_until(lambda: one.serving == ["f-1", "f-2"])
        one.service.managed_target = 1
        wait_until(lambda: "f-2 has left: it ended with exit code 0" in caplog.text)
        one.service.managed_target = None  # nobody answers: all stays
        one.runner.teachers[0].process.kill()
        wait_until(lambda: one.serving == ["f-3"])
        one.service.managed_target = 0
        wait_until(lambda: one.running == [])
    ended.result()
    assert one.started == ["f-1", "f-2", "f-3"]


def test_one_that_hangs_is_replaced_and_all_finish_when_the_fleet_ends() -> None:
    one = Fleet(most=1)
    with in_thread(one.runner.run) as (_, ended):
        one.service.registered = frozenset({"f-2"})
        one.service.managed_target = 1
        wait_until(lambda: one.serving == ["f-2"])
        one.service.registered = None  # nobody answers: it may be
        teacher = one.runner.teachers[0]
        seen_s = teacher.seen_s
        wait_until(lambda: teacher.seen_s > seen_s)
        assert one.running == ["f-2"]
    ended.result()
    assert [teacher.process.returncode for teacher in one.runner.teachers] == [0]


def test_one_that_hangs_at_its_start_is_replaced() -> None:
    one = Fleet(HANGS, most=1)
    one.service.managed_target = 1
    now = time.monotonic()
    one.runner.step(now)
    (teacher,) = one.runner.teachers
    one.runner.step(now + 899.0)
    assert teacher.process.alive
    one.runner.step(now + 901.0)
    assert teacher.process.wait(DEADLINE_S) == -signal.SIGKILL
    one.runner.step(now + 902.0)
    assert one.started == ["f-1", "f-2"]
    one.runner.teachers[0].process.stop(0.0)


def test_a_draining_teacher_gets_no_second_signal_when_the_fleet_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, waits = Fleet(DRAINS, 1), threading.Event()

    def wait_all(deadlines: Iterable[tuple[Process, float]]) -> None:
        waits.set()
        supervise.wait_all(deadlines)

    monkeypatch.setattr(teacher_fleet, "wait_all", wait_all)
    one.service.managed_target = 1
    with in_thread(one.runner.run) as (stop, ended):
        wait_until(lambda: one.serving == ["f-1"])
        process = one.runner.teachers[0].process
        one.service.managed_target = 0
        process.expect("drains", DEADLINE_S)
        stop.request()
        assert waits.wait(DEADLINE_S)
        process.send_signal(signal.SIGUSR1)
        ended.result(DEADLINE_S)
    assert process.tail()[1:] == ["drains"]


def test_a_teacher_with_wrong_options_ends_the_fleet() -> None:
    one = Fleet(MISUSED)
    one.service.managed_target = 1
    refused = pytest.raises(UsageError, match="--model is what")
    with in_thread(one.runner.run) as (_, ended), refused:
        wait_until(ended.done)
        ended.result()
    with pytest.raises(UsageError, match="not 3 to 2"):
        LocalFleetConfig(TeacherSpec("s", "m"), "redis://nowhere", "f", 3, 2)


def test_a_teacher_that_cannot_start_later_ends_no_other() -> None:
    """As when its model or certificate is being replaced."""
    one = Fleet(TEACHER, 2, "f-2")
    one.service.managed_target = 1
    with in_thread(one.runner.run) as (_, ended):
        wait_until(lambda: one.serving == ["f-1"])
        one.service.managed_target = 2
        wait_until(lambda: one.serving == ["f-1", "f-3"])
    ended.result()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--local",), "--local needs --service and --model"),
        (("--local", "--service", "a", "--model", "m", "--devices", "cpu"), "--devices: not with"),
        (
            ("--local", "--service", "a", "--model", "m", "--teacher-options", "'x"),
            "--teacher-options: No closing quotation",
        ),
        (("--service", "a", "--teachers", "max=3"), "--service, --teachers: with --local only"),
        (("--logs", "/proc/none"), "--logs /proc/none cannot be created: No such file"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[object, ...], says: str) -> None:
    assert says in refusal_of(command_line("agent"), "agent", *options)
