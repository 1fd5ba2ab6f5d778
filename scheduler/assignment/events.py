"""What the assignment rule is told (events) and what it answers (changes)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

When = Literal["epoch", "now"]


@dataclass(frozen=True, slots=True)
class TeacherUp:
    """A teacher serves. Of a known one with another incarnation, the old life is over.

    Attributes:
        speed: samples per second that it labels, all its lanes together; 0 is unknown.
        content_id: what it serves; only students of the same content may have it.
        host: where it runs; of equal teachers, one on the student's own host is preferred.
    """

    teacher_id: str
    incarnation: int = 0
    speed: float = 0.0
    content_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class TeacherDraining:
    """A teacher finishes what it has and takes nothing new; `TeacherDown` follows."""

    teacher_id: str


@dataclass(frozen=True, slots=True)
class TeacherDown:
    """A teacher is gone: `lost` without a word, so that what it had must be sent again at once."""

    teacher_id: str
    lost: bool


@dataclass(frozen=True, slots=True)
class StudentReported:
    """A student says what it needs and which teachers it holds.

    Attributes:
        want: how many teachers it asks for, the `unreachable` ones included; 0 is none now.
        holding: counts when the student is new here: a manager that starts anew strips nobody.
        min: how many its job is guaranteed (never more than it wants).
        priority: the greater goes first.
        needed: n = ceil(t_t / t_s); 0 is unknown.
        t_t_s, t_s_s: seconds per sample of its teachers and of its own step; 0 is unknown.
        urgent: it starves: more is given without waiting whether the wish lasts.
        unreachable: how many of its teachers give it no labels.
        unavailable: which of its teachers these are; an older reader does not say.
        cut_off: it reaches no teacher, or none lets it in: others may not help.
        data_epoch: the epoch of its data that it labels; a new content may begin with a new one.
        content_id: what it is labelled with; "" when it is bound to nothing: it has no label yet,
            or it stands between two epochs and waits to be moved.
    """

    student_id: str
    want: int
    holding: tuple[str, ...] = ()
    min: int = 1
    priority: int = 0
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    urgent: bool = False
    unreachable: int = 0
    unavailable: tuple[str, ...] = ()
    cut_off: bool = False
    host: str = ""
    data_epoch: int = 0
    content_id: str = ""


@dataclass(frozen=True, slots=True)
class StudentGone:
    """A student has left, or its lease is over."""

    student_id: str


@dataclass(frozen=True, slots=True)
class ContentPlanned:
    """What the service is to serve, and the content that is to take its place.

    Attributes:
        current: "" is whatever its students and its first teacher have.
        next: "" is no upgrade.
        at: students move at the end of their "epoch", or "now".
    """

    current: str
    next: str = ""
    at: When = "epoch"


@dataclass(frozen=True, slots=True)
class RecoveryBegan:
    """Teachers register anew: until `RecoveryEnded`, sets only grow."""


@dataclass(frozen=True, slots=True)
class RecoveryEnded:
    """Whoever is to be known is known: sets may shrink again."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Nothing but time has passed: wishes that lasted long enough come into force."""


AssignmentEvent = (
    TeacherUp
    | TeacherDraining
    | TeacherDown
    | StudentReported
    | StudentGone
    | ContentPlanned
    | RecoveryBegan
    | RecoveryEnded
    | Ticked
)


@dataclass(frozen=True, slots=True)
class Change:
    """A student's new set of teachers, and why.

    A teacher that is absent from `teachers` and not in `lost` is revoked: the student lets it
    finish what it has. Those in `lost` are dead, and what they had is to be sent again. One in both
    came back as another incarnation.

    Attributes:
        content_id: what the student is labelled with from here on.
        next_content_id: what it is to be labelled with from its next epoch on; "" is the same.
        data_epoch: the epoch of the report that this answers.
    """

    student_id: str
    teachers: tuple[str, ...]
    lost: tuple[str, ...]
    content_id: str
    next_content_id: str
    data_epoch: int
    reason: str
