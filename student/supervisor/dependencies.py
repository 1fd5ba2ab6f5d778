"""What a supervisor works with, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...scheduler.students.world import GATHER_S
from .rendezvous import TTL_S
from .workers import RANK_MODULE

#: So long is tried to write the last snapshot before the node goes.
ROOM_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class NodeDependencies:
    """With what a supervisor works; tests take others.

    Attributes:
        module: that each rank runs.
        environment: of ranks, set on top of this process's own.
        ttl_s: a node that has not beaten for so long is lost.
        gather_s: so long others are waited for after a node came.
        room_s: so long is tried to write the last snapshot before the node goes.
    """

    module: str = RANK_MODULE
    environment: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float = TTL_S
    gather_s: float = GATHER_S
    room_s: float = ROOM_S


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How the job ended for this node; `kind`: "finished", or "left" where the node went before."""

    kind: str
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
