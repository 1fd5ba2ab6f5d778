"""`DistilReader`: a data loader that adds soft labels of teachers to the user's batches.

Importing this package is cheap: only the engine process loads gRPC, Redis and the reader core. The
public names below are imported when they are first used, so that the engine does not load modules
that only the trainer uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".options": ["TLS", "CanaryPolicy", "EnsemblePolicy", "Limits", "Timeouts", "Trace"],
        ".pool": ["TeacherPool"],
        ".reader": ["DistilReader"],
        ".sources": ["Batched"],
        ".stats": ["Callback", "ReaderStats"],
        ".store": ["LabelStore"],
    },
)
