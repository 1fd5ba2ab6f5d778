"""How many teachers a student wants: n = ceil(t_t / t_s), corrected by what its buffer shows.

want = n + adjust, within the bounds. n follows the measured times; the correction grows when the
student starves and shrinks when teachers idle. So a teacher that becomes slower is answered twice:
at once by n, and for what no ratio says (transfer, uneven batches) by the correction.
"""

from __future__ import annotations

from dataclasses import replace

from .flow_values import FlowConfig, FlowMemory, FlowView
from .ratio import teachers_needed, time_ratio

#: A ratio so far beyond the edge of n, relative to itself, is no noise.
RATIO_NOISE = 0.1


def wanted(memory: FlowMemory, config: FlowConfig) -> int:
    """How many teachers are wanted, as things are remembered."""
    base = memory.needed or config.teachers_min
    return min(max(base + memory.adjust, config.teachers_min), config.teachers_max)


def follow_ratio(view: FlowView, memory: FlowMemory, now: float, config: FlowConfig) -> FlowMemory:
    """Line 1 of Algorithm 1: n, again whenever the measured times have moved.

    A ratio near an integer must not make n flap: n moves at once only when the ratio is clearly
    beyond its edge, and otherwise when it has stayed there for `cooldown_s`.
    """
    if view.t_t_s is None or view.t_s_s is None:
        return memory
    n, needed = teachers_needed(view.t_t_s, view.t_s_s), memory.needed
    if n == needed:
        off = memory.off_ratio_since is not None
        return replace(memory, off_ratio_since=None) if off else memory
    if needed and not _is_clear(time_ratio(view.t_t_s, view.t_s_s), needed):
        since = now if memory.off_ratio_since is None else memory.off_ratio_since
        if now - since < config.cooldown_s:
            return replace(memory, off_ratio_since=since)
    # What was added while n was unknown made up for n, and is replaced by it.
    moved = replace(memory, needed=n, adjust=memory.adjust if needed else 0, off_ratio_since=None)
    reason = f"n = {n} = ceil({view.t_t_s:.3g} / {view.t_s_s:.3g} s per sample)"
    if wanted(moved, config) == wanted(memory, config):
        return replace(moved, reason=reason)
    return _changed(moved, now, reason)


def follow_need(view: FlowView, memory: FlowMemory, now: float, config: FlowConfig) -> FlowMemory:
    """Lines 7 to 9: ask for one more when starving; and, beyond the paper, give one back."""
    want = wanted(memory, config)
    if memory.hungry and memory.hunger_s >= config.starved_for_s:
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
    target = min(want, view.teachers) - 1
    if idle >= 1 + config.surplus_margin and target >= config.teachers_min:
        reason = f"{idle:.1f} teachers of {view.teachers} idled for {window_s:.0f} s"
        return _changed(_aim(memory, target, config), now, reason)
    return replace(memory, surplus_since=now, surplus_idle_s=0.0)


def _is_clear(ratio: float, needed: int) -> bool:
    """Whether `ratio` lies clearly outside of (needed - 1, needed], for which n = needed."""
    beyond = max(ratio - needed, needed - 1 - ratio)
    return beyond > RATIO_NOISE * ratio


def _aim(memory: FlowMemory, want: int, config: FlowConfig) -> FlowMemory:
    return replace(memory, adjust=want - (memory.needed or config.teachers_min))


def _changed(memory: FlowMemory, now: float, reason: str) -> FlowMemory:
    """The want has moved: whatever was measured about the old one is void."""
    return replace(
        memory,
        changed_at=now,
        reason=reason,
        hungry=False,  # until the one that is asked for now has come
        hunger_s=min(memory.hunger_s, 0.0),
        surplus_since=now,
        surplus_idle_s=0.0,
    )
