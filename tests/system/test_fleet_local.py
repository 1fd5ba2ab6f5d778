"""A fleet of real teachers follows a student that comes, speeds up, slows down and goes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import psutil
import pytest

from edl.benchmarks.pacing import FOR_EVER, ROWS, Repeated, batch
from edl.benchmarks.pacing.teachers import CHEAP, paced
from edl.coordinator import connect
from edl.coordinator.registry import LogEntry
from edl.distill_reader import DistilReader
from edl.interrupts import EXIT_INTERRUPTED
from edl.supervise import Process, python_command, start
from edl.tests.system.coordinator_process import Coordinator, ready, serve

SERVICE = "paced"
TTL_S, FREEZE_S, MOST = 6.0, 2.0, 2
SCALING = (
    *("--ttl", TTL_S, "--leader-ttl", 3.0, "--freeze", FREEZE_S),
    *("--up-after", 1.0, "--down-after", 2.0, "--idle-to-zero", 1.0, "--max-teachers", MOST),
)
#: Of a batch, on a teacher. Slow, a student needs one of them; quick, it needs three.
TEACHER_S, SLOW_S, QUICK_S = 0.08, 0.12, 0.03
#: Within which the fleet follows: what it takes to notice, a freeze window, a teacher's start; on a
#: machine that does other things too.
WITHIN_S = 30.0


class Student(threading.Thread):
    """Takes `step_s` for each batch, until it is told to stop."""

    def __init__(self, url: str, step_s: float) -> None:
        super().__init__(daemon=True)
        self.step_s = step_s
        self.labelled = 0
        self._url = url
        self._over = threading.Event()

    def run(self) -> None:
        size = batch().nbytes
        with DistilReader(
            Repeated(batch(), count=FOR_EVER),
            service=SERVICE,
            coordinator=self._url,
            upper_bytes=12 * size,
            lower_bytes=6 * size,
            no_teacher="hard_only",  # so that it can end without any
            no_teacher_grace_s=2.0,
        ) as reader:
            for *_, soft in reader:
                self.labelled += soft is not None
                if self._over.wait(self.step_s):
                    return

    def end(self) -> None:
        self._over.set()
        self.join(WITHIN_S)
        assert not self.is_alive()


class Watch:
    """Looks at the fleet's processes and at the registry while a test waits."""

    def __init__(self, url: str, fleet: Process) -> None:
        self._registry = connect(url)
        self._fleet = psutil.Process(fleet.pid)
        self.running: list[int] = []

    def until(self, what: Callable[[], bool], why: str, within_s: float = WITHIN_S) -> None:
        deadline = time.monotonic() + within_s
        while not what():
            self.running.append(len(self._fleet.children()))
            found = self._registry.desired(SERVICE)
            assert time.monotonic() < deadline, f"{why}: {self.serving()} serve; {found}"
            time.sleep(0.05)

    def serving(self) -> list[str]:
        return [one.member for one in self._registry.members("teachers", SERVICE)]

    def log(self, kind: str) -> list[LogEntry]:
        return [one for one in self._registry.events(SERVICE) if one.kind == kind]

    def close(self) -> None:
        self._registry.close()


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


@pytest.fixture
def coordinator(undo: ExitStack) -> Coordinator:
    process = serve("--redis-port", 0, *SCALING)
    undo.callback(process.stop)
    return ready(process)


def begin_fleet(undo: ExitStack, url: str, most: int = MOST) -> Process:
    words = ("fleet", "local", "--service", SERVICE, "--model", CHEAP, "--max", most)
    options = ("--ttl", TTL_S, "--micro-batch", ROWS, "--coordinator", url, "--grace", 2)
    fleet = start(python_command("fleet", "edl", *words, *options, "--", *paced(TEACHER_S)))
    undo.callback(fleet.stop, 20.0)
    fleet.expect("fleet ready", WITHIN_S)
    return fleet


def begin_student(undo: ExitStack, url: str, step_s: float) -> Student:
    student = Student(url, step_s)
    undo.callback(student.end)
    student.start()
    return student


def test_a_fleet_follows_its_student_and_goes_with_it(
    coordinator: Coordinator, undo: ExitStack
) -> None:
    fleet = begin_fleet(undo, coordinator.url)
    watch = Watch(coordinator.url, fleet)
    undo.callback(watch.close)
    assert watch.serving() == []

    student = begin_student(undo, coordinator.url, SLOW_S)  # with no teacher: it wakes the service
    watch.until(lambda: student.labelled > 10, "nobody serves a student that has come")
    assert len(watch.serving()) == 1

    student.step_s = QUICK_S
    watch.until(lambda: len(watch.serving()) == MOST, "a quick student has one teacher")
    student.step_s = SLOW_S
    watch.until(lambda: len(watch.serving()) == 1, "a slow student keeps all teachers")
    student.end()
    watch.until(lambda: watch.serving() == [], "teachers stay though no student is there")

    assert max(watch.running) <= MOST
    assert watch.log("lost") == [], "a teacher has not drained"
    counts = [text.text.split()[0] for text in watch.log("scaled")]
    assert counts == ["1", "2", "1", "0"]
    moments = [entry.time_ms / 1000 for entry in watch.log("scaled")]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert min(gaps) >= FREEZE_S - 0.1, gaps
    fleet.send_signal(signal.SIGINT)
    assert fleet.wait(WITHIN_S) == EXIT_INTERRUPTED, fleet.tail()
