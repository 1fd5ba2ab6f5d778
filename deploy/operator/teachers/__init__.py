"""TeacherServices of a cluster: each a Deployment of teachers, as many as are desired of it.

`TeacherServices.turn` looks at all of them, has `scheduler/teacher_count.py` say how many teachers
each is to have, and applies what differs. What it has to remember stands in each one's status.
"""

from __future__ import annotations

from .turning import TeacherServices

__all__ = ["TeacherServices"]
