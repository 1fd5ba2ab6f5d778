"""How much a teacher is sent at once: how many requests, and how many rows each of them has.

Both are settings on a ladder, of which the cheapest is found by trying neighbours, stable under
noise. The setting in force is measured, then a neighbour is tried, then the setting again: what
slows the machine down meanwhile slows both. A larger setting must be clearly cheaper to be taken,
as it needs more memory; a smaller one needs only not to be dearer. After a step the next one in
that direction is tried at once; when neither neighbour is better there is a rest, which doubles
each time and ends when the cost changes by itself.

A *window* has as few requests as keep a teacher just busy, and never below two. With one in flight
a teacher idles while its answer travels; with two the travel is hidden as long as it takes less
than the computing. Where it takes longer, or the teacher works on several requests at once, more
are needed: the window grows for as long as that brings more rows per second. What is compared is
the time from one answer to the next while the window is full. A teacher that has two, and whose
device worked for all of that time, is just busy, and nothing is tried.

Under `teacher_batch_size="auto"` the rows of a request are sought, too. A device labels more rows
per second in larger requests, up to where it is full; from there on they only take longer. So the
smallest size is sought that gives the rate: over a ladder of powers of two, by the device seconds
that the teacher's answers name. Bounds are what the model takes at most, and how long one request
may keep a device: the loss of a teacher loses that much, and the head of the line waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Final, NamedTuple, Self

#: Part of the cost that a smaller setting may add.
TIE: Final = 0.01
#: First rest after both neighbours were tried in vain, in seconds; it doubles up to the longest.
REST_S: Final = 30.0
LONGEST_REST_S: Final = 600.0
#: A trial that is not over after so many seconds is given up: it cannot be measured.
TRIAL_S: Final = 20.0
#: A cost so many times that of the last decision, or so many times below, ends a rest.
CHANGE: Final = 1.5
#: Requests in flight that every teacher may have.
LEAST: Final = 2
#: A device that worked for so much of the time from answer to answer is busy with one at a time.
BUSY: Final = 0.98
BUSIER: Final = 1.02
#: Answers over which the busy part is taken.
GAIN: Final = 1 / 16
#: A request below this part of its size, because no more rows waited, says nothing about the size.
FILLED: Final = 0.9
#: Rows of the largest request that is tried; seconds of device time that one may take.
LARGEST: Final = 1024
LONGEST_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class HillClimbRule:
    """How is climbed.

    Attributes:
        ladder: the settings, ascending (at least one).
        samples: measurements that a cost stands on.
        gain: part of the cost that a larger setting has to save.

    Raises:
        ValueError: a ladder that does not ascend.
    """

    ladder: tuple[int, ...]
    samples: int = 16
    gain: float = 0.05

    def __post_init__(self) -> None:
        if not self.ladder or sorted(set(self.ladder)) != list(self.ladder):
            raise ValueError(f"a ladder ascends and has a step, not {self.ladder}")


class HillClimb(NamedTuple):
    """Where a climber stands, and what it has measured.

    Attributes:
        rule: how it climbs.
        step: of the ladder, the one that is taken.
        trial: a neighbour that is tried now; None: `step` is in force.
        up: whether the next trial, or this one, is of the larger neighbour.
        costs: measured with the setting in force.
        before: cost of `step` before the trial; None before any.
        tried: cost of the trial that is over, while `step` is measured again.
        in_vain: directions that were tried since the last step was taken.
        since: when the setting in force came into force.
        rest_until: no trial before.
        rest_s: the latest rest.
    """

    rule: HillClimbRule
    step: int = 0
    trial: int | None = None
    up: bool = True
    costs: tuple[float, ...] = ()
    before: float | None = None
    tried: float | None = None
    in_vain: int = 0
    since: float = 0.0
    rest_until: float = 0.0
    rest_s: float = 0.0

    @classmethod
    def start(cls, rule: HillClimbRule, setting: int, now: float) -> Self:
        """Begin at the greatest step that is not above `setting`, or at the first."""
        below = [step for step, value in enumerate(rule.ladder) if value <= setting]
        return cls(rule, below[-1] if below else 0, since=now)

    @property
    def setting(self) -> int:
        """The setting in force."""
        return self.rule.ladder[self.step if self.trial is None else self.trial]

    def look(self, now: float) -> HillClimb:
        """Time goes by: a trial that cannot be measured is given up."""
        if self.trial is None or now - self.since < TRIAL_S:
            return self
        return self._replace(trial=None)._turned(now)

    def measured(self, used: int, cost: float, now: float, most: int) -> HillClimb:
        """A cost was measured.

        Args:
            used: the setting it was measured with; of another than the one in force it says
                nothing.
            cost: what is to be little (> 0).
            now: seconds of a clock that does not go back.
            most: no setting above this one is tried, and one above it is left.
        """
        rule = self.rule
        if used != self.setting or cost <= 0:
            return self
        costs = (*self.costs, cost)[-rule.samples :]
        climb = self._replace(costs=costs)
        if len(costs) < rule.samples:
            return climb
        usual, error = _mean_with_error(costs)
        if climb.trial is not None:
            # A larger one has to be better than chance.
            tried = usual + error if climb.up else usual
            return climb._replace(trial=None, tried=tried, costs=(), since=now)
        if climb.tried is not None:
            return climb._compared(climb.tried, usual, now)
        if rule.ladder[climb.step] > most and climb.step > 0:
            return HillClimb(rule, climb.step - 1, up=False, since=now)
        if climb.before is not None and not 1 / CHANGE <= usual / climb.before <= CHANGE:
            climb = climb._replace(in_vain=0, rest_until=now, rest_s=0.0)
        if now < climb.rest_until:
            return climb._replace(costs=())  # judged again once as many more have come
        return climb._replace(before=usual)._next_trial(now, most)

    def _next_trial(self, now: float, most: int) -> HillClimb:
        """Try a neighbour, if there is one in this direction that may be tried."""
        trial, ladder = self.step + (1 if self.up else -1), self.rule.ladder
        if not 0 <= trial < len(ladder) or ladder[trial] > most:
            return self._turned(now)
        return self._replace(trial=trial, costs=(), since=now)

    def _compared(self, tried: float, again: float, now: float) -> HillClimb:
        """The trial lies between two measurements of the step: it must beat the better one."""
        step_cost = min(again, again if self.before is None else self.before)
        if tried < step_cost * (1 - self.rule.gain if self.up else 1 + TIE):
            step = self.step + (1 if self.up else -1)
            # Never straight back; and whoever wanders, as noise has him, does so ever more rarely.
            return HillClimb(self.rule, step, up=self.up, in_vain=1, since=now, rest_s=self.rest_s)
        return self._replace(before=again)._turned(now)

    def _turned(self, now: float) -> HillClimb:
        """This direction was in vain: the other one is next, and after both a rest."""
        climb = self._replace(
            up=not self.up, costs=(), tried=None, in_vain=self.in_vain + 1, since=now
        )
        if climb.in_vain < 2:
            return climb
        rest_s = min(max(2 * self.rest_s, REST_S), LONGEST_REST_S)
        return climb._replace(in_vain=0, rest_s=rest_s, rest_until=now + rest_s)


def _mean_with_error(costs: tuple[float, ...]) -> tuple[float, float]:
    """The mean of costs and how far it may be off: two standard errors.

    Of all but the eighth at either end: so a pause counts little, and answers that come in pairs
    count as their mean.
    """
    cut = len(costs) // 8
    kept = sorted(costs)[cut : len(costs) - cut]
    mean = sum(kept) / len(kept)
    variance = sum((cost - mean) ** 2 for cost in kept) / len(kept)
    return mean, 2 * sqrt(variance / len(kept))


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Bounds of the window of each teacher.

    Attributes:
        least: requests in flight at first.
        most: never more; equal to `least` it is pinned, as determinism asks for.
        rule: how is climbed: a wider window has to bring 3 % more.

    Raises:
        ValueError: not 1 <= least <= most.
    """

    least: int = LEAST
    most: int = 8
    rule: HillClimbRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"needs 1 <= least <= most, not {self.least}, {self.most}")
        ladder = tuple(range(self.least, self.most + 1))
        object.__setattr__(self, "rule", HillClimbRule(ladder, samples=32, gain=0.03))


