"""A mesh in virtual time: discrete events that drive the very rules that the live mesh runs.

`simulate` runs a `Scenario` and gives a `Result`. The control plane (who is there, who serves whom,
autoscaling, failures) is one for both data planes: the exact one, which follows every batch through
the real ledger, flow control and hedging, and the fluid one, which follows rates between two events
of the control plane, for very large meshes.
"""

from __future__ import annotations

from .result import Result
from .run import simulate
from .scenario import Change, Fault, Link, Scenario, StudentGroup, TeacherGroup

__all__ = [
    "Change",
    "Fault",
    "Link",
    "Result",
    "Scenario",
    "StudentGroup",
    "TeacherGroup",
    "simulate",
]
