"""What can go wrong in a chaos run: the kinds of faults, whom they strike, what they allow for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Whom(Enum):
    """What a fault strikes."""

    TEACHER = "teacher"
    #: A teacher that is there only for a while.
    GUEST = "guest"
    STUDENT = "student"
    #: What all share: the manager, Redis.
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: as reports have it.
        whom: what it strikes.
        text: what is done, in words.
        least_s: it is there for at least so long; 0 with `most_s` 0: it is over at once.
        most_s: and for at most so long.
        settles_s: what the mesh is allowed afterwards until the fault counts as forgotten. It
            bounds what the plan lets happen together, not what the run lets pass.
        rests_s: the same target is left alone for so long at least.
        outlives_ttl: both times are beyond the TTL of leases.
        weight: how often it comes, compared with others.
        deceives: no check of one answer alone can find it.
        meets: what of its target it does something to, in words; there may be none just then, and
            the fault is without effect. Empty where it strikes a process.
    """

    name: str
    whom: Whom
    text: str
    least_s: float = 0.0
    most_s: float = 0.0
    settles_s: float = 2.0
    rests_s: float = 0.0
    outlives_ttl: bool = False
    weight: int = 2
    deceives: bool = False
    meets: str = ""


_HELD, _LATE, _CUT = "pieces of data held back", "pieces of data delayed", "connections cut"
_SPOILT = "answers spoilt"
#: For how long a teacher lies, and what the mesh is allowed afterwards.
_LIE = (1.0, 2.0, 1.0)

KINDS: tuple[Kind, ...] = (
    Kind("kill-teacher", Whom.TEACHER, "kill -9, started anew", 0.3, 1.5, 5.0, weight=4),
    Kind("suspend-teacher", Whom.TEACHER, "SIGSTOP beyond its TTL", 1.0, 2.0, outlives_ttl=True),
    Kind(
        "silence-teacher", Whom.TEACHER, "nothing reaches it, nobody is told", 1.5, 4.0, meets=_HELD
    ),
    Kind(
        "part-teacher", Whom.TEACHER, "cut off from Redis", 1.0, 2.0, outlives_ttl=True, meets=_HELD
    ),
    Kind("break-teacher", Whom.TEACHER, "its connections are cut", settles_s=1.0, meets=_CUT),
    Kind(
        "delay-teacher", Whom.TEACHER, "each piece of data 0.2 s late", 1.5, 3.0, 1.0, meets=_LATE
    ),
    Kind("answer-nan", Whom.TEACHER, "answers hold a NaN", *_LIE, meets=_SPOILT),
    Kind(
        "answer-flip", Whom.TEACHER, "a bit beside each answer's labels flips", *_LIE, meets=_SPOILT
    ),
    Kind("answer-shape", Whom.TEACHER, "answers lack a row", *_LIE, meets=_SPOILT),
    Kind("answer-instance", Whom.TEACHER, "another life of it answers", *_LIE, meets=_SPOILT),
    Kind(
        "answer-other", Whom.TEACHER, "labels of other samples", *_LIE, deceives=True, meets=_SPOILT
    ),
    Kind("drain-teacher", Whom.TEACHER, "SIGTERM, then started anew", settles_s=6.0),
    Kind("add-teacher", Whom.GUEST, "another joins, later drains", 8.0, 15.0, 6.0),
    Kind(
        "kill-engine", Whom.STUDENT, "kill -9 of its engine", settles_s=4.0, rests_s=16.0, weight=3
    ),
    Kind("kill-manager", Whom.CONTROL, "kill -9, started anew", 0.3, 1.5, 4.0),
    Kind("kill-redis", Whom.CONTROL, "kill -9, started anew, empty", 0.3, 1.5, 5.0),
    Kind("silence-manager", Whom.CONTROL, "readers cannot reach it", 1.5, 4.0, meets=_HELD),
)

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan.

    Attributes:
        number: its place in the plan, from 1.
        at_s: when it begins, in seconds since the run began.
        kind: name of its kind.
        target: what it strikes.
        lasts_s: until it is taken away, or what it killed is started again.
    """

    number: int
    at_s: float
    kind: str
    target: str
    lasts_s: float

    @property
    def over_s(self) -> float:
        """When the plan counts on it to be forgotten."""
        return self.at_s + self.lasts_s + BY_NAME[self.kind].settles_s

    @property
    def rested_s(self) -> float:
        """When its target may be struck again."""
        return max(self.over_s, self.at_s + BY_NAME[self.kind].rests_s)
