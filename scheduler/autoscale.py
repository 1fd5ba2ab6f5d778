"""Autoscaling: the number of teachers that a service should have.

The leader of a service and the simulator both build their `ServiceLoad` with `load_of`, so they
decide in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, exp, inf, isfinite
from typing import NamedTuple

from .debounce import DeviationRun, extend_run
from .rates import rounded_up
from .units import NotNegative, SecondsOrZero

#: Default and largest `max`: in effect no limit.
NO_BOUND = 100_000
#: Relative rounding error of a price.
_PRICE_ROUNDING = 1e-9
#: Students that do not starve now, and starved for at most this share of their time, need no more
#: teachers.
TOLERATED = 0.05
#: Labels are plentiful if students paused pulling for at least this share of their time.
PLENTY = 0.25
#: With plentiful labels, teachers beyond this multiple of `ServiceLoad.ratio` are not needed.
SPARE = 1.25
#: Factor by which the number grows at least while students starve.
GROWTH = 1.5
#: Separates the reason for a number from the limit that applies to it.
_SEPARATOR = "; "
#: Rounding error of a mean over time, in teachers.
_ROUNDING = 1e-6
#: A number is clearly smaller if it is smaller by at least this share, and at least by 1.
CLEARLY = 0.1
#: `AutoscaleMemory.learned_min` no longer applies once the ratio is below this part of
#: `learned_ratio`.
OTHER_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """Settings of one service's autoscaling.

    Attributes:
        min: lower limit of the number of teachers while any student exists.
        max: upper limit of the number of teachers.
        freeze_s: shortest time in seconds between two changes; a lower `limit` applies at once.
        up_after_s: seconds for which more teachers must have been needed before the number rises.
            It rises without this wait if students starve, or if it is 0 or below `min`.
        down_after_s: seconds for which fewer teachers must have been enough before it falls.
        idle_to_zero_s: seconds without any student after which it falls to 0.
        price_per_teacher_hour: price of one teacher, in any currency; 0: free.
        cost_ceiling_per_hour: highest price of all teachers together; None: no limit.

    Raises:
        ValueError: a setting is out of range.
    """

    min: int = 1
    max: int = NO_BOUND
    freeze_s: SecondsOrZero = 30.0
    up_after_s: SecondsOrZero = 10.0
    down_after_s: SecondsOrZero = 60.0
    idle_to_zero_s: SecondsOrZero = 120.0
    price_per_teacher_hour: NotNegative = 0.0
    cost_ceiling_per_hour: NotNegative | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max <= NO_BOUND:
            raise ValueError(
                f"needs 0 <= min <= max <= {NO_BOUND}, not min {self.min}, max {self.max}"
            )
        for name in ("freeze_s", "up_after_s", "down_after_s", "idle_to_zero_s"):
            if not 0 <= getattr(self, name) <= 86_400:
                raise ValueError(
                    f"{name} must be between 0 and 86400 seconds, not {getattr(self, name):g}"
                )
        price, ceiling = self.price_per_teacher_hour, self.cost_ceiling_per_hour
        if not (isfinite(price) and price >= 0):
            raise ValueError(f"a price must be finite and 0 or more, not {price:g}")
        if ceiling is not None and not (isfinite(ceiling) and ceiling >= 0):
            raise ValueError(f"a cost ceiling must be finite and 0 or more, not {ceiling:g}")

    @property
    def affordable(self) -> int:
        """Number of teachers within the cost ceiling."""
        price, ceiling = self.price_per_teacher_hour, self.cost_ceiling_per_hour
        if ceiling is None or price == 0 or ceiling >= price * NO_BOUND:
            return NO_BOUND
        return int(ceiling / price * (1 + _PRICE_ROUNDING))  # 0.3 pays for three at 0.1

    @property
    def limit(self) -> int:
        """Largest permitted number of teachers: at most `max`, and within the cost ceiling."""
        return min(self.max, self.affordable)


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """The current state of one service.

    It leaves out the waits of students that are cut off, as more teachers would not change them.

    Attributes:
        students: number of students.
        serving: teachers that may be assigned.
        starting: further teachers that are starting, or not admitted yet.
        wanted: sum of the teachers that students want; see `StudentLoad.own_want`.
        starving: number of students that starve now.
        starved_s: total seconds that students have waited for labels.
        blocked_s: total seconds that students paused pulling because they had enough labels.
        t_t_s: seconds per sample of the average teacher; 0: unknown.
        demand_per_s: samples per second that all students would train without waiting for labels,
            the sum of 1 / t_s; 0: the times of a student are unknown.
        recovering: members may still return, so the number must not fall.
    """

    students: int
    serving: int
    starting: int = 0
    wanted: int = 0
    starving: int = 0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    t_t_s: float = 0.0
    demand_per_s: float = 0.0
    recovering: bool = False

    @property
    def ratio(self) -> float | None:
        """Number of teachers that the measured times require, not rounded; None: unknown."""
        product = self.t_t_s * self.demand_per_s
        return product if 0 < product < inf else None


@dataclass(frozen=True, slots=True)
class Desired:
    """The number of teachers that a service should have.

    Attributes:
        count: the number.
        reason: explanation; it changes only if the number, or the limit that applies to it, does.
    """

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class AutoscaleMemory:
    """State between two decisions.

    A leader that takes over from another leader knows only `desired`, `changed_at` and `reason`.

    Attributes:
        desired: latest number; None: none yet.
        changed_at: time of its latest change.
        reason: reason of that change.
        now: time of the latest decision; None: there was none.
        starved_s, blocked_s: totals at the latest decision.
        starved_share, blocked_share: shares of the students' time, averaged over about the last
            `up_after_s` and `down_after_s` respectively.
        idle_since: since when there is no student; None: there are students.
        above: the latest needed numbers, as long as they exceed the desired one.
        below: the latest sufficient numbers, as long as they are clearly below the desired one.
        learned_min: students starved with one teacher fewer than this; 0: not observed.
        learned_ratio: the load's `ratio` at that time.
    """

    desired: int | None = None
    changed_at: float = -inf
    reason: str = ""
    now: float | None = None
    starved_s: float = 0.0
    blocked_s: float = 0.0
    starved_share: float = 0.0
    blocked_share: float = 0.0
    idle_since: float | None = None
    above: DeviationRun | None = None
    below: DeviationRun | None = None
    learned_min: int = 0
    learned_ratio: float = 0.0


def decide(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> tuple[Desired, AutoscaleMemory]:
    """Decide how many teachers the service should have.

    The number never exceeds `config.limit`: it falls to this limit at once if the settings changed.
    Otherwise it changes at most once in `config.freeze_s`.

    Args:
        view: the current state of the service.
        memory: memory of the previous decision.
        now: seconds of a clock that does not go back. Call this about once a second, or less often.
        config: the settings.
    """
    if memory.desired is None:  # begin with the teachers that exist
        existing = min(view.serving + view.starting, config.limit)
        memory = replace(memory, desired=existing, reason="the teachers that exist")
    memory = _observe(view, memory, now, config)
    target, why = _target(view, memory, now, config)
    current = memory.desired or 0
    frozen = now - memory.changed_at < config.freeze_s
    if current > config.limit:
        target, why = config.limit, "the settings allow no more"
    elif frozen or (view.recovering and target < current):
        target = current
    if target != current:
        memory = replace(memory, desired=target, changed_at=now, reason=why, above=None, below=None)
    return Desired(target, memory.reason + _limit(view, target, memory, config)), memory


def resumed(count: int, reason: str, changed_at: float) -> AutoscaleMemory:
    """Return the memory of a leader that takes over from another one.

    Args:
        count: the latest desired number.
        reason: its reason.
        changed_at: time of its latest change, by the clock of `decide`.
    """
    return AutoscaleMemory(
        desired=count, changed_at=changed_at, reason=reason.partition(_SEPARATOR)[0]
    )


def needed(view: ServiceLoad, memory: AutoscaleMemory) -> int:
    """Return the fewest teachers that suffice, as far as known; ignores the settings' bounds."""
    ratio, current = view.ratio, memory.desired or 0
    fewest = view.wanted if ratio is None else rounded_up(ratio)
    if _starves(view, memory):
        fewest = max(fewest, current + 1, ceil(current * GROWTH))
    return min(max(fewest, memory.learned_min, 1), view.wanted)


