"""The local batches of a rank, taken in a thread of their own: the loop never waits without end.

While teachers or a slow source keep one rank waiting, all others wait for it; so every rank has to
be able to say that it waits, and to hear meanwhile that it shall leave. `Shares` says how many rows
the rank reads for a step, as far as all ranks have agreed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from ...runtime.errors import PeerLost
from ...scheduler.students.agreement import RowShares, within
from ..feeding import ShardedSource, UnshardedSource
from ..job.batches import Parts, split

#: Behind the last batch of an epoch.
OVER: Final = object()


class Reader(Protocol):
    """A `DistilReader`, or a `DirectReader` where no teacher is asked; iterated once per epoch."""

    def __iter__(self) -> Iterator[Any]:
        """The next epoch; called by the main thread, as loaders' workers want it."""

    def close(self) -> None:
        """End what works for it."""


class Stops(Protocol):
    """The source behind it."""

    def stop(self) -> None:
        """Give no more batches."""


class Intake:
    """Takes one batch ahead of the loop. What the source raises is raised in `take`, as it is.

    Args:
        reader: where they come from.
        source: it is stopped before the reader is closed.
        on_label_kinds: told once what the teachers publish of their outputs, before the first batch
            for which that is known; in the thread of the intake.

    Attributes:
        source_s: seconds that the batch which was taken last took to come, whoever waited for it.
    """

    def __init__(
        self, reader: Reader, source: Stops, on_label_kinds: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._reader = reader
        self._source = source
        self._on_label_kinds: Callable[[Mapping[str, str]], None] | None = on_label_kinds
        self._epochs: SimpleQueue[Iterator[Any] | None] = SimpleQueue()
        self._taken: SimpleQueue[Any] = SimpleQueue()
        self._room = threading.Semaphore(0)
        self._closed = False
        self.source_s = 0.0
        self._thread = threading.Thread(target=self._run, name="edl-rank-intake", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin the next epoch; the one before it was taken to its end."""
        self._epochs.put(iter(self._reader))
        self._room.release()

    def take(self, timeout_s: float) -> Any:
        """The next batch; `OVER` behind the last one; None where there is none within the time."""
        try:
            kind, value, source_s = self._taken.get(timeout=timeout_s)
        except Empty:
            return None
        if kind == "raised":
            raise value
        if kind == "batch":
            self.source_s = source_s
            self._room.release()
        return value

    def waiting_for(self) -> str:
        """What the next batch waits for, in words."""
        stats = self.stats()
        if stats is None:
            return "the next batch of the feed"
        return f"soft labels: {stats.waiting_for}" if stats.waiting_for else "soft labels"

    def stats(self) -> Any:
        """`ReaderStats`; None where no teacher is asked."""
        return getattr(self._reader, "stats", None)

    def close(self) -> None:
        """Take no more. The thread is not waited for: the feed may be deep in a read."""
        self._closed = True
        self._epochs.put(None)
        self._room.release()
        self._source.stop()
        self._reader.close()

    def _run(self) -> None:
        while (batches := self._epochs.get()) is not None:
            try:
                self._epoch(batches)
                self._taken.put(("over", OVER, 0.0))
            except BaseException as error:  # the loop's to handle, whatever the user's code raises
                self._taken.put(("raised", error, 0.0))
            del batches

    def _epoch(self, batches: Iterator[Any]) -> None:
        self._room.acquire()
        began = time.perf_counter()
        for batch in batches:
            self._hear_kinds()
            self._taken.put(("batch", batch, time.perf_counter() - began))
            self._room.acquire()
            if self._closed:
                return
            began = time.perf_counter()

    def _hear_kinds(self) -> None:
        if self._on_label_kinds is None or (stats := self.stats()) is None:
            return
        if stats.label_kinds:
            self._on_label_kinds(dict(stats.label_kinds))
            self._on_label_kinds = None


#: So many steps ahead of what it has read may a rank go until the next vote. More of it lets a
#: buffer fill faster, and lets shares change later.
MARGIN = 8


class Shares:
    """Stands between the training loop, which hears the votes, and the thread that reads ahead.

    A vote promises not to read beyond `promise()` until the votes of all are heard; shares change
    from a later step on only. So every rank reads for each step what all others expect of it.

    Args:
        proportion: of all ranks, the same in each.
        rank: this one.
    """

    def __init__(self, proportion: RowShares, rank: int) -> None:
        self.proportion = proportion
        self._rank = rank
        self._changed = threading.Condition()
        self._first = 0  # step of the whole training with which the epoch was begun
        self._read = -1
        self._promised: int | None = None
        self._closed = False

    def begin(self, step: int) -> None:
        """An epoch begins with `step` of the whole training; nothing is promised yet."""
        with self._changed:
            self._first, self._read, self._promised = step, step - 1, None
            self._changed.notify_all()

    def rows(self, ordinal: int, left: int) -> int:
        """Rows of this rank at the `ordinal`-th step of the epoch, from 0, once it is agreed.

        All ranks together have `left` rows for this step and all later ones of the epoch.

        Before the first vote of an epoch nothing is waited for: loaders ask within its beginning.

        Raises:
            PeerLost: the loop has ended, and nothing will be agreed any more.
        """
        step = self._first + ordinal
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._free(step))
            if self._closed:
                raise PeerLost("the training loop has ended while its source read ahead")
            self._read = max(self._read, step)
            return within(self.proportion.rows(step), left)[self._rank]

    def expected(self, step: int) -> int:
        """Rows of this rank at a step that is agreed on."""
        return self.proportion.rows(step)[self._rank]

    def promise(self, step: int) -> int:
        """The last step that is read for until `told` is called; `step` is the next to be taken."""
        with self._changed:
            self._promised = max(self._read, step) + MARGIN
            self._changed.notify_all()
            return self._promised

    def told(self, proportion: RowShares) -> None:
        """What follows from the votes."""
        with self._changed:
            self.proportion = proportion

    def close(self) -> None:
        """Nothing is agreed any more: who waits is let go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _free(self, step: int) -> bool:
        return self._promised is None or step <= self._promised


@dataclass(frozen=True, slots=True)
class RankData:
    """What the loop knows of the data; see `loop.Data`."""

    source: ShardedSource | UnshardedSource
    label_names: tuple[str, ...]

    def take_apart(self, batch: Any) -> Parts:
        return split(batch, self.label_names, positions=self.source.has_positions)

    def stepped(self, epoch: int, positions: Any) -> None:
        self.source.trained(epoch, positions)
