"""The decisions of a reader, as one pure state machine.

`ReaderCore.handle(event, now)` takes an event and returns instructions. It owns the ledger, flow
control, windows and request sizes, hedging, one circuit breaker per teacher, probing, reachability,
comparisons, model switches and n, the number of teachers. The live engine and the simulator drive
it: they turn I/O or virtual time into events, and carry out instructions.
"""

from .core import CoreConfig as CoreConfig
from .core import ReaderCore as ReaderCore
from .core import Step as Step
