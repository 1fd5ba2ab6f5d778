"""The last snapshot of a node: it goes only when that is on the disk, or is said not to be."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...errors import CheckpointUnavailable
from .keeping import Keeping
from .telling import Teller

#: The node that writes checkpoints is waited for so long.
_OTHER_S: Final = 15.0
_TURN_S: Final = 0.05


def write_last(
    keeping: Keeping, teller: Teller, room_s: float, writer_is_there: Callable[[], bool] | None
) -> None:
    """Write the newest snapshot where no other node does.

    Args:
        keeping: what the node has.
        teller: shows what is waited for.
        room_s: so long is tried.
        writer_is_there: whether the node lives that writes checkpoints; None: it is this one.

    Raises:
        CheckpointUnavailable: it cannot be written.
    """
    if keeping.written() or (writer_is_there and _is_written(keeping, writer_is_there)):
        return
    keeping.write()
    deadline_s = time.monotonic() + room_s
    while not keeping.written():
        if time.monotonic() > deadline_s:
            raise CheckpointUnavailable(
                f"the checkpoint of step {keeping.snapshot} was not written:"
                f" {keeping.problem or 'it takes too long'}. The newest one on the disk:"
                f" {keeping.newest_in_words()}"
            )
        if keeping.problem:
            teller.waiting(f"the last checkpoint to be written: {keeping.problem}")
        time.sleep(_TURN_S)


def check_room(keeping: Keeping, waited_s: float, room_s: float) -> None:
    """Raises CheckpointUnavailable where what a generation begins with is not written for long."""
    if keeping.problem and waited_s > room_s:
        raise CheckpointUnavailable(
            f"training stops at step {keeping.snapshot}, as its snapshot could not be"
            f" written for {room_s:g} s: {keeping.problem}. Start the same command again: it goes"
            f" on from the newest checkpoint on the disk: {keeping.newest_in_words()}"
        )


def _is_written(keeping: Keeping, writer_is_there: Callable[[], bool]) -> bool:
    """Whether the node that writes has written what this one has, too; it is waited for."""
    deadline_s = time.monotonic() + _OTHER_S
    while not keeping.has(keeping.snapshot):
        if time.monotonic() > deadline_s or not writer_is_there():
            return False
        time.sleep(_TURN_S)
    return True
