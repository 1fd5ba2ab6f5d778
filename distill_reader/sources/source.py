"""What a source of batches is to the reader: the protocol that all three steps fulfil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ...proto.arena import Array

#: Where a source stands, as JSON values: whatever it needs to go on from there.
Mark = Mapping[str, Any]


class Reading(Protocol):
    """One epoch of a source, from where it was begun: an iterator of batches.

    `next` and `mark` are called in turns, by one thread.
    """

    @property
    def start(self) -> Mark | None:
        """Where the source stood before the first batch; None where there is nothing to say."""

    def __next__(self) -> Any:
        """The next batch."""

    def mark(self, arrays: Sequence[Array]) -> Mark:
        """Where the source stands behind the batch that `next` gave last, of these arrays."""

    def end(self) -> Mark | None:
        """Where it stands behind the whole epoch: `start` of the next one."""

    def close(self) -> None:
        """Nothing more is wanted of this epoch."""


@runtime_checkable
class Source(Protocol):
    """Gives one epoch after another, from any place that a mark of its own names.

    Attributes:
        kind: "map", "stateful", "plain", or a word of who made a source of its own.
        deals: whether a mark fits other numbers of ranks too.
    """

    kind: str
    deals: bool

    def __len__(self) -> int:
        """Batches of an epoch, for this rank; TypeError where it cannot know."""

    def identity(self) -> dict[str, Any]:
        """What must be equal for a mark to mean the same batches, as JSON values."""

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> Reading:
        """Begin to read epoch `epoch` (from 0) behind its first `taken` batches.

        Called in the thread of the training loop, the reading is used in another.

        Args:
            epoch: its number, from 0.
            taken: how many batches of this rank were delivered before.
            mark: of the last of these, or of the end of the epoch before; None: the source goes on
                by itself.

        Raises:
            UsageError: the mark is not of this source.
        """

    def close(self) -> None:
        """The reader is closed: end what is kept from epoch to epoch."""


def tell_epoch(epoch: int, *owners: Any) -> None:
    """Call `set_epoch` of those that have it, as samplers and data sets do whose order changes."""
    for owner in owners:
        if callable(set_epoch := getattr(owner, "set_epoch", None)):
            set_epoch(epoch)
