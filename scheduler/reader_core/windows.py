"""Window (number of requests in flight) and request size (rows) of each teacher.

Both settings are found by hill climbing on a ladder of values; it is stable under noise. The
current setting is measured, then a neighbour, then the current setting again, so that a slowdown of
the machine affects both. A larger setting must be clearly cheaper, as it needs more memory; a
smaller setting may cost the same. After a step, the next one in the same direction is tried at
once. When neither neighbour is better, the search rests. Each rest is twice as long as the last
one, up to `LONGEST_REST_S`, and ends early if the cost changes.

A *window* has the fewest requests that keep a teacher busy, by default at least two. With one
request in flight a teacher idles while its answer travels; two requests hide the transfer if it is
shorter than the computation. If the transfer is longer, or the teacher processes several requests
at once, more requests are needed: the window grows while that brings more rows per second, and
shrinks when the teacher has no room for a request. The measured cost is the time from one answer to
the next, per row, while the window is full. If the window is the smallest and the device worked all
of that time, the teacher is just busy, and no other window is tried.

With `request_rows="auto"` the rows of a request are optimised too. A device labels more rows
per second in larger requests until it is full; larger requests only take longer. So the smallest
size with the full rate is sought, on powers of two, by the device seconds of the answers. The size
is limited by the model, and by the seconds that one request may occupy a device: a teacher that is
lost loses up to that much work on a request, and the batch that the student waits for may have to
wait that long.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple, Self

#: Relative cost that a smaller setting may add.
ALLOWED_EXTRA_COST: Final = 0.01
#: First rest in seconds after neither neighbour was better, and the longest rest.
REST_S: Final = 30.0
LONGEST_REST_S: Final = 600.0
#: Seconds after which a trial is given up, because it cannot be measured.
TRIAL_S: Final = 20.0
#: A cost that changed by this factor since the last decision ends a rest.
CHANGE: Final = 1.5
#: Smallest window by default.
SMALLEST_WINDOW: Final = 2
#: A device that worked for `BUSY_FROM` to `BUSY_TO` of the time between answers processes one
#: request at a time and never idles.
BUSY_FROM: Final = 0.98
BUSY_TO: Final = 1.02
#: Weight of the newest answer in the busy share.
GAIN: Final = 1 / 16
#: A request filled to less than this share of its size is no measurement of the size.
FILLED: Final = 0.9
#: With `request_rows="auto"`: largest tried request in rows, and longest device time of a request.
MOST_ROWS: Final = 1024
LONGEST_REQUEST_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class HillClimbRule:
    """Settings of a search.

    Attributes:
        ladder: the possible settings, ascending (at least one).
        measurements: how many measurements make up the cost of a setting.
        gain: share of the cost that a larger setting must save.
    """

    ladder: tuple[int, ...]
    measurements: int = 16
    gain: float = 0.05


class HillClimb(NamedTuple):
    """State of a search.

    Attributes:
        rule: its settings.
        step: index of the current setting on the ladder.
        trial: index of the neighbour that is tried now; None: `step` is in force.
        up: the current or next trial is the larger neighbour.
        costs: measurements of the setting in force.
        before: cost of `step` before the trial; None: not measured.
        tried: cost of the finished trial while `step` is measured again; None: it is not.
        directions_tried: number of directions that were tried since the last step.
        since: time at which the current setting came into force.
        rest_until: no trial before this time.
        rest_s: the latest rest.
    """

    rule: HillClimbRule
    step: int = 0
    trial: int | None = None
    up: bool = True
    costs: tuple[float, ...] = ()
    before: float | None = None
    tried: float | None = None
    directions_tried: int = 0
    since: float = 0.0
    rest_until: float = 0.0
    rest_s: float = 0.0

    @classmethod
    def start(cls, rule: HillClimbRule, setting: int, now: float) -> Self:
        """Begin at the largest value of the ladder up to `setting`, or at the smallest value."""
        below = [step for step, value in enumerate(rule.ladder) if value <= setting]
        return cls(rule, below[-1] if below else 0, since=now)

    @property
    def setting(self) -> int:
        return self.rule.ladder[self.step if self.trial is None else self.trial]

    def tick(self, now: float) -> HillClimb:
        """Give up a trial that takes too long."""
        if self.trial is None or now - self.since < TRIAL_S:
            return self
        return self._replace(trial=None)._turned(now)

    def refused(self, now: float) -> HillClimb:
        """Leave a setting for which the teacher has no room: end its trial, or take a step down.

        The next larger setting is tried again after a rest.
        """
        if self.trial is not None and self.trial > self.step:
            return self._replace(trial=None)._turned(now)
        step = max(0, self.step - 1)
        return HillClimb(
            self.rule, step, up=False, directions_tried=1, since=now, rest_s=self.rest_s
        )

    def measured(self, used: int, cost: float, now: float, most: int) -> HillClimb:
        """Record a measured cost.

        Args:
            used: the measured setting; unless it is the current one, the cost is ignored.
            cost: the cost to minimise (> 0).
            now: seconds of a clock that does not go back.
            most: largest allowed setting; from larger ones the search steps down.
        """
        rule = self.rule
        if used != self.setting or cost <= 0:
            return self
        costs = (*self.costs, cost)[-rule.measurements :]
        climb = self._replace(costs=costs)
        if len(costs) < rule.measurements:
            return climb
        mean, error = _mean_with_error(costs)
        if climb.trial is not None:
            # A larger setting must be better by more than its error.
            tried = mean + error if climb.up else mean
            return climb._replace(trial=None, tried=tried, costs=(), since=now)
        if climb.tried is not None:
            return climb._compared(climb.tried, mean, now)
        if rule.ladder[climb.step] > most and climb.step > 0:
            return HillClimb(rule, climb.step - 1, up=False, since=now)
        if climb.before is not None and not 1 / CHANGE <= mean / climb.before <= CHANGE:
            climb = climb._replace(directions_tried=0, rest_until=now, rest_s=0.0)
        if now < climb.rest_until:
            return climb._replace(costs=())  # measure again
        return climb._replace(before=mean)._next_trial(now, most)

    def _next_trial(self, now: float, most: int) -> HillClimb:
        """Try the neighbour in the current direction, if it exists and is allowed."""
        trial, ladder = self.step + (1 if self.up else -1), self.rule.ladder
        if not 0 <= trial < len(ladder) or ladder[trial] > most:
            return self._turned(now)
        return self._replace(trial=trial, costs=(), since=now)

    def _compared(self, tried: float, again: float, now: float) -> HillClimb:
        """Compare the cost of a trial with the lower of the step's costs before and after it."""
        step_cost = min(again, again if self.before is None else self.before)
        if tried < step_cost * (1 - self.rule.gain if self.up else 1 + ALLOWED_EXTRA_COST):
            step = self.step + (1 if self.up else -1)
            # Do not try the previous step again. Keep `rest_s`, so that steps by noise become rare.
            return HillClimb(
                self.rule, step, up=self.up, directions_tried=1, since=now, rest_s=self.rest_s
            )
        return self._replace(before=again)._turned(now)

    def _turned(self, now: float) -> HillClimb:
        """Turn to the other direction, or rest after both were tried."""
        climb = self._replace(
            up=not self.up,
            costs=(),
            tried=None,
            directions_tried=self.directions_tried + 1,
            since=now,
        )
        if climb.directions_tried < 2:
            return climb
        rest_s = min(max(2 * self.rest_s, REST_S), LONGEST_REST_S)
        return climb._replace(directions_tried=0, rest_s=rest_s, rest_until=now + rest_s)


