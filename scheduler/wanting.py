"""How many teachers a student wants: n = ceil(t_t / t_s), corrected by what its buffer shows.

want = n + adjust, within the bounds. n follows the measured times; the correction grows when the
student starves and shrinks when teachers idle. So a teacher that becomes slower is answered twice:
at once by n, and for what no ratio says (transfer, uneven batches) by the correction.
"""

from __future__ import annotations

from .flow_values import FlowConfig, FlowMemory, FlowView
from .rates import rounded_up

#: A ratio so far beyond the edge of n, relative to itself, is no noise.
RATIO_NOISE = 0.25
#: So much less than it was, a ratio is another one.
OTHER_RATIO = 0.2


def wanted(memory: FlowMemory, config: FlowConfig) -> int:
    """How many teachers are wanted, as things are remembered."""
    base = memory.needed or config.teachers_min
    least = max(config.teachers_min, memory.held)
    return min(max(base + memory.adjust, least), config.teachers_max)


def follow_ratio(
    view: FlowView, memory: FlowMemory, ratio: float, now: float, config: FlowConfig
) -> FlowMemory:
    """Line 1 of Algorithm 1: n, again whenever the measured times have moved.

    Measurements scatter, and a ratio near an integer must not make n flap. So n rises at once only
    when the ratio is clearly beyond its edge, and otherwise when it has been there for
    `cooldown_s`; it falls when the ratio has been below for a whole surplus window. It moves as far
    as all that was measured meanwhile says. An n that was only remembered is no measurement: what
    is measured replaces it at once.
    """
    replaced = memory.presumed and not view.presumed
    if memory.presumed is not view.presumed:
        memory = memory._replace(presumed=view.presumed)
    n = latest = rounded_up(ratio)
    needed = memory.needed
    if n == needed:
        off = memory.off_ratio_since is not None
        return memory._replace(off_ratio_since=None) if off else memory
    since, nearest = memory.off_ratio_since, memory.off_ratio_n
    if since is None or (nearest > needed) is not (n > needed):
        since, nearest = now, n
    nearest = min(nearest, n) if n > needed else max(nearest, n)
    adjust = memory.adjust if needed else 0  # what made up for an unknown n is replaced by it
    if replaced:
        adjust = _less_by(adjust, n - needed)
    elif needed and ratio <= needed * (1 + RATIO_NOISE):
        patience_s = config.cooldown_s if n > needed else config.surplus_window_s
        if now - since < patience_s:
            return memory._replace(off_ratio_since=since, off_ratio_n=nearest)
        n = nearest
        adjust = _less_by(adjust, n - needed)
    since = None if n == latest else now
    moved = memory._replace(needed=n, adjust=adjust, off_ratio_since=since, off_ratio_n=latest)
    reason = f"n = {n} = ceil({view.t_t_s:.3g} / {view.t_s_s:.3g} s per sample)"
    if wanted(moved, config) == wanted(memory, config):
        return moved._replace(reason=reason)
    return _changed(moved, now, reason)


def _less_by(adjust: int, moved: int) -> int:
    """The correction when n moves a little: what it made up for so far, n says itself now."""
    if adjust > 0 < moved:
        return max(adjust - moved, 0)
    return min(adjust - moved, 0) if adjust < 0 > moved else adjust


def follow_need(view: FlowView, memory: FlowMemory, now: float, config: FlowConfig) -> FlowMemory:
    """Lines 7 to 9: ask for one more when starving; and, beyond the paper, give one back."""
    if memory.hungry and memory.hunger_s >= config.starved_for_s:
        want = wanted(memory, config)
        if want < config.teachers_max and now - memory.changed_at >= config.cooldown_s:
            # Below n it was let down too far, by an idle hour perhaps: n is known, so no steps.
            target = min(max(want + 1, memory.needed), config.teachers_max)
            reason = f"starved with every window of {view.teachers} full: {target}, not {want}"
            return _changed(_aim(memory, target, config), now, reason)
        return memory
    window_s = now - memory.surplus_since
    if window_s < config.surplus_window_s:
        return memory
    idle = memory.surplus_idle_s / window_s
    target = min(wanted(memory, config), view.teachers) - 1
    # What it came back from is tried again only when so many idle that it is another matter.
    held = min(memory.held, target) if idle >= 2 + config.surplus_margin else memory.held
    if idle >= 1 + config.surplus_margin and target >= max(config.teachers_min, held):
        reason = f"{idle:.1f} teachers of {view.teachers} idled for {window_s:.0f} s"
        return _changed(_aim(memory._replace(held=held), target, config), now, reason)
    return memory._replace(surplus_since=now, surplus_idle_s=0.0)


def hold(memory: FlowMemory, ratio: float, before: int, want: int) -> FlowMemory:
    """Let a want that has moved not swing: where it came back from, it does not go again.

    With constant rates it settles so: each number is tried once at most.

    Args:
        memory: what this decision has left so far.
        ratio: t_t / t_s.
        before: the want of the last decision.
        want: of this one.
    """
    if want < before:
        return memory._replace(fell_to=want)
    came_back = before == memory.fell_to
    memory = memory._replace(fell_to=0)
    if not came_back:
        return memory
    return memory._replace(held=before + 1, held_ratio=ratio, off_held_since=None)


def release(memory: FlowMemory, ratio: float, now: float, config: FlowConfig) -> FlowMemory:
    """A want that is held may go down where clearly fewer are needed than when it came back."""
    if ratio > (1 - OTHER_RATIO) * memory.held_ratio:
        stays = memory.off_held_since is None
        return memory if stays else memory._replace(off_held_since=None)
    if memory.off_held_since is None:
        return memory._replace(off_held_since=now)
    if now - memory.off_held_since < config.surplus_window_s:
        return memory
    return memory._replace(held=0, off_held_since=None)


def _aim(memory: FlowMemory, want: int, config: FlowConfig) -> FlowMemory:
    return memory._replace(adjust=want - (memory.needed or config.teachers_min))


def _changed(memory: FlowMemory, now: float, reason: str) -> FlowMemory:
    """The want has moved: whatever was measured about the old one is void."""
    return memory._replace(
        changed_at=now,
        reason=reason,
        hungry=False,  # until the one that is asked for now has come
        hunger_s=min(memory.hunger_s, 0.0),
        surplus_since=now,
        surplus_idle_s=0.0,
    )
