"""When something that flickers counts: it has to last.

A wish for teachers that flickers must not move them to and fro. A report stands until the next one
comes, so time alone can bring a lasting wish into force. More is given at once to a student that
starves or asks for twice as much; otherwise when every report of the last `RISE_S` was above the
wish in force: then it becomes their mean. Less comes into force when all of the last `FALL_S` were
clearly below it, or all of `DRIFT_S` below it at all: then it becomes the greatest of them, so
noise around a wish cannot ratchet it down.

That a student starves is said, and logged, likewise not for moments without labels: an epoch begins
with an empty buffer, so a student that has all that it needs waits for a moment each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isclose
from typing import Final

#: Seconds that a wish must stay above the one in force to replace it.
RISE_S: Final = 15.0
#: Seconds that it must stay below `CLEARLY` of the one in force, or below it at all.
FALL_S: Final = 30.0
DRIFT_S: Final = 120.0
CLEARLY: Final = 0.9
#: A wish of so many times the one in force is no noise.
LEAP: Final = 2.0
#: Seconds over which a reader looks whether its student starves; so much waiting in them is that.
WINDOW_S: Final = 1.0
STARVING_S: Final = 0.25
#: Seconds that a state of a student has to last to be logged.
LASTING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeviationRun:
    """Figures in a row that all lie on one side of the one in force.

    Attributes:
        since: when the first of them came.
        changed_at: when the latest came.
        latest: the latest, which still stands.
        peak: the greatest.
        area: the figures, summed over the seconds that each of them stood before the latest.
    """

    since: float
    changed_at: float
    latest: float
    peak: float
    area: float = 0.0

    def mean(self, now: float) -> float:
        """Of the figures, over time; of equal ones exactly that figure."""
        if now <= self.since:
            return self.latest
        mean = self._area(now) / (now - self.since)
        return self.peak if isclose(mean, self.peak) else mean

    def after(self, figure: float, now: float) -> DeviationRun:
        """The same with one more."""
        if figure == self.latest:
            return self
        return DeviationRun(self.since, now, figure, max(self.peak, figure), self._area(now))

    def _area(self, now: float) -> float:
        return self.area + self.latest * (now - self.changed_at)


def extend_run(run: DeviationRun | None, figure: float, now: float) -> DeviationRun:
    """The run with one more figure; None: it begins."""
    return DeviationRun(now, now, figure, figure) if run is None else run.after(figure, now)


@dataclass(frozen=True, slots=True)
class Debounced:
    """A wish in force, and what speaks against it.

    Attributes:
        value: the wish in force; the first report is in force at once.
        latest: the last report, which still stands.
        above: the run of reports above `value`, while there is one.
        below: the same, clearly below it.
        beneath: the same, below it at all.
    """

    value: float
    latest: float
    above: DeviationRun | None = None
    below: DeviationRun | None = None
    beneath: DeviationRun | None = None

    @property
    def due(self) -> float | None:
        """When time alone brings another wish into force."""
        runs = ((self.above, RISE_S), (self.below, FALL_S), (self.beneath, DRIFT_S))
        return min((run.since + lasting_s for run, lasting_s in runs if run), default=None)


def begin(demand: float) -> Debounced:
    """The first report is in force at once."""
    return Debounced(demand, demand)


def follow(demand: Debounced, report: float, urgent: bool, now: float) -> Debounced:
    """Take in a report: how much is wished for, and whether that is `urgent`: it starves."""
    demand = elapse(demand, now)  # what stood until now comes into force first
    value = demand.value
    at_once = report == 0 or value == 0 or report >= LEAP * value or (urgent and report > value)
    return begin(report) if at_once else _weigh(value, report, now, demand)


def elapse(demand: Debounced, now: float) -> Debounced:
    """Bring into force what has lasted long enough by `now`."""
    if demand.above is not None and now >= demand.above.since + RISE_S:
        return _weigh(demand.above.mean(now), demand.latest, now)
    for run, lasting_s in ((demand.below, FALL_S), (demand.beneath, DRIFT_S)):
        if run is not None and now >= run.since + lasting_s:
            return _weigh(run.peak, demand.latest, now)
    return demand


def _weigh(value: float, report: float, now: float, before: Debounced | None = None) -> Debounced:
    """Count a report into the runs that it lengthens; the others are over."""
    runs = before or begin(value)
    return Debounced(
        value,
        report,
        extend_run(runs.above, report, now) if report > value else None,
        extend_run(runs.below, report, now) if report < CLEARLY * value else None,
        extend_run(runs.beneath, report, now) if report < value else None,
    )


@dataclass(frozen=True, slots=True)
class Starvation:
    """Whether a reader says that its student starves.

    Attributes:
        starves: as it is to be told.
        since_s: when the window began.
        starved_s: seconds that the student had waited by then, since it began.
    """

    starves: bool = False
    since_s: float = 0.0
    starved_s: float = 0.0

    def after(self, starved_s: float, now: float) -> Starvation:
        """Look again.

        That it starves is said as soon as it has waited for long enough; that it no longer does,
        after a whole window in which it did not.

        Args:
            starved_s: seconds that the student has waited for labels, since it began.
            now: seconds of any monotonic clock.
        """
        starves = starved_s - self.starved_s >= STARVING_S
        if now - self.since_s >= WINDOW_S:
            return Starvation(starves, now, starved_s)
        return replace(self, starves=True) if starves else self


class StarvationLog:
    """Which students starve, told when it lasts: nobody would read a log of every flicker."""

    def __init__(self) -> None:
        self._starving: set[str] = set()  # as it was told
        self._turned_at: dict[str, float] = {}  # of those that differ from what was told

    def hear(self, student_id: str, starved: bool, now: float) -> None:
        """A student's state is this now."""
        if starved == (student_id in self._starving):
            self._turned_at.pop(student_id, None)
        else:
            self._turned_at.setdefault(student_id, now)

    def forget(self, student_id: str) -> None:
        """A student is gone; nothing is told about it."""
        self._starving.discard(student_id)
        self._turned_at.pop(student_id, None)

    def lasting(self, now: float) -> Iterator[tuple[str, bool]]:
        """Students whose state has lasted and was not told yet, and whether they starve."""
        for student_id in [one for one, at in self._turned_at.items() if now - at >= LASTING_S]:
            del self._turned_at[student_id]
            self._starving ^= {student_id}
            yield student_id, student_id in self._starving
