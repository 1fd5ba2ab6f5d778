"""How many teachers a service should have: from what its students want, and how they fare.

Two numbers bound what is right. *Needed* is the fewest teachers that the students' measured times
ask for, and more while students starve. *Enough* is as many as they want, and fewer while they have
labels in plenty. The number that is desired stays while it lies between both; it rises when more
has been needed, and falls when less has been enough, for as long as the settings say. So noise
moves nothing, and no number is changed twice within one freeze window.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, exp

from .autoscale_values import (
    NO_BOUND,
    AutoscaleConfig,
    AutoscaleMemory,
    Desired,
    Run,
    ServiceLoad,
)
from .ratio import rounded_up

__all__ = [
    "NO_BOUND",
    "AutoscaleConfig",
    "AutoscaleMemory",
    "Desired",
    "ServiceLoad",
    "decide",
    "resumed",
]

#: Share of the students' time that they may starve without asking for more teachers.
TOLERATED = 0.05
#: Share of their time that they must have paused, for labels to be in plenty.
PLENTY = 0.25
#: Labels in plenty, these many more teachers are kept than the measured times ask for.
SPARE = 1.25
#: How much the number grows at once when students starve and no ratio says how many they need.
GROWTH = 1.5
#: What stands between a reason and what bounds the number.
_BOUND = "; "
#: Of a mean over time, in teachers.
_ROUNDING = 1e-6
#: Only a number that is smaller by this share is clearly smaller, and by 1 at least.
CLEARLY = 0.1
#: A ratio that fell so far below what it was is another one: what was learnt of it is void.
OTHER_RATIO = 0.8


def decide(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> tuple[Desired, AutoscaleMemory]:
    """How many teachers the service should have from now on.

    The number never exceeds `config.most`, and changes at most once in `config.freeze_s`; only
    when the settings themselves have changed and it exceeds them it falls at once.

    Args:
        view: the service as it is.
        memory: what the last decision left.
        now: seconds of a clock that does not go back; called about once a second, or more seldom.
        config: the settings.
    """
    if memory.desired is None:  # what is there was started by somebody: begin with that
        there = min(view.serving + view.starting, config.most)
        memory = replace(memory, desired=there, reason="as many as there are")
    memory = _observe(view, memory, now, config)
    target, why = _aim(view, memory, now, config)
    current = memory.desired or 0
    frozen = now - memory.changed_at < config.freeze_s
    if current > config.most:
        target, why = config.most, "the settings allow no more"
    elif frozen or (view.recovering and target < current):
        target = current
    if target != current:
        memory = replace(memory, desired=target, changed_at=now, reason=why, above=None, below=None)
    return Desired(target, memory.reason + _bound(view, target, memory, config)), memory


def resumed(count: int, reason: str, changed_at: float) -> AutoscaleMemory:
    """What another decider goes on with.

    Args:
        count: what was desired last.
        reason: as it was given.
        changed_at: when the number was changed last, by the clock of `decide`.
    """
    return AutoscaleMemory(desired=count, changed_at=changed_at, reason=reason.partition(_BOUND)[0])


def needed(view: ServiceLoad, memory: AutoscaleMemory) -> int:
    """The fewest teachers that will do, as far as it is known; unbounded by settings."""
    ratio, current = view.ratio, memory.desired or 0
    least = view.wanted if ratio is None else rounded_up(ratio)
    if _starves(view, memory):
        least = max(least, current + 1, ceil(current * GROWTH))
    return min(max(least, memory.held, 1), view.wanted)


def enough(view: ServiceLoad, memory: AutoscaleMemory) -> int:
    """The most teachers that are of use, as far as it is known; unbounded by settings."""
    ratio = view.ratio
    if ratio is None or memory.blocked_share < PLENTY or _starves(view, memory):
        return view.wanted
    return min(max(rounded_up(ratio * SPARE), memory.held, 1), view.wanted)


def _starves(view: ServiceLoad, memory: AutoscaleMemory) -> bool:
    """Whether students starve, and not merely until teachers have come that are on their way."""
    if view.serving < (memory.desired or 0):
        return False
    return view.starving > 0 or memory.starved_share > TOLERATED


def _observe(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> AutoscaleMemory:
    """Book what is the case: shares of the time, and how long it has been so."""
    span_s = 0.0 if memory.now is None else max(now - memory.now, 0.0)
    first = memory.now is None

    def share(before: float, grown_s: float, over_s: float) -> float:
        if first or span_s == 0 or view.students == 0:
            return before if view.students else 0.0
        # Sums may come in lumps, of more seconds than have passed since the last look.
        part = max(grown_s, 0.0) / (span_s * view.students)
        kept = exp(-span_s / over_s) if over_s > 0 else 0.0
        return min(kept * before + (1 - kept) * part, 1.0)

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
    return _follow(view, _learn(view, memory), now, config)


def _learn(view: ServiceLoad, memory: AutoscaleMemory) -> AutoscaleMemory:
    """Where students starved although their times asked for no more, it does not go again."""
    ratio = view.ratio
    if memory.held and (
        not view.students or ratio is None or ratio < OTHER_RATIO * memory.held_ratio
    ):
        memory = replace(memory, held=0, held_ratio=0.0)
    current = memory.desired or 0
    if ratio is not None and current >= memory.held and _starves(view, memory):
        held = min(current + 1, view.wanted)
        if held > max(memory.held, rounded_up(ratio)):
            memory = replace(memory, held=held, held_ratio=ratio)
    return memory


def _follow(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> AutoscaleMemory:
    """Count what is seen into the runs that it lengthens; the others are over."""
    if not view.students:
        return replace(memory, above=None, below=None)
    current = memory.desired or 0
    least, most = _band(view, memory, config)
    clearly = current - max(1, ceil(current * CLEARLY))
    return replace(
        memory,
        above=_longer(memory.above, least, now) if least > current else None,
        below=_longer(memory.below, most, now) if most <= clearly else None,
    )


def _longer(run: Run | None, seen: int, now: float) -> Run:
    return Run(now, now, seen, seen) if run is None else run.longer(seen, now)


def _band(view: ServiceLoad, memory: AutoscaleMemory, config: AutoscaleConfig) -> tuple[int, int]:
    """What is needed and what is enough, within the settings' bounds."""
    floor = min(config.min, config.most)
    least, most = needed(view, memory), enough(view, memory)
    return min(max(least, floor), config.most), min(max(most, floor), config.most)


