"""Who serves whom: a reducer (state, events, now) -> (state, changes) over one service.

Teachers that serve go to students that want them: none idles while a student lacks one; the slowest
rank of every job has as much as can be; what counts is speed, not heads; the guaranteed `min` comes
before priority, and priority before the rest; teachers are shared when students outnumber them, or
when one can feed several; of equal teachers the one on the student's host is taken; no student
mixes two contents; and whoever holds a teacher keeps it if fairness allows: `repair.py`.

Assignments are advice for balance, never a lock, and any manager computes the same ones from the
same events.
"""

from __future__ import annotations

from .events import (
    AssignmentEvent,
    Change,
    ContentPlanned,
    RecoveryBegan,
    RecoveryEnded,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherUp,
    Ticked,
    When,
)
from .fleet import AssignmentState
from .intake import plan_is_complete, prevailing_content
from .reducer import content_of, next_due, reduce

__all__ = [
    "AssignmentEvent",
    "AssignmentState",
    "Change",
    "ContentPlanned",
    "RecoveryBegan",
    "RecoveryEnded",
    "StudentGone",
    "StudentReported",
    "TeacherDown",
    "TeacherDraining",
    "TeacherUp",
    "Ticked",
    "When",
    "content_of",
    "next_due",
    "plan_is_complete",
    "prevailing_content",
    "reduce",
]
