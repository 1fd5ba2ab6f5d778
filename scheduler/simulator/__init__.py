"""A mesh in virtual time: discrete events that drive the rules of the live mesh.

`simulate` runs a `Scenario` and returns a `SimulationResult`. Every batch goes through the real
ledger, flow control and hedging. The control plane simulates membership, assignment, autoscaling
and failures.
"""

from .control import simulate as simulate
from .result import SimulationResult as SimulationResult
from .scenario import NetworkLink as NetworkLink
from .scenario import Scenario as Scenario
from .scenario import ScenarioFault as ScenarioFault
from .scenario import SpeedChange as SpeedChange
from .scenario import StudentGroup as StudentGroup
from .scenario import TeacherGroup as TeacherGroup