def _aim(
    view: ServiceLoad, memory: AutoscaleMemory, now: float, config: AutoscaleConfig
) -> tuple[int, str]:
    """The number that is right now, whether it may be changed or not, and why it is."""
    current = memory.desired or 0
    if view.students == 0:
        since = now if memory.idle_since is None else memory.idle_since
        if now - since >= config.idle_to_zero_s:
            return 0, f"no student for {config.idle_to_zero_s:g} s"
        return current, ""
    least, most = _band(view, memory, config)
    if current == 0:
        return most, f"{_students(view)} and no teacher: {_wants(view)}"
    if least > current and _starves(view, memory):
        return least, f"{_students(view)}, {_starving(view)}: {_wants(view)}"
    above, below = memory.above, memory.below
    if above is not None and above.lasted_s >= config.up_after_s:
        target = min(max(ceil(above.mean - _ROUNDING), current + 1), config.most)
        return target, f"{_students(view)} needed more for {config.up_after_s:g} s: {_wants(view)}"
    if current < min(config.min, config.most):
        return least, f"{_students(view)}, and min is {config.min}"
    if below is not None and below.lasted_s >= config.down_after_s:
        why = f"fewer were enough for {config.down_after_s:g} s: {_students(view)} {_wants(view)}"
        return min(below.peak, config.most), why
    return current, ""


def _students(view: ServiceLoad) -> str:
    return "1 student" if view.students == 1 else f"{view.students} students"


def _starving(view: ServiceLoad) -> str:
    return f"{view.starving or 'some'} of which starve" if view.students > 1 else "which starves"


def _wants(view: ServiceLoad) -> str:
    wants = f"{'wants' if view.students == 1 else 'want'} {view.wanted}"
    return wants if view.ratio is None else f"{wants}, worth {view.ratio:.2f} by their times"


def _bound(view: ServiceLoad, target: int, memory: AutoscaleMemory, config: AutoscaleConfig) -> str:
    """What keeps the number below what is needed, in words; empty: nothing does."""
    if not view.students or target < config.most or needed(view, memory) <= config.most:
        return ""
    if config.affordable < config.max:
        return f"{_BOUND}the cost ceiling pays for no more than {config.most}"
    return f"{_BOUND}max is {config.most}"
