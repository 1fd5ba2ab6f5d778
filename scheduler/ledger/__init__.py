"""The ledger of one service: which rows go to which teacher, and which batches have labels.

`Ledger` is the state machine; `events` has its events and instructions; `InFlight` describes a
request.
"""

from . import events
from .ledger import Ledger
from .view import InFlight

__all__ = ["InFlight", "Ledger", "events"]
