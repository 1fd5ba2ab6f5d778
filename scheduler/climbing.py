"""Finding the cheapest setting on a ladder of them by trying neighbours, stable under noise.

The setting in force is measured, then a neighbour is tried, then the setting again: what slows the
machine down meanwhile slows both. A larger setting must be clearly cheaper to be taken, as it needs
more memory; a smaller one needs only not to be dearer. After a step the next one in that direction
is tried at once; when neither neighbour is better there is a rest, which doubles each time and ends
when the cost changes by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ClimbRule:
    """How is climbed.

    Attributes:
        ladder: the settings, ascending (at least one).
        samples: measurements that a cost stands on.
        gain: part of the cost that a larger setting has to save.
        tie: part of the cost that a smaller one may add.
        rest_s: first rest after both neighbours were tried in vain.
        longest_rest_s: the rest doubles up to this.
        trial_s: a trial that is not over after so long is given up: it cannot be measured.
        change: a cost so many times that of the last decision, or so many times below, ends a rest.

    Raises:
        ValueError: a ladder that does not ascend, or a number that makes no sense.
    """

    ladder: tuple[int, ...]
    samples: int = 16
    gain: float = 0.05
    tie: float = 0.01
    rest_s: float = 30.0
    longest_rest_s: float = 600.0
    trial_s: float = 20.0
    change: float = 1.5

    def __post_init__(self) -> None:
        if not self.ladder or sorted(set(self.ladder)) != list(self.ladder):
            raise ValueError(f"a ladder ascends and has a step, not {self.ladder}")
        if not (self.samples >= 1 and self.tie >= 0 and 0 < self.gain < 1 < self.change):
            raise ValueError(f"needs samples >= 1, tie >= 0, 0 < gain < 1 < change: {self}")
        if not 0 < self.rest_s <= self.longest_rest_s or self.trial_s <= 0:
            raise ValueError(f"times are above 0 s: {self}")


class Climb(NamedTuple):
    """Where a climber stands, and what it has measured.

    Attributes:
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


def start(setting: int, rule: ClimbRule, now: float) -> Climb:
    """Begin at the greatest step that is not above `setting`, or at the first."""
    below = [step for step, value in enumerate(rule.ladder) if value <= setting]
    return Climb(step=below[-1] if below else 0, since=now)


def setting(climb: Climb, rule: ClimbRule) -> int:
    """The setting in force."""
    return rule.ladder[climb.step if climb.trial is None else climb.trial]


def look(climb: Climb, now: float, rule: ClimbRule) -> Climb:
    """Time goes by: a trial that cannot be measured is given up."""
    if climb.trial is None or now - climb.since < rule.trial_s:
        return climb
    return _turned(climb._replace(trial=None), now, rule)


def measured(climb: Climb, used: int, cost: float, now: float, rule: ClimbRule, most: int) -> Climb:
    """A cost was measured.

    Args:
        climb: where the climber stood.
        used: the setting it was measured with; of another than the one in force it says nothing.
        cost: what is to be little (> 0).
        now: seconds of a clock that does not go back.
        rule: the same at each call.
        most: no setting above this one is tried, and one above it is left.
    """
    if used != setting(climb, rule) or cost <= 0:
        return climb
    costs = (*climb.costs, cost)[-rule.samples :]
    climb = climb._replace(costs=costs)
    if len(costs) < rule.samples:
        return climb
    usual = _usual(costs)
    if climb.trial is not None:
        # A larger one has to be better than chance.
        tried = usual + _error(costs) if climb.up else usual
        return climb._replace(trial=None, tried=tried, costs=(), since=now)
    if climb.tried is not None:
        return _compared(climb, climb.tried, usual, now, rule)
    if rule.ladder[climb.step] > most and climb.step > 0:
        return Climb(step=climb.step - 1, up=False, since=now)
    changed = climb.before is not None and not (
        1 / rule.change <= usual / climb.before <= rule.change
    )
    if changed:
        climb = climb._replace(in_vain=0, rest_until=now, rest_s=0.0)
    if now < climb.rest_until:
        return climb
    return _next_trial(climb._replace(before=usual), now, rule, most)


def _next_trial(climb: Climb, now: float, rule: ClimbRule, most: int) -> Climb:
    """Try a neighbour, if there is one in this direction that may be tried."""
    trial = climb.step + (1 if climb.up else -1)
    if not 0 <= trial < len(rule.ladder) or rule.ladder[trial] > most:
        return _turned(climb, now, rule)
    return climb._replace(trial=trial, costs=(), since=now)


def _compared(climb: Climb, tried: float, again: float, now: float, rule: ClimbRule) -> Climb:
    """The trial lies between two measurements of the step: it must hold against the better one."""
    step_cost = min(again, again if climb.before is None else climb.before)
    limit = step_cost * (1 - rule.gain if climb.up else 1 + rule.tie)
    if tried < limit:
        step = climb.step + (1 if climb.up else -1)
        # Never straight back; and whoever wanders, as noise has him, does so ever more rarely.
        return Climb(step=step, up=climb.up, in_vain=1, since=now, rest_s=climb.rest_s)
    return _turned(climb._replace(before=again), now, rule)


def _turned(climb: Climb, now: float, rule: ClimbRule) -> Climb:
    """This direction was in vain: the other one is next, and after both a rest."""
    climb = climb._replace(
        up=not climb.up, costs=(), tried=None, in_vain=climb.in_vain + 1, since=now
    )
    if climb.in_vain < 2:
        return climb
    rest_s = min(max(2 * climb.rest_s, rule.rest_s), rule.longest_rest_s)
    return climb._replace(in_vain=0, rest_s=rest_s, rest_until=now + rest_s)


def _usual(costs: tuple[float, ...]) -> float:
    """The mean of those that are kept.

    So a pause counts little, and answers that come in pairs count as their mean.
    """
    kept = _kept(costs)
    return sum(kept) / len(kept)


def _error(costs: tuple[float, ...]) -> float:
    """How far that mean may be off: two standard errors."""
    kept, mean = _kept(costs), _usual(costs)
    variance = sum((cost - mean) ** 2 for cost in kept) / len(kept)
    return 2 * sqrt(variance / len(kept))


def _kept(costs: tuple[float, ...]) -> list[float]:
    """All but the eighth at either end."""
    cut = len(costs) // 8
    return sorted(costs)[cut : len(costs) - cut]
