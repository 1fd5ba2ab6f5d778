"""Debouncing: a changed value takes effect once it has lasted.

A fluctuating demand for teachers must not move teachers to and fro. Each report holds until the
next one, so a lasting demand can take effect without another report. A higher demand takes effect
at once if the student starves or asks for twice as much. Otherwise all reports of the last `RISE_S`
must be above the demand in force, and their mean replaces it. The demand falls when all reports of
the last `FALL_S` were clearly below it, or all reports of the last `DRIFT_S` were below it. The
maximum of these reports replaces it, so noise cannot lower a demand step by step. A change to or
from 0 takes effect at once.

Starvation is debounced too, when reported and when logged. Each epoch begins with an empty buffer,
so even a student with enough teachers waits for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isclose
from typing import Final

#: Seconds that a demand must stay above the one in force to replace it.
RISE_S: Final = 15.0
#: Seconds that a demand must stay clearly below the one in force to replace it.
FALL_S: Final = 30.0
#: Seconds that a demand must stay below the one in force, by any amount, to replace it.
DRIFT_S: Final = 120.0
#: Below this share of the demand in force, a demand is clearly below it.
CLEARLY: Final = 0.9
#: A demand of this many times the one in force is not noise.
LEAP: Final = 2.0
#: A student starves if it waited `STARVING_S` within a window of `WINDOW_S` seconds.
WINDOW_S: Final = 1.0
STARVING_S: Final = 0.25
#: Seconds that a student's state must last to be logged.
LASTING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeviationRun:
    """Consecutive values above, or below, the value in force.

    Attributes:
        since: time of the first value.
        changed_at: time of the latest value.
        latest: the latest value, which still holds.
        peak: the greatest value.
        area: sum of value * seconds until the latest value.
    """

    since: float
    changed_at: float
    latest: float
    peak: float
    area: float = 0.0

    def mean(self, now: float) -> float:
        """Return the mean over time; if all values are equal, exactly their value."""
        if now <= self.since:
            return self.latest
        mean = self._area(now) / (now - self.since)
        return self.peak if isclose(mean, self.peak) else mean

    def after(self, value: float, now: float) -> DeviationRun:
        """Return the run with one more value."""
        if value == self.latest:
            return self
        return DeviationRun(self.since, now, value, max(self.peak, value), self._area(now))

    def _area(self, now: float) -> float:
        return self.area + self.latest * (now - self.changed_at)


def extend_run(run: DeviationRun | None, value: float, now: float) -> DeviationRun:
    """Return `run` with one more value; if it is None, a new run of this value."""
    return DeviationRun(now, now, value, value) if run is None else run.after(value, now)


@dataclass(frozen=True, slots=True)
class Debounced:
    """A demand in force, and the reports that deviate from it.

    Attributes:
        value: the demand in force.
        latest: the latest report, which still holds.
        above: the latest reports, if they are above `value`.
        clearly_below: the latest reports, if they are clearly below `value`.
        below: the latest reports, if they are below `value`.
    """

    value: float
    latest: float
    above: DeviationRun | None = None
    clearly_below: DeviationRun | None = None
    below: DeviationRun | None = None

    @property
    def due(self) -> float | None:
        """Time at which another demand takes effect without a further report; None: never."""
        runs = ((self.above, RISE_S), (self.clearly_below, FALL_S), (self.below, DRIFT_S))
        return min((run.since + lasting_s for run, lasting_s in runs if run), default=None)


def begin(demand: float) -> Debounced:
    """Start with the first report, which takes effect at once."""
    return Debounced(demand, demand)


def follow(demand: Debounced, report: float, urgent: bool, now: float) -> Debounced:
    """Apply a report; `urgent`: the student starves."""
    demand = elapse(demand, now)  # the previous report has held until now
    value = demand.value
    at_once = report == 0 or value == 0 or report >= LEAP * value or (urgent and report > value)
    return begin(report) if at_once else _with_report(value, report, now, demand)


def elapse(demand: Debounced, now: float) -> Debounced:
    """Apply a change of demand that has lasted long enough by `now`."""
    if demand.above is not None and now >= demand.above.since + RISE_S:
        return _with_report(demand.above.mean(now), demand.latest, now)
    for run, lasting_s in ((demand.clearly_below, FALL_S), (demand.below, DRIFT_S)):
        if run is not None and now >= run.since + lasting_s:
            return _with_report(run.peak, demand.latest, now)
    return demand


def _with_report(
    value: float, report: float, now: float, before: Debounced | None = None
) -> Debounced:
    """Extend the runs on the report's side of `value`, and end the others.

    `before` None: there are no runs, because `value` has just come into force.
    """
    runs = before or begin(value)
    return Debounced(
        value,
        report,
        extend_run(runs.above, report, now) if report > value else None,
        extend_run(runs.clearly_below, report, now) if report < CLEARLY * value else None,
        extend_run(runs.below, report, now) if report < value else None,
    )


@dataclass(frozen=True, slots=True)
class Starvation:
    """Debounced starvation of a reader's student.

    Attributes:
        starves: the state to report.
        since_s: start of the current window.
        starved_s: total seconds that the student had waited at the start of the window.
    """

    starves: bool = False
    since_s: float = 0.0
    starved_s: float = 0.0

    def after(self, starved_s: float, now: float) -> Starvation:
        """Return the state after another measurement.

        Starvation is reported as soon as the student has waited long enough, and its end after a
        whole window without it.

        Args:
            starved_s: total seconds that the student has waited for labels.
            now: seconds of any monotonic clock.
        """
        starves = starved_s - self.starved_s >= STARVING_S
        if now - self.since_s >= WINDOW_S:
            return Starvation(starves, now, starved_s)
        return replace(self, starves=True) if starves else self


class StarvationLog:
    """Finds changes of students' starvation that last long enough to be logged."""

    def __init__(self) -> None:
        self._starving: set[str] = set()  # as it was logged
        self._changed_at: dict[str, float] = {}  # of students whose state differs from the log

    def record(self, student_id: str, starved: bool, now: float) -> None:
        """Record the current state of a student."""
        if starved == (student_id in self._starving):
            self._changed_at.pop(student_id, None)
        else:
            self._changed_at.setdefault(student_id, now)

    def forget(self, student_id: str) -> None:
        """Forget a student that is gone, without a log entry."""
        self._starving.discard(student_id)
        self._changed_at.pop(student_id, None)

    def lasting(self, now: float) -> Iterator[tuple[str, bool]]:
        """Yield students with a lasting state that was not logged yet, and whether they starve."""
        lasting = [name for name, at in self._changed_at.items() if now - at >= LASTING_S]
        for student_id in lasting:
            del self._changed_at[student_id]
            self._starving ^= {student_id}
            yield student_id, student_id in self._starving