class Window(NamedTuple):
    """The window of one teacher, and what it stands on.

    Attributes:
        climb: to the window that brings most rows per second.
        size: requests that may be in flight at the teacher now.
        busy: part of the time from answer to answer that the device worked; None: not known.
    """

    climb: HillClimb
    size: int
    busy: float | None = None

    @classmethod
    def start(cls, config: WindowConfig, now: float) -> Self:
        """The window of a teacher that joins."""
        climb = HillClimb.start(config.rule, config.least, now)
        return cls(climb, climb.setting)

    def answered(
        self, rows: int, turnaround_s: float, device_s: float, full: bool, now: float
    ) -> Window:
        """An answer has come.

        Args:
            rows: of the request (>= 1).
            turnaround_s: since the answer before it (see `hedging`).
            device_s: how long the device worked on it; <= 0: it does not say.
            full: the window was full until now, so the teacher had all that it might have.
            now: seconds of a clock that does not go back.
        """
        least, most = self.climb.rule.ladder[0], self.climb.rule.ladder[-1]
        if least == most or not full or turnaround_s <= 0:
            return self
        busy = self.busy
        if device_s > 0:
            part = min(device_s / turnaround_s, 2 * BUSIER)
            busy = part if busy is None else busy + GAIN * (part - busy)
        if busy is not None and BUSY <= busy <= BUSIER and self.size == least:
            most = least
        climb = self.climb.look(now).measured(self.size, turnaround_s / rows, now, most)
        return Window(climb, climb.setting, busy)


