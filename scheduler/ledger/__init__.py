"""Which rows are sent to whom, and which batches have their labels: the ledger of one service.

Public: `Ledger`, the state machine; `events`, what it is told and what it answers; `InFlight`, what
it tells of a request; `LedgerInvariant`, raised by `Ledger.validate`.
"""

from . import events
from .check import LedgerInvariant
from .ledger import Ledger
from .view import InFlight

__all__ = ["InFlight", "Ledger", "LedgerInvariant", "events"]
