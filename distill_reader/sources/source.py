"""The protocol of sources of batches, and functions that all sources need."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, runtime_checkable

from ...proto.arena import Array
from ...runtime.errors import UsageError


def close_iterator(iterator: Iterator[Any]) -> None:
    """Release the resources of an iterator that is not exhausted, without waiting for its end.

    Generators have `close`, which runs their `finally`. The iterators of Paddle's and PyTorch's
    loaders have only a private method; without it, their workers would live for as long as
    anything, such as a traceback, refers to the iterator.
    """
    for name in ("close", "_try_shutdown_all", "_shutdown_workers"):
        if callable(close := getattr(iterator, name, None)):
            close()
            return


#: Whether a loader keeps its workers from epoch to epoch: the names in PyTorch and in Paddle.
KEEPS_WORKERS = ("persistent_workers", "_persistent_workers")


def own_iterator(iterable: Any) -> Iterator[Any]:
    """Return an iterator of a loader, or of any iterable, that `close_iterator` may close.

    A loader that keeps its workers would return an iterator that it uses in the next epoch again.
    """
    attributes: dict[str, Any] = getattr(iterable, "__dict__", {})
    kept = {name: attributes[name] for name in KEEPS_WORKERS if name in attributes}
    attributes.update(dict.fromkeys(kept, False))
    try:
        return iter(iterable)
    finally:
        attributes.update(kept)


@cache
def freeze_garbage_in_forks() -> None:
    """Have children that are forked from now on ignore the garbage that they inherit.

    A loader's iterator that has ended may be part of an uncollected reference cycle. If a forked
    worker collects it, its finalizers tear down queues and threads that exist only in the parent.
    Paddle's finalizers then wait forever for a condition variable, and the loader waits for its
    worker. So the collector is off during a fork, and a child ignores inherited objects. As a side
    effect, the child's memory stays shared for longer.
    """
    enabled = True  # whether the collector was on before the forks in progress
    forks = 0  # number of forks in progress

    def before() -> None:
        nonlocal enabled, forks
        if not forks:
            enabled = gc.isenabled()
        forks += 1
        gc.disable()

    def after() -> None:
        nonlocal forks
        forks -= 1
        if enabled and not forks:
            gc.enable()

    def in_child() -> None:
        nonlocal forks
        gc.freeze()
        forks = 1  # other threads are not in the child
        after()

    # Handlers registered later run first before a fork, and last after it. So these handlers
    # enclose those registered earlier.
    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


#: JSON values from which a source can resume, together with the number of batches delivered in the
#: epoch. If that number suffices, all marks of an epoch may be equal.
Mark = Mapping[str, Any]


@contextmanager
def reading_mark() -> Iterator[None]:
    """Raise UsageError if the code in a `with` block cannot read a saved mark."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"the position in the source is damaged ({what}); load another state"
        ) from None


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the fields that differ between two identities, as text; empty if none does."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in names)


class SourceIterator(Protocol):
    """An iterator over the batches of one epoch of a source.

    One thread calls `next` and `mark` alternately.
    """

    @property
    def start(self) -> Mark | None:
        """The mark before the first batch; None: where the source begins by default."""

    def __next__(self) -> Any: ...

    def mark(self, arrays: Sequence[Array]) -> Mark:
        """Return the mark after the latest batch, which has these arrays."""

    def end(self) -> Mark | None:
        """Return the mark after the epoch, where the next epoch starts; None: by default.

        Called after the last batch.
        """

    def close(self) -> None:
        """Release resources, also before the epoch's end."""


@runtime_checkable
class ResumableSource(Protocol):
    """A source of batches that can start an epoch at any of its marks.

    Attributes:
        kind: "map", "stateful", "plain", or a name for a source of your own.
        divides_ids: whether the source divides sample ids among ranks itself, so that its marks are
            also valid for other numbers of ranks.
    """

    kind: str
    divides_ids: bool

    def __len__(self) -> int:
        """Return the batches per epoch of this rank; raises TypeError if unknown."""

    def identity(self) -> dict[str, Any]:
        """Return properties, as JSON values; a mark is valid only for a source with equal ones."""

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> SourceIterator:
        """Start an epoch after its first `taken` batches.

        Called in the training loop's thread; another thread uses the iterator.

        Args:
            epoch: its number, from 0.
            taken: batches of this rank that were delivered before.
            mark: the mark after these, or after the previous epoch; None: where the source begins
                by default.

        Raises:
            UsageError: the mark is not of this source.
        """

    def close(self) -> None:
        """Release what is kept from epoch to epoch, such as workers."""


def set_epoch_of(epoch: int, *objects: Any) -> None:
    """Call `set_epoch(epoch)` of each object that has this method, such as a sampler."""
    for each in objects:
        if callable(set_epoch := getattr(each, "set_epoch", None)):
            set_epoch(epoch)