@dataclass(frozen=True, slots=True)
class SizeConfig:
    """Bounds of the size of a request.

    Attributes:
        most_rows: what the model takes at most; None: it does not say.
        rule: how is climbed: over powers of two, and the model's own greatest size.

    Raises:
        ValueError: the model takes no row.
    """

    most_rows: int | None = None
    rule: HillClimbRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.most_rows is not None and self.most_rows < 1:
            raise ValueError(f"a request has at least 1 row, not {self.most_rows}")
        most = min(self.most_rows or LARGEST, LARGEST)
        ladder = [2**power for power in range(most.bit_length()) if 2**power < most]
        object.__setattr__(self, "rule", HillClimbRule((*ladder, most)))


class RequestSize(NamedTuple):
    """The size of the requests to one teacher: that which takes its device least time per row."""

    climb: HillClimb

    @classmethod
    def start(cls, config: SizeConfig, batch_rows: int, now: float) -> Self:
        """Begin near the rows of the student's own batch."""
        return cls(HillClimb.start(config.rule, batch_rows, now))

    @property
    def rows(self) -> int:
        """Most rows of a request now."""
        return self.climb.setting

    def answered(self, asked: int, used: int, device_s: float, now: float) -> RequestSize:
        """An answer has come.

        Args:
            asked: most rows that a request could have when this one was sent.
            used: rows that it had (>= 1).
            device_s: seconds that the device worked on it; <= 0: it does not say.
            now: seconds of a clock that does not go back.
        """
        climb = self.climb.look(now)
        if device_s > 0 and used >= FILLED * asked:
            seconds_per_row = device_s / used
            most = int(min(LONGEST_S / seconds_per_row, climb.rule.ladder[-1]))
            climb = climb.measured(asked, seconds_per_row, now, most)
        return RequestSize(climb)
