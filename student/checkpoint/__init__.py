"""Checkpoints: what a training is made of, in memory while it runs, and on disk for when it dies.

The way of a save: `capture` names the arrays of model and optimizer; `SnapshotWriter` copies them
into memory that the supervisor owns, and the training goes on; the supervisor's `Persister` writes
the newest snapshot into a `Repository`, also when the process that left it is dead. Then a start
finds it by `Repository.newest_valid`, and `restore` puts it back. docs/how-to/students.md tells it to
users.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .contents import Contents
    from .persisting import Persister
    from .repository import Repository, open_checkpoint
    from .snapshot import SnapshotOwner, SnapshotWriter

__all__ = [
    "Checkpoint",
    "Contents",
    "Persister",
    "Repository",
    "SnapshotOwner",
    "SnapshotWriter",
    "open_checkpoint",
]

_HOMES = {
    "Checkpoint": "checkpoint",
    "Contents": "contents",
    "Persister": "persisting",
    "Repository": "repository",
    "SnapshotOwner": "snapshot",
    "SnapshotWriter": "snapshot",
    "open_checkpoint": "repository",
}


def __getattr__(name: str) -> Any:
    """Load numpy with the first of them that is used: the command line shows its help without."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
