"""Assigns teachers to students: a reducer (state, events, now) -> (state, changes) per service.

The rules, strongest first: no teacher idles while a student lacks one; every student has a first
teacher before any has a second; the guaranteed `min` comes before priority; within a priority,
power (relative speed, not the number of teachers) is shared evenly, and a job counts as having only
what its slowest rank has. Students share teachers only when teachers are short: if one teacher can
feed several of them, or if they outnumber the teachers. Among equal teachers, one on the student's
host is preferred. No student mixes labels of two contents (models). Moves are avoided where
fairness allows it: see `repair.py`.

Assignments are advice for balance, never a lock. The rule is deterministic: from the same state and
events, every leader computes the same assignments.
"""

from .reducer import next_due as next_due
from .reducer import plan_is_complete as plan_is_complete
from .reducer import prevailing_content as prevailing_content
from .reducer import reduce as reduce
from .state import AssignmentChange as AssignmentChange
from .state import AssignmentEvent as AssignmentEvent
from .state import AssignmentState as AssignmentState
from .state import ContentPlanned as ContentPlanned
from .state import RecoveryBegan as RecoveryBegan
from .state import RecoveryEnded as RecoveryEnded
from .state import StudentGone as StudentGone
from .state import StudentReported as StudentReported
from .state import TeacherDown as TeacherDown
from .state import TeacherDraining as TeacherDraining
from .state import TeacherUp as TeacherUp
from .state import Ticked as Ticked
from .state import When as When
