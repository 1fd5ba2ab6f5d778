"""What the assignment rule remembers between events: all of it frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..steadying import Steady
from .events import When
from .fleet import Fleet


@dataclass(frozen=True, slots=True)
class StudentEntry:
    """What is known of a student.

    Attributes:
        want: how many teachers it asks for.
        need: power that it is to have, steadied: what the rule goes by.
        unit: power of the teachers that it counts in `want`.
        unavailable: teachers that give it no labels, and so do not count in its share.
        content_id: what it is labelled with.
        labelled: whether it may have labels of it already: else it is still free to choose.
        next_told: the content that it was told to expect.
        upgrading: an upgrade was on once, so it may wait for an answer between two epochs.
        teachers: those assigned to it, the longest held first.
        finishing: those revoked from it and still there: it may have requests in flight at them,
            and must hear when one is lost.
    """

    want: int
    need: float
    steady: Steady
    min: int = 1
    priority: int = 0
    unit: float = 1.0
    unavailable: frozenset[str] = frozenset()
    host: str = ""
    data_epoch: int = 0
    content_id: str = ""
    labelled: bool = False
    next_told: str = ""
    upgrading: bool = False
    teachers: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of the service: see `ContentPlanned`.

    Attributes:
        declared: whether `current` is an operator's word; else it is what was found.
    """

    current: str = ""
    next: str = ""
    at: When = "epoch"
    declared: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentState:
    """The teachers and students of one service, each in the order of arrival.

    Attributes:
        anchor: samples per second of a teacher of power 1; 0 until one is known.
        recovering: sets only grow.
    """

    teachers: Fleet = field(default_factory=Fleet)
    students: Mapping[str, StudentEntry] = field(default_factory=dict)
    anchor: float = 0.0
    plan: Plan = Plan()
    recovering: bool = False