def _mean_with_error(costs: tuple[float, ...]) -> tuple[float, float]:
    """Return the mean of costs and two standard errors.

    The eighth with the lowest and the eighth with the highest costs are left out, so a pause has
    little effect. A mean, because answers may come in pairs: one cost is then short, one is long.
    """
    cut = len(costs) // 8
    kept = sorted(costs)[cut : len(costs) - cut]
    mean = sum(kept) / len(kept)
    variance = sum((cost - mean) ** 2 for cost in kept) / len(kept)
    return mean, 2 * sqrt(variance / len(kept))


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Bounds of each teacher's window: 1 <= least <= most.

    Attributes:
        least: initial and smallest window.
        most: largest window; if it equals `least`, the window is fixed, as determinism requires.
    """

    least: int = SMALLEST_WINDOW
    most: int = 8


class Window(NamedTuple):
    """The window of one teacher.

    Attributes:
        climb: the search for the window with the most rows per second.
        size: limit of requests in flight now.
        busy: share of the time between answers in which the device worked; None: unknown.
    """

    climb: HillClimb
    size: int
    busy: float | None = None

    @classmethod
    def start(cls, config: WindowConfig, now: float) -> Self:
        """Return the window of a teacher that joins; a larger one must save 3 % of the time."""
        rule = HillClimbRule(
            tuple(range(config.least, config.most + 1)), measurements=32, gain=0.03
        )
        climb = HillClimb.start(rule, config.least, now)
        return cls(climb, climb.setting)

    def answered(
        self, rows: int, turnaround_s: float, device_s: float, full: bool, now: float
    ) -> Window:
        """Return the window after an answer.

        Args:
            rows: rows of the request (>= 1).
            turnaround_s: seconds since the previous answer (see `hedging`).
            device_s: seconds that the device worked on it; <= 0: unknown.
            full: the window was full until now, so the teacher was not short of requests.
            now: seconds of a clock that does not go back.
        """
        least, most = self.climb.rule.ladder[0], self.climb.rule.ladder[-1]
        if least == most or not full or turnaround_s <= 0:
            return self
        busy = self.busy
        if device_s > 0:
            share = min(device_s / turnaround_s, 2 * BUSY_TO)
            busy = share if busy is None else busy + GAIN * (share - busy)
        if busy is not None and BUSY_FROM <= busy <= BUSY_TO and self.size == least:
            most = least
        climb = self.climb.tick(now).measured(self.size, turnaround_s / rows, now, most)
        return Window(climb, climb.setting, busy)

    def refused(self, now: float) -> Window:
        """Return the window after the teacher had no room for a request."""
        climb = self.climb.refused(now)
        return self._replace(climb=climb, size=climb.setting)


class RequestSize(NamedTuple):
    """The request size of one teacher, searched by device time per row."""

    climb: HillClimb

    @classmethod
    def start(cls, most_rows: int | None, batch_rows: int, now: float) -> Self:
        """Begin near the rows of the student's own batch.

        Args:
            most_rows: limit of rows that the model takes (>= 1); None: unknown.
            batch_rows: rows of the student's batch.
            now: seconds of a clock that does not go back.
        """
        most = min(most_rows or MOST_ROWS, MOST_ROWS)
        powers = [2**power for power in range(most.bit_length()) if 2**power < most]
        return cls(HillClimb.start(HillClimbRule((*powers, most)), batch_rows, now))

    @property
    def rows(self) -> int:
        """Limit of rows per request now."""
        return self.climb.setting

    def answered(self, limit: int, used: int, device_s: float, now: float) -> RequestSize:
        """Return the size after an answer.

        Args:
            limit: value of `rows` when the request was sent.
            used: rows of the request (>= 1).
            device_s: seconds that the device worked on it; <= 0: unknown.
            now: seconds of a clock that does not go back.
        """
        climb = self.climb.tick(now)
        if device_s > 0 and used >= FILLED * limit:
            seconds_per_row = device_s / used
            most = int(min(LONGEST_REQUEST_S / seconds_per_row, climb.rule.ladder[-1]))
            climb = climb.measured(limit, seconds_per_row, now, most)
        return RequestSize(climb)
