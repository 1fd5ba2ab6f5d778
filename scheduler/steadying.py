"""The wish in force: a wish that flickers must not move teachers to and fro.

A report stands until the next one comes, so time alone can bring a lasting wish into force. More is
given at once to whoever starves or asks for twice as much; otherwise when every report of the last
`RISE_S` was above the wish in force: then it becomes their mean. Less comes into force when all of
the last `FALL_S` were clearly below it, or all of `DRIFT_S` below it at all: then it becomes the
greatest of them, so noise around a wish cannot ratchet it down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose

#: Seconds that a wish must stay above the one in force to replace it.
RISE_S = 15.0
#: Seconds that it must stay below `CLEARLY` of the one in force, or below it at all.
FALL_S, DRIFT_S = 30.0, 120.0
CLEARLY = 0.9
#: A wish of so many times the one in force is no noise.
LEAP = 2.0


@dataclass(frozen=True, slots=True)
class Run:
    """Reports in a row that all lie on one side of the wish in force."""

    since: float
    peak: float
    total: float
    count: int

    @property
    def mean(self) -> float:
        """Of the reports; of equal ones exactly what they say."""
        mean = self.total / self.count
        return self.peak if isclose(mean, self.peak) else mean


@dataclass(frozen=True, slots=True)
class Steady:
    """A wish in force, and what speaks against it.

    Attributes:
        value: the wish in force.
        latest: the last report, which still stands.
        above: the run of reports above `value`, while there is one.
        below: the same, clearly below it.
        beneath: the same, below it at all.
    """

    value: float
    latest: float
    above: Run | None = None
    below: Run | None = None
    beneath: Run | None = None

    @property
    def due(self) -> float | None:
        """When time alone brings another wish into force."""
        runs = ((self.above, RISE_S), (self.below, FALL_S), (self.beneath, DRIFT_S))
        return min((run.since + lasting_s for run, lasting_s in runs if run), default=None)


def begin(wish: float) -> Steady:
    """The first report is in force at once."""
    return Steady(wish, wish)


def follow(steady: Steady, wish: float, urgent: bool, now: float) -> Steady:
    """Take in a report: how much is wished for, and whether that is `urgent`: it starves."""
    steady = elapse(steady, now)  # what stood until now comes into force first
    value = steady.value
    if wish == value == steady.latest:
        return steady
    if wish == 0 or value == 0 or wish >= LEAP * value or (urgent and wish > value):
        return begin(wish)
    return _weigh(replace(steady, latest=wish), now)


def elapse(steady: Steady, now: float) -> Steady:
    """Bring into force what has lasted long enough by `now`."""
    above = steady.above
    if above is not None and now >= above.since + RISE_S:
        return _weigh(Steady(above.mean, steady.latest), now)
    for run, lasting_s in ((steady.below, FALL_S), (steady.beneath, DRIFT_S)):
        if run is not None and now >= run.since + lasting_s:
            return _weigh(Steady(run.peak, steady.latest), now)
    return steady


def _weigh(steady: Steady, now: float) -> Steady:
    """Count the latest report into the runs that it lengthens; the others are over."""
    value, wish = steady.value, steady.latest
    return Steady(
        value,
        wish,
        _longer(steady.above, wish, now) if wish > value else None,
        _longer(steady.below, wish, now) if wish < CLEARLY * value else None,
        _longer(steady.beneath, wish, now) if wish < value else None,
    )


def _longer(run: Run | None, wish: float, now: float) -> Run:
    if run is None:
        return Run(now, wish, wish, 1)
    return Run(run.since, max(run.peak, wish), run.total + wish, run.count + 1)
