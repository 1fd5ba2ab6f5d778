"""The contents of a checkpoint, whatever names it: its own address, a repository's, or memory."""

from __future__ import annotations

from ...errors import UsageError
from ...proto.shared_buffer import descriptor_of
from .checkpoint import Checkpoint
from .contents import Contents
from .names import step_of
from .repository import Repository
from .snapshot import newest_of, open_slots


def open_checkpoint(location: str) -> Contents:
    """Load a checkpoint.

    Args:
        location: path or URL of one (`Checkpoint.location`); of a repository, then its newest valid
            one is taken; or `SnapshotOwner.location`, then the newest snapshot in memory is.

    Returns:
        Contents with memory of their own.

    Raises:
        UsageError: there is none.
        CheckpointDamaged: it was named itself, and is damaged.
        CheckpointUnavailable: the place cannot be read now.
    """
    if descriptor_of(location.partition(",")[0]) is not None:
        return _from_memory(location.split(","))
    repository, checkpoint = located(location)
    checkpoint = checkpoint or repository.newest_valid()
    if checkpoint is None:
        raise UsageError(f"there is no checkpoint at {location}")
    return repository.load(checkpoint)


def located(location: str) -> tuple[Repository, Checkpoint | None]:
    """The repository that a path or URL names, and the checkpoint in it, if it names one.

    Raises:
        UsageError: there is no such checkpoint.
        CheckpointUnavailable: the place cannot be read now.
    """
    place, _, name = location.rstrip("/").rpartition("/")
    if step_of(name) is None:
        return Repository(location), None
    repository = Repository(place or ("/" if location.startswith("/") else "."))
    if (checkpoint := repository.find(name)) is None:
        raise UsageError(f"there is no checkpoint at {location}")
    return repository, checkpoint


def _from_memory(keys: list[str]) -> Contents:
    slots = open_slots(keys)
    try:
        with newest_of(slots) as found:
            if found is None:
                raise UsageError("there is no snapshot in the memory of this node")
            return found[1].copied()
    finally:
        for slot in slots:
            slot.close()
