"""When a machine is given back to those who come first there, and when it may be used again.

Somebody asks for it (`edl agent yield`), or other processes keep more of its cores busy than its
owner allows for. It is lent again only when neither holds any more, and, after a load, has not for
a while: who comes first must not feel that others are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf


@dataclass(frozen=True, slots=True)
class LendingConfig:
    """What an owner lends.

    Attributes:
        most_load: CPU cores that other processes may keep busy; None: any number.
        quiet_s: seconds for which they have to stay below half of it before it is lent again.
        mean_s: seconds that a load is averaged over, so that a short one counts for little.
    """

    most_load: float | None = None
    quiet_s: float = 30.0
    mean_s: float = 3.0


@dataclass(frozen=True, slots=True)
class LendingMemory:
    """What is remembered from one look to the next.

    Attributes:
        load: the average, in CPU cores.
        at_s: of the last look.
        loaded: other processes have it.
        quiet_since_s: since when they have let it be; inf: they do not.
    """

    load: float = 0.0
    at_s: float | None = None
    loaded: bool = False
    quiet_since_s: float = inf


@dataclass(frozen=True, slots=True)
class Lent:
    """Whether a machine is lent.

    Attributes:
        lent: teachers may run there.
        why: why not, in words.
        until_s: seconds until it is lent again by itself; 0: nobody says.
    """

    lent: bool
    why: str = ""
    until_s: float = 0.0


def lend(
    load: float,
    asked_until_s: float | None,
    memory: LendingMemory,
    now: float,
    config: LendingConfig,
) -> tuple[Lent, LendingMemory]:
    """Whether the machine is lent now.

    Args:
        load: CPU cores that other processes kept busy since the last look.
        asked_until_s: until when somebody has asked for it, of the clock of `now`; inf: until
            further notice; None: nobody does.
        memory: of the last look.
        now: seconds.
        config: what the owner lends.
    """
    memory = _averaged(load, memory, now, config)
    memory = _loaded(memory, now, config)
    if asked_until_s is not None and asked_until_s > now:
        left_s = 0.0 if asked_until_s == inf else asked_until_s - now
        return Lent(False, "it was asked for by 'edl agent yield'", left_s), memory
    if memory.loaded:
        most = config.most_load or 0.0
        why = f"other processes keep {memory.load:.1f} cores busy; above {most:g} it is theirs"
        left_s = 0.0 if memory.quiet_since_s == inf else memory.quiet_since_s + config.quiet_s - now
        return Lent(False, why, max(0.0, left_s)), memory
    return Lent(True), memory


def _averaged(
    load: float, memory: LendingMemory, now: float, config: LendingConfig
) -> LendingMemory:
    if memory.at_s is None or config.mean_s <= 0:
        return replace(memory, load=load, at_s=now)
    share = exp(-max(0.0, now - memory.at_s) / config.mean_s)
    return replace(memory, load=share * memory.load + (1 - share) * load, at_s=now)


def _loaded(memory: LendingMemory, now: float, config: LendingConfig) -> LendingMemory:
    if config.most_load is None:
        return replace(memory, loaded=False, quiet_since_s=inf)
    if memory.load > config.most_load:
        return replace(memory, loaded=True, quiet_since_s=inf)
    if not memory.loaded:
        return memory
    if memory.load > config.most_load / 2:
        return replace(memory, quiet_since_s=inf)
    since_s = min(memory.quiet_since_s, now)
    return replace(memory, loaded=now - since_s < config.quiet_s, quiet_since_s=since_s)
