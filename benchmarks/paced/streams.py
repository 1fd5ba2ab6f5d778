"""Emulated students of a stated pace, and the throughput of streams from paced teachers to them.

Each measurement takes consecutive windows of one stream. The first steps of a training are long
(compiling, allocating). So the student's first step is long, too: as long as `_FIRST_STEP` batches
of a teacher. Meanwhile the teachers label a reserve of batches. If the teachers are the slower
side, the reserve is used up before the first window begins. Otherwise the reserve keeps the student
from waiting when an answer is some milliseconds late. If it shrinks during the windows, the batches
by which it shrinks do not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from ...distill_reader import DistilReader
from ...teacher.backends.paced import Schedule
from ..report import MIN_ROUNDS, Estimate
from . import FOR_EVER, ROWS, SERVICE, Repeated, batch
from .teachers import paced, start_teachers

#: Sleeping threads wake up late, so the last part of a wait is a busy loop of this length.
_AWAKE_S: Final = 0.0005
#: Length of the student's first step, in batches of a teacher.
_FIRST_STEP: Final = 4
#: Batches of each teacher before the first window: enough to use up the reserve of slow teachers.
SETTLING: Final = 12
#: Batches of the slow teacher in a window. Batches are delivered in order, so they come in bursts,
#: one burst for each batch of the slow teacher.
_PERIODS: Final = 3


@dataclass
class PacedStudent:
    """An emulated student. It does not catch up after time without a batch.

    Args:
        step_s: seconds of a batch; 0: it takes each batch at once.

    Attributes:
        took_s: monotonic time at which it took each batch.
        waited_s: seconds for which it waited for each batch.
    """

    step_s: float
    took_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)

    def train(self, loader: Iterable[Any]) -> None:
        """Work on every batch of `loader`."""
        schedule = Schedule(ROWS / self.step_s) if self.step_s else None
        waiting_since_s = time.monotonic()
        for _ in loader:
            now_s = time.monotonic()
            self.took_s.append(now_s)
            self.waited_s.append(now_s - waiting_since_s)
            if schedule is not None:
                _wait_until(schedule.schedule(now_s, ROWS))
                schedule.record_late_end(time.monotonic())
            waiting_since_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class ThroughputShare:
    """Throughput of a stream relative to the possible throughput.

    Attributes:
        possible_per_s: possible samples per second.
        part: share of the possible samples that was delivered.
        waited_s: longest wait of the student for a batch in the measured windows.
    """

    possible_per_s: float
    part: Estimate
    waited_s: float


def share(
    addresses: Sequence[str], teacher_s: float, step_s: float, window_s: float
) -> ThroughputShare:
    """Measure the throughput, as a share of min(the student alone, the sum of the teachers).

    Args:
        addresses: addresses of the teachers.
        teacher_s: seconds of a batch at each teacher.
        step_s: seconds of a batch at the student.
        window_s: length of each window in seconds.
    """
    teachers = len(addresses)
    pool_s, skipped = teacher_s / teachers, SETTLING * teachers
    # A multiple of the number of teachers, as they finish batches at the same time.
    per_window = teachers * max(round(window_s / max(pool_s, step_s) / teachers), 1)
    best_s = [max(pool_s, alone_s) for alone_s in _alone_s(step_s, max(per_window // 2, 2))]
    student = PacedStudent(step_s)
    until = skipped + MIN_ROUNDS * per_window
    source = Repeated(batch(), count=FOR_EVER)  # the end of a source would use up the reserve
    with DistilReader(source, service=SERVICE, teachers=addresses) as reader:
        ready: list[int] = []

        def warmed_up() -> Iterator[object]:
            """Yield the reader's batches, with a long first step.

            Append the ready batches to `ready` before the first window and after the last one.
            """
            for number, labelled in enumerate(reader):
                if number == 1:
                    time.sleep(_FIRST_STEP * teacher_s)
                yield labelled
                if number in (skipped, until):
                    ready.append(reader.stats.ready)
                if number == until:
                    return

        student.train(warmed_up())
    from_reserve = max(ready[0] - ready[1], 0) / (until - skipped)
    windows = zip(best_s, windows_s(student, skipped, per_window), strict=True)
    parts = [(1 - from_reserve) * best * per_window / window_s for best, window_s in windows]
    rate = ROWS / max(pool_s, step_s)
    return ThroughputShare(rate, Estimate.of(parts), max(student.waited_s[skipped + 1 :]))


def _wait_until(end_s: float) -> None:
    if (left_s := end_s - time.monotonic()) > _AWAKE_S:
        time.sleep(left_s - _AWAKE_S)
    while time.monotonic() < end_s:
        pass


def _alone_s(step_s: float, per_window: int) -> Iterator[float]:
    """Return the seconds of a batch in each window, for a student that never waits."""
    student = PacedStudent(step_s)
    student.train(Repeated(batch(), count=MIN_ROUNDS * per_window + 1))
    return (seconds / per_window for seconds in windows_s(student, 0, per_window))


def straggler(batch_s: float, others: int, times_slower: int) -> ThroughputShare:
    """Measure the throughput with one slow teacher, and a student that takes batches at once.

    Args:
        batch_s: seconds of a batch at each other teacher.
        others: number of other teachers.
        times_slower: time of a batch at the slow teacher / at each other teacher.

    Returns:
        The throughput as a share of the sum of the rates.

    Raises:
        ProcessFailed: a teacher does not start.
    """
    slow_s = times_slower * batch_s
    per_window = _PERIODS * (others * times_slower + 1)
    skipped = per_window
    source = Repeated(batch(), count=skipped + MIN_ROUNDS * per_window + 1)
    student = PacedStudent(0.0)
    with ExitStack() as stack:
        options = [paced(batch_s)] * others + [paced(slow_s)]
        addresses = [address for address, _ in start_teachers(stack, options)]
        student.train(
            stack.enter_context(DistilReader(source, service=SERVICE, teachers=addresses))
        )
    nominal_s = _PERIODS * slow_s
    parts = [nominal_s / seconds for seconds in windows_s(student, skipped, per_window)]
    waited_s = max(student.waited_s[skipped + 1 :])
    return ThroughputShare(ROWS * per_window / nominal_s, Estimate.of(parts), waited_s)


def windows_s(student: PacedStudent, skipped: int, per_window: int) -> Iterator[float]:
    """Return the seconds of each window of `per_window` batches after the first `skipped`."""
    marks = student.took_s[skipped::per_window]
    return (later_s - earlier_s for earlier_s, later_s in pairwise(marks))
