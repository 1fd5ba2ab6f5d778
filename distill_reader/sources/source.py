"""What a source of batches is, and how one ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, runtime_checkable

from ...proto.arena import Array


def close_iterator(iterator: Iterator[Any]) -> None:
    """Let an iterator clean up behind an epoch that was left early: now, not some day.

    Generators have `close`, which runs their `finally`. The iterators of Paddle's and PyTorch's
    loaders have only a private method for it; without it, the workers of an epoch left early live
    on for as long as anyone, such as a traceback, refers to the iterator.
    """
    for name in ("close", "_try_shutdown_all", "_shutdown_workers"):
        if callable(close := getattr(iterator, name, None)):
            close()
            return


@cache
def leave_garbage_to_the_parent() -> None:
    """From now on, what is garbage when this process forks is collected here and in no child.

    A loader's iterator that was ended may be part of a cycle that nobody has collected yet. If a
    forked worker does, it tears down queues and threads that only its parent has: Paddle's destroy
    a condition on which, as far as they know, a thread waits, and wait for it without end. The
    loader then waits for its worker. So no collection happens while a child begins, and a child's
    own ones pass over whatever it inherited; its memory stays shared for longer, too.
    """
    enabled = True

    def before() -> None:
        nonlocal enabled
        enabled = gc.isenabled()
        gc.disable()

    def behind() -> None:
        if enabled:
            gc.enable()

    def in_child() -> None:
        gc.freeze()
        behind()

    # `before` of who registers last runs first, and `after_in_child` last: no one's own is missed.
    os.register_at_fork(before=before, after_in_parent=behind, after_in_child=in_child)


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