def enough(view: ServiceLoad, memory: AutoscaleMemory) -> int:
    """Return the largest useful number of teachers, as far as known; ignores the settings' bounds.

    If labels are plentiful, this is above the number `needed` by a margin; else it is the number
    that students want.
    """
    ratio = view.ratio
    if ratio is None or memory.blocked_share < PLENTY or _starves(view, memory):
        return view.wanted
    return min(max(rounded_up(ratio * SPARE), memory.learned_min, 1), view.wanted)


def _starves(view: ServiceLoad, memory: AutoscaleMemory) -> bool:
    """Whether students starve although all desired teachers serve."""
    if view.serving < (memory.desired or 0):
        return False
    return view.starving > 0 or memory.starved_share > TOLERATED


def _observe(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> AutoscaleMemory:
    """Update the averages, `learned_min`, and the runs `above` and `below`."""
    span_s = 0.0 if memory.now is None else max(now - memory.now, 0.0)

    def share(before: float, grown_s: float, over_s: float) -> float:
        if span_s == 0 or view.students == 0:
            return before if view.students else 0.0
        # Totals may grow by more seconds than have passed since the last decision.
        latest = max(grown_s, 0.0) / (span_s * view.students)
        weight = exp(-span_s / over_s) if over_s > 0 else 0.0
        return min(weight * before + (1 - weight) * latest, 1.0)

    idle_since = memory.idle_since if memory.idle_since is not None else now
    memory = replace(
        memory,
        now=now,
        starved_s=view.starved_s,
        blocked_s=view.blocked_s,
        starved_share=share(
            memory.starved_share, view.starved_s - memory.starved_s, config.up_after_s
        ),
        blocked_share=share(
            memory.blocked_share, view.blocked_s - memory.blocked_s, config.down_after_s
        ),
        idle_since=None if view.students else idle_since,
    )
    return _extend_runs(view, _learn(view, memory), now, config)


def _learn(view: ServiceLoad, memory: AutoscaleMemory) -> AutoscaleMemory:
    """Raise `learned_min` if students starve although the measured times require no more teachers.

    Forget it once the measured times require clearly fewer.
    """
    ratio = view.ratio
    if memory.learned_min and (
        not view.students or ratio is None or ratio < OTHER_RATIO * memory.learned_ratio
    ):
        memory = replace(memory, learned_min=0, learned_ratio=0.0)
    current = memory.desired or 0
    if ratio is not None and current >= memory.learned_min and _starves(view, memory):
        learned_min = min(current + 1, view.wanted)
        if learned_min > max(memory.learned_min, rounded_up(ratio)):
            memory = replace(memory, learned_min=learned_min, learned_ratio=ratio)
    return memory


def _extend_runs(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> AutoscaleMemory:
    """Add the current numbers to the runs `above` and `below`; end a run that they break."""
    if not view.students:
        return replace(memory, above=None, below=None)
    current = memory.desired or 0
    fewest, largest = _range(view, memory, config)
    clearly_fewer = current - max(1, ceil(current * CLEARLY))
    return replace(
        memory,
        above=extend_run(memory.above, fewest, now) if fewest > current else None,
        below=extend_run(memory.below, largest, now) if largest <= clearly_fewer else None,
    )


def _range(view: ServiceLoad, memory: AutoscaleMemory, config: AutoscaleConfig) -> tuple[int, int]:
    """Return the needed and the sufficient number, within the bounds of the settings."""
    floor = min(config.min, config.limit)
    fewest, largest = needed(view, memory), enough(view, memory)
    return min(max(fewest, floor), config.limit), min(max(largest, floor), config.limit)


def _target(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> tuple[int, str]:
    """Return the right number, even if no change is allowed now, and why it differs from before."""
    current = memory.desired or 0
    if view.students == 0:
        since = now if memory.idle_since is None else memory.idle_since
        if now - since >= config.idle_to_zero_s:
            return 0, f"no student for {config.idle_to_zero_s:g} s"
        return current, ""
    fewest, largest = _range(view, memory, config)
    if current == 0:
        return largest, f"{_students(view)} and no teacher: {_wants(view)}"
    if fewest > current and _starves(view, memory):
        return fewest, f"{_students(view)}, {_starving(view)}: {_wants(view)}"
    above, below = memory.above, memory.below
    if above is not None and now - above.since >= config.up_after_s:
        target = min(max(ceil(above.mean(now) - _ROUNDING), current + 1), config.limit)
        return target, f"{_students(view)} needed more for {config.up_after_s:g} s: {_wants(view)}"
    if current < min(config.min, config.limit):
        return fewest, f"{_students(view)}, and min is {config.min}"
    if below is not None and now - below.since >= config.down_after_s:
        why = f"fewer were enough for {config.down_after_s:g} s: {_students(view)} {_wants(view)}"
        return min(int(below.peak), config.limit), why
    return current, ""


def _students(view: ServiceLoad) -> str:
    return "1 student" if view.students == 1 else f"{view.students} students"


def _starving(view: ServiceLoad) -> str:
    return f"{view.starving or 'some'} of which starve" if view.students > 1 else "which starves"


def _wants(view: ServiceLoad) -> str:
    wants = f"{'wants' if view.students == 1 else 'want'} {view.wanted}"
    return wants if view.ratio is None else f"{wants} ({view.ratio:.2f} by the measured times)"


def _limit(view: ServiceLoad, target: int, memory: AutoscaleMemory, config: AutoscaleConfig) -> str:
    """Describe the setting that keeps the number below the needed one; empty: none does."""
    if not view.students or target < config.limit or needed(view, memory) <= config.limit:
        return ""
    if config.affordable < config.max:
        return f"{_SEPARATOR}the cost ceiling pays for no more than {config.limit}"
    return f"{_SEPARATOR}max is {config.limit}"


class StudentLoad(NamedTuple):
    """Report of one student.

    Attributes:
        want: number of teachers that it asks for.
        t_t_s, t_s_s: seconds per sample of its average teacher and of its step; 0: unknown.
        starves: it starves now.
        unreachable: number of its teachers that give it no labels.
        cut_off: it reaches none of its teachers, so more teachers would hardly help.
    """

    want: float
    t_t_s: float
    t_s_s: float
    starves: bool
    unreachable: float = 0.0
    cut_off: bool = False

    @property
    def own_want(self) -> float:
        """The want; if the student is cut off, without replacements of unreachable teachers.

        For a student that is cut off, `flow.decide` adds one teacher for each unreachable one, but
        at most as many as the student wants itself.
        """
        return max(self.want - self.unreachable, self.want / 2) if self.cut_off else self.want


@dataclass(frozen=True, slots=True)
class WaitTotals:
    """Total waiting times of one student, or of all students including those that have left.

    Attributes:
        starved_s, blocked_s: as in `ServiceLoad`.
        cut_off: as in `StudentLoad`; False in the totals of all students.
    """

    starved_s: float = 0.0
    blocked_s: float = 0.0
    cut_off: bool = False

    def grown(self, before: WaitTotals, now: WaitTotals) -> WaitTotals:
        """Return these totals plus the growth of one student's totals between two of its reports.

        Nothing is added if the student is cut off, because its waits then do not depend on the
        number of teachers.
        """
        if before.cut_off or now.cut_off:
            return self
        return WaitTotals(
            self.starved_s + max(now.starved_s - before.starved_s, 0.0),
            self.blocked_s + max(now.blocked_s - before.blocked_s, 0.0),
        )


def load_of(
    students: Iterable[StudentLoad],
    waits: WaitTotals,
    *,
    serving: int,
    starting: int = 0,
    recovering: bool = False,
) -> ServiceLoad:
    """Return the load of a service.

    `students` has the latest report of each student, `waits` the total waits of all; the other
    arguments are those of `ServiceLoad`. Its `t_t_s` is the mean over the students, weighted by the
    samples per second that each trains, and unknown unless every student reports both of its times.
    """
    loads = tuple(students)
    known = bool(loads) and all(load.t_t_s > 0 and load.t_s_s > 0 for load in loads)
    demand_per_s = sum(1 / load.t_s_s for load in loads) if known else 0.0
    ratio = sum(load.t_t_s / load.t_s_s for load in loads) if known else 0.0
    return ServiceLoad(
        students=len(loads),
        serving=serving,
        starting=starting,
        wanted=int(sum(load.own_want for load in loads)),
        starving=sum(load.starves and not load.cut_off for load in loads),
        starved_s=waits.starved_s,
        blocked_s=waits.blocked_s,
        t_t_s=ratio / demand_per_s if demand_per_s > 0 else 0.0,
        demand_per_s=demand_per_s,
        recovering=recovering,
    )


def may_begin(*, recovering: bool, students: int, holding: int, teachers: int) -> bool:
    """Whether a leader may decide for the first time how many teachers a service should have.

    While members return, perhaps to an emptied registry, the leader waits: it cannot count all. A
    service that has students, but no teachers, counts as new if no student holds a teacher: it has
    had no teachers that could return.

    Args:
        recovering: earlier members may be missing.
        students: number of known students.
        holding: number of known students that hold teachers.
        teachers: number of known teachers.
    """
    is_new = students > 0 and not holding and not teachers
    return is_new or not recovering
