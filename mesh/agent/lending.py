"""Decides when a machine is lent to the mesh.

A machine is not lent while its owner wants it back (`edl agent yield`), after `edl drain` drained
its teacher, or while other processes keep more of its cores busy than the owner allows. After such
a load the machine is lent again only when the load has been low for a while, so that the owner does
not notice the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf


@dataclass(frozen=True, slots=True)
class LendingConfig:
    """Conditions of a machine's owner.

    Attributes:
        max_load: CPU cores that other processes may keep busy while the machine is lent; None: any
            number.
        quiet_s: seconds with a load below half of `max_load` before the machine is lent again.
        mean_s: time constant in seconds of the average load.
    """

    max_load: float | None = None
    quiet_s: float = 30.0
    mean_s: float = 3.0


@dataclass(frozen=True, slots=True)
class LendingMemory:
    """State between two decisions.

    Attributes:
        load: average load, in CPU cores.
        at_s: time of the latest decision; None: there was none.
        overloaded: whether the load was above `max_load`, and has not been low for `quiet_s` since.
        quiet_since_s: time since which an overloaded machine's load is low; inf: it is not low.
    """

    load: float = 0.0
    at_s: float | None = None
    overloaded: bool = False
    quiet_since_s: float = inf


@dataclass(frozen=True, slots=True)
class LendingDecision:
    """Whether a machine is lent.

    Attributes:
        lent: whether teachers may run on the machine.
        why: reason why the machine is not lent; without measured numbers, because each change of
            this text makes the agent send a heartbeat at once.
        left_s: seconds until the machine is lent again; 0: unknown.
    """

    lent: bool
    why: str = ""
    left_s: float = 0.0


def decide_lending(
    load: float,
    yield_left_s: float | None,
    memory: LendingMemory,
    now: float,
    config: LendingConfig,
) -> tuple[LendingDecision, LendingMemory]:
    """Decide whether the machine is lent now.

    Args:
        load: CPU cores that other processes keep busy, as measured last.
        yield_left_s: seconds left of a request to yield; inf: it has no end; None: there is none.
        memory: state after the latest decision.
        now: seconds of a monotonic clock.
        config: conditions of the owner.

    Returns:
        The decision, and the state for the next one.
    """
    memory = _update_average(load, memory, now, config)
    memory = _update_overload(memory, now, config)
    if yield_left_s is not None:
        why = "'edl agent yield' or 'edl drain' has taken the machine out of the mesh"
        return LendingDecision(False, why, 0.0 if yield_left_s == inf else yield_left_s), memory
    if memory.overloaded:
        why = (
            f"other processes kept more than {config.max_load:g} cores busy; the machine is lent"
            f" again once they have used less than half of that for {config.quiet_s:g} s"
        )
        left_s = 0.0 if memory.quiet_since_s == inf else memory.quiet_since_s + config.quiet_s - now
        return LendingDecision(False, why, max(0.0, left_s)), memory
    return LendingDecision(True), memory


def _update_average(
    load: float, memory: LendingMemory, now: float, config: LendingConfig
) -> LendingMemory:
    if memory.at_s is None or config.mean_s <= 0:
        return replace(memory, load=load, at_s=now)
    old_weight = exp(-max(0.0, now - memory.at_s) / config.mean_s)
    return replace(memory, load=old_weight * memory.load + (1 - old_weight) * load, at_s=now)


def _update_overload(memory: LendingMemory, now: float, config: LendingConfig) -> LendingMemory:
    if config.max_load is None:
        return replace(memory, overloaded=False, quiet_since_s=inf)
    if memory.load > config.max_load:
        return replace(memory, overloaded=True, quiet_since_s=inf)
    if not memory.overloaded:
        return memory
    if memory.load >= config.max_load / 2:
        return replace(memory, quiet_since_s=inf)
    since_s = min(memory.quiet_since_s, now)
    return replace(memory, overloaded=now - since_s < config.quiet_s, quiet_since_s=since_s)
