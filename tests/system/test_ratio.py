"""The number of teachers follows n = ceil(t_t / t_s) and the buffer, never the source."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from edl.benchmarks.pacing import Repeated
from edl.benchmarks.pacing.student import PacedStudent
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.tests.system import foreign
from edl.tests.system.conftest import FOR_EVER, ROWS, Batches, add_teachers
from edl.tests.system.paced_teachers import paced_teachers

STEP_S = 0.04
T_S = STEP_S / ROWS
#: A student that needs three teachers, with two of which it would wait a quarter of the time.
QUICK_STEP_S, BATCH_S, THREE = 0.036, 0.1, 3
#: Batches until it is measured, and of which that is done.
SETTLED, MEASURED = 40, 100


class Training(threading.Thread):
    """A student whose step takes `STEP_S`, until it is told to stop."""

    def __init__(self, reader: DistilReader) -> None:
        super().__init__(daemon=True)
        self.reader = reader
        self.stop = threading.Event()

    def run(self) -> None:
        for _ in self.reader:
            if self.stop.wait(STEP_S):
                return


def student_status(mesh: LocalMesh) -> dict[str, Any]:
    """What `edl status --json` says of the one student; n is 0 until it has come."""
    command = [sys.executable, "-P", "-m", "edl", "status", "--json", "--coordinator", mesh.url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (service,) = json.loads(output)["services"]
    return dict(*service["students"]) if service["students"] else {"needed": 0}


def wait_for_needed(mesh: LocalMesh, needed: int, timeout_s: float = 20.0) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while (student := student_status(mesh))["needed"] != needed:
        assert time.monotonic() < deadline, f"n is {student['needed']}, not {needed}: {student}"
    return student


@pytest.mark.serial
def test_n_triples_when_a_teacher_is_throttled_to_a_third(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a")
    set_pace(0.8 * T_S)
    with DistilReader(Batches(100_000), service="slow", coordinator=mesh.url) as reader:
        training = Training(reader)
        training.start()
        try:
            assert wait_for_needed(mesh, 1)["want"] == 1
            set_pace(3 * 0.8 * T_S)
            assert wait_for_needed(mesh, 3)["want"] >= 3
        finally:
            training.stop.set()
            training.join(10)


class SlowSource(Batches):
    """Yields a batch only every tenth of a second: slower than step and teacher."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            time.sleep(0.1)
            yield batch


@pytest.mark.serial
def test_a_slow_source_never_raises_the_want(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a", "b", "c")
    set_pace(0.8 * T_S)
    wants = set()
    with DistilReader(SlowSource(60), service="slow", coordinator=mesh.url) as reader:
        for _ in reader:
            wants.add(reader.stats.want)
        stats = reader.stats
    assert wants <= {0, 1}
    assert stats.source_wait_s > 1.0, "the wait is told as the source's"
    assert stats.starved_s < stats.source_wait_s


@dataclass
class Followed:
    """The batches of a reader for a paced student, and what was the case at each.

    Attributes:
        wants: how many teachers were asked for, each number as often as it came anew.
        has: how many there were, at each batch.
    """

    reader: DistilReader
    student: PacedStudent = field(default_factory=lambda: PacedStudent(QUICK_STEP_S))
    wants: list[int] = field(default_factory=list)
    has: list[int] = field(default_factory=list)

    def train(self, until: Callable[[], bool], timeout_s: float) -> None:
        """Train until that is the case; raises AssertionError when it is not for so long."""
        deadline = time.monotonic() + timeout_s
        self.student.train(self._batches(until, deadline))

    def batch_s(self) -> float:
        """Seconds of one of the last `MEASURED` batches."""
        took_s = self.student.took_s[-MEASURED - 1 :]
        return (took_s[-1] - took_s[0]) / MEASURED

    def _batches(self, until: Callable[[], bool], deadline: float) -> Iterator[Any]:
        for taken in self.reader:
            yield taken
            stats = self.reader.stats
            self.has.append(len(stats.teachers))
            if stats.want and self.wants[-1:] != [stats.want]:
                self.wants.append(stats.want)
            if until():
                return
            assert time.monotonic() < deadline, (self.wants, self.has[-1], stats.line())

    def settled(self, teachers: int) -> bool:
        """Whether there have been so many for long enough, and nothing else."""
        return self.has[-SETTLED - MEASURED :] == [teachers] * (SETTLED + MEASURED)


@pytest.mark.serial
def test_two_short_of_n_it_asks_for_one_more_twice_and_trains_at_its_own_speed(
    mesh: LocalMesh,
) -> None:
    """Teachers are held up by what is not their device's: by what they tell, one is enough."""
    alone = PacedStudent(QUICK_STEP_S)
    alone.train(Repeated(foreign.Batches.at(0), count=50))
    own_s = alone.batch_s(skipped=0)
    told = 0.3
    with paced_teachers(mesh.url, THREE + 1, told * BATCH_S) as teachers:
        for teacher in teachers:
            teacher.pace(BATCH_S, told)
        bounds = {"upper_bytes": 20_000, "lower_bytes": 10_000, "teachers_min": 1}
        with foreign.reader(mesh.url, foreign.Batches(FOR_EVER), **bounds) as reader:
            training = Followed(reader)
            # A machine that stands still for a tenth of a second is nobody's fault: on it goes.
            training.train(
                lambda: training.settled(THREE) and training.batch_s() <= own_s / 0.97,
                timeout_s=60.0,
            )
            assert reader.stats.needed == THREE - 2
    assert training.wants[-3:] == [THREE - 2, THREE - 1, THREE]


@pytest.mark.nightly  # by day the same holds in virtual time: properties/test_paced_flow.py
@pytest.mark.timeout(180)  # of which half a minute is the coordinator's
def test_with_teachers_twice_as_fast_fewer_are_assigned_and_the_speed_stays(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    names = [f"t{number}" for number in range(THREE + 1)]
    add_teachers(mesh, *names)
    batch_s = 2.5 * QUICK_STEP_S
    set_pace(batch_s / ROWS)
    with DistilReader(Batches(FOR_EVER), service="slow", coordinator=mesh.url) as reader:
        training = Followed(reader)
        training.train(lambda: training.settled(THREE), timeout_s=40.0)
        before_s = training.batch_s()
        set_pace(batch_s / 2 / ROWS)
        # The coordinator believes another speed, and a lower want, when half a minute has passed.
        training.train(lambda: training.settled(THREE - 1), timeout_s=70.0)
        assert training.batch_s() <= 1.1 * before_s  # on a machine that has other work too
