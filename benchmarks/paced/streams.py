"""What a stream from paced teachers to a paced student does of what is possible, once it runs.

Each measurement is of one stream, in windows one after another. The first steps of a training are
long (it compiles, it allocates), and so is the first of these students: meanwhile some batches are
labelled, as many as each teacher does in `_FIRST_STEP` of its own. Where teachers are the slower
side they are used up again before the first window begins; where they are not, they are what keeps
the student from waiting whenever an answer is some milliseconds late. What is taken out of that
reserve during the windows, and not labelled meanwhile, does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ...distill_reader import DistilReader
from ..report import MIN_ROUNDS, Estimate
from . import FOR_EVER, ROWS, SERVICE, Repeated, batch
from .student import PacedStudent
from .teachers import paced, start_teachers

#: The first step of a student, in batches of each teacher.
_FIRST_STEP: Final = 4
#: Batches of each teacher that are not measured: by then, the reserve is gone if it has to go.
_SKIPPED: Final = 12
#: Batches come in order, so in bursts, with each of a teacher that is far slower than the others:
#: so many of its batches make a measurement.
_PERIODS: Final = 3


@dataclass(frozen=True, slots=True)
class Share:
    """What a stream does of what is possible.

    Attributes:
        possible_per_s: samples per second.
        part: of these.
        waited_s: the longest that the student waited for a batch once the stream was running.
    """

    possible_per_s: float
    part: Estimate
    waited_s: float


def share(addresses: Sequence[str], teacher_s: float, step_s: float, window_s: float) -> Share:
    """The throughput, as a part of min(the student alone, the sum of the teachers).

    Args:
        addresses: of the teachers.
        teacher_s: seconds of a batch on each.
        step_s: seconds of a batch at the student.
        window_s: length of each of the measurements.
    """
    teachers = len(addresses)
    pool_s, skipped = teacher_s / teachers, _SKIPPED * teachers
    # A multiple of the teachers, as they are done together.
    per_window = teachers * max(round(window_s / max(pool_s, step_s) / teachers), 1)
    best_s = [max(pool_s, alone_s) for alone_s in _alone_s(step_s, max(per_window // 2, 2))]
    student = PacedStudent(step_s)
    until = skipped + MIN_ROUNDS * per_window
    source = Repeated(batch(), count=FOR_EVER)  # at its end, the reserve would be used up
    with DistilReader(source, service=SERVICE, teachers=addresses) as reader:
        ready: list[int] = []

        def warmed_up() -> Iterator[object]:
            """The reader's batches, with a long first step; what is ready is noted in the end."""
            for number, taken in enumerate(reader):
                if number == 1:
                    time.sleep(_FIRST_STEP * teacher_s)
                yield taken
                if number in (skipped, until):
                    ready.append(reader.stats.ready)
                if number == until:
                    return

        student.train(warmed_up())
    of_reserve = max(ready[0] - ready[1], 0) / (until - skipped)
    windows = zip(best_s, windows_s(student, skipped, per_window), strict=True)
    parts = [(1 - of_reserve) * best * per_window / taught_s for best, taught_s in windows]
    rate = ROWS / max(pool_s, step_s)
    return Share(rate, Estimate.of(parts), max(student.waited_s[skipped + 1 :]))


def _alone_s(step_s: float, per_window: int) -> Iterator[float]:
    """Seconds of a batch at a student whose source has them all ready, window by window."""
    student = PacedStudent(step_s)
    student.train(Repeated(batch(), count=MIN_ROUNDS * per_window + 1))
    return (seconds / per_window for seconds in windows_s(student, 0, per_window))


def straggler(batch_s: float, others: int, times_slower: int) -> Share:
    """One teacher so many times slower than the others, and a student that takes at once.

    Args:
        batch_s: of each of the others.
        others: how many.
        times_slower: the one is.

    Raises:
        ProcessFailed: a teacher does not start.
    """
    slow_s = times_slower * batch_s
    per_window = _PERIODS * (others * times_slower + 1)
    skipped = per_window
    source = Repeated(batch(), count=skipped + MIN_ROUNDS * per_window + 1)
    student = PacedStudent(0.0)
    with ExitStack() as ending:
        options = [paced(batch_s)] * others + [paced(slow_s)]
        addresses = [address for address, _ in start_teachers(ending, options)]
        student.train(
            ending.enter_context(DistilReader(source, service=SERVICE, teachers=addresses))
        )
    nominal_s = _PERIODS * slow_s
    parts = [nominal_s / seconds for seconds in windows_s(student, skipped, per_window)]
    waited_s = max(student.waited_s[skipped + 1 :])
    return Share(ROWS * per_window / nominal_s, Estimate.of(parts), waited_s)


def windows_s(student: PacedStudent, skipped: int, per_window: int) -> Iterator[float]:
    """How long each run of `per_window` batches took, behind the first `skipped`."""
    marks = student.took_s[skipped::per_window]
    return (later_s - earlier_s for earlier_s, later_s in pairwise(marks))
