"""A mesh in virtual time: discrete events that drive the very rules that the live mesh runs.

`simulate` runs a `Scenario` and gives a `Result`. Every batch goes through the real ledger, flow
control and hedging; who is there, who serves whom, autoscaling and failures are the control plane.
"""

from __future__ import annotations

from .control import simulate
from .result import Result
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
