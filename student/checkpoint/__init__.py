"""Checkpoints of a training: snapshots in memory, and their copies on disk.

A save takes these steps: `capture` names the arrays of model and optimizer. `SnapshotWriter` copies
them into memory that the supervisor owns, and the training continues. The supervisor's `Persister`
writes the newest snapshot into a `Repository`, even if the rank has died since. A later start
finds this checkpoint with `Repository.newest_valid`, and `restore` loads it. See also
docs/how-to/students.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".checkpoint": ["Checkpoint"],
        ".contents": ["Contents"],
        ".persisting": ["Persister"],
        ".repository": ["Repository", "open_checkpoint"],
        ".snapshot": ["SnapshotOwner", "SnapshotWriter"],
    },
)
