"""The values of a job board."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..store.facts import Facts

#: How long what a board holds of a job outlives the last sign of its nodes.
KEEP_S: Final = 86_400.0
#: Events of a job that are kept, the last ones.
EVENTS_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive.

    Attributes:
        node_id: its name within the job.
        facts: what it told of itself.
        joined: grows with each node that joins; who joined first has the smallest.
        expires_in_s: seconds until it is dead, unless it beats before.
    """

    node_id: str
    facts: Facts = field(default_factory=dict)
    joined: int = 0
    expires_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """The current world.

    Attributes:
        number: from 1; the next one is one more.
        body: what its leader wrote: the nodes, their ranks, the checkpoint, why.
        at_ms: when it was published, by the board's clock, milliseconds since 1970.
        history: of the job's checkpoints; {}: nothing is known.
    """

    number: int
    body: Facts
    at_ms: int
    history: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank told last."""

    generation: int
    rank: int
    facts: Facts
    at_ms: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An entry of a job's timeline; `event_id` orders them, and is where reading goes on."""

    event_id: str
    at_ms: int
    body: Facts
