"""What the assignment reducer is told (events), keeps (state) and answers (changes)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# ----------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class TeacherUp:
    """A teacher serves. Of a known one with another incarnation, the old life is over."""

    teacher_id: str
    incarnation: int = 0


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
    """A student says how many teachers it wants (0: none now) and which it holds.

    What it holds counts when it is new here: so a manager that starts anew strips nobody.
    """

    student_id: str
    want: int
    holding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StudentGone:
    """A student has left, or its lease is over."""

    student_id: str


AssignmentEvent = TeacherUp | TeacherDraining | TeacherDown | StudentReported | StudentGone

# ------------------------------------------------------------------------- state and changes


@dataclass(frozen=True, slots=True)
class TeacherEntry:
    """What is known of a teacher."""

    incarnation: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class StudentEntry:
    """What is known of a student.

    Attributes:
        want: how many teachers it asks for.
        teachers: those assigned to it, the longest held first.
        finishing: those revoked from it and still there: it may have requests in flight at them,
            and must hear when one is lost.
    """

    want: int
    teachers: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignmentState:
    """The teachers and students of one service, each in the order of arrival."""

    teachers: Mapping[str, TeacherEntry] = field(default_factory=dict)
    students: Mapping[str, StudentEntry] = field(default_factory=dict)

    @property
    def serving(self) -> tuple[str, ...]:
        """Teachers that may be assigned."""
        return tuple(name for name, entry in self.teachers.items() if not entry.draining)


@dataclass(frozen=True, slots=True)
class Change:
    """A student's new set of teachers, and why.

    A teacher that is absent from `teachers` and not in `lost` is revoked: the student lets it
    finish what it has. Those in `lost` are dead, and what they had is to be sent again. One in both
    came back as another incarnation.
    """

    student_id: str
    teachers: tuple[str, ...]
    lost: tuple[str, ...]
    reason: str
