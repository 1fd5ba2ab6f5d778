"""Every decision of the mesh, as pure functions and state machines: no I/O, no clock, no threads.

Events and the time come in as arguments, decisions come out as values; who calls carries them out.
So the same code runs in the reader, in the coordinator, in property tests and in simulators.
"""

from .assignment import AssignmentState, reduce
from .backoff import delay_s
from .flow import FlowConfig, FlowDecision, FlowMemory, FlowView, decide
from .ledger import Ledger
from .ledger_check import LedgerInvariant
from .rates import LowQuantile, RecentMedian, RecentRate
from .ratio import pooled_t_t, teachers_needed

__all__ = [
    "AssignmentState",
    "FlowConfig",
    "FlowDecision",
    "FlowMemory",
    "FlowView",
    "Ledger",
    "LedgerInvariant",
    "LowQuantile",
    "RecentMedian",
    "RecentRate",
    "decide",
    "delay_s",
    "pooled_t_t",
    "reduce",
    "teachers_needed",
]
