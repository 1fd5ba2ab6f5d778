"""Checkpoints of a training: snapshots in memory, and their copies on disk.

A save takes these steps: `capture` names the arrays of model and optimizer. `SnapshotWriter` copies
them into memory that the supervisor owns, and the training continues. The supervisor's `Persister`
writes the newest snapshot into a `Repository`, even if the rank has died since. A later start
finds it with `Repository.newest_valid`, and `restore` loads it. See also docs/how-to/students.md.
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
    """Import a name at its first use: the help of the command line does not need numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
