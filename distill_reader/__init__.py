"""`DistilReader`: a data loader that adds soft labels of teachers to the user's batches.

Importing this package is cheap: only the engine process loads gRPC, Redis and the scheduler. The
public names below are imported when they are first used, so that the engine does not load modules
that only the trainer uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .options import TLS, CanaryPolicy, EnsemblePolicy, Limits, Timeouts, Trace
    from .pool import TeacherPool
    from .reader import DistilReader
    from .sources import Batched
    from .stats import Callback, ReaderStats
    from .store import LabelStore

__all__ = [
    "TLS",
    "Batched",
    "Callback",
    "CanaryPolicy",
    "DistilReader",
    "EnsemblePolicy",
    "LabelStore",
    "Limits",
    "ReaderStats",
    "TeacherPool",
    "Timeouts",
    "Trace",
]

_MODULES = {
    "Batched": ".sources",
    "Callback": ".stats",
    "CanaryPolicy": ".options",
    "DistilReader": ".reader",
    "EnsemblePolicy": ".options",
    "LabelStore": ".store",
    "Limits": ".options",
    "ReaderStats": ".stats",
    "TLS": ".options",
    "TeacherPool": ".pool",
    "Timeouts": ".options",
    "Trace": ".options",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
