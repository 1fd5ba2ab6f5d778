"""The batches of a rank, read ahead by a thread; the loop's waits for a batch have a time limit.

While one rank waits for teachers or a slow source, all others wait for it. So each rank must be
able to report that it waits, and to leave while it waits. `Shares` has the number of rows of this
rank in each step, as all ranks have agreed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from ...proto.arena import Array
from ...runtime.errors import PeerLost
from ...scheduler.students.agreement import RowShares, limit_rows
from ..feeding import DirectReader, ShardedSource, UnshardedSource
from ..job.batches import Parts, split_batch

if TYPE_CHECKING:
    from ...distill_reader.reader import DistilReader

#: Marks the end of an epoch; it follows the last batch.
END_OF_EPOCH: Final = object()


class BatchPrefetcher:
    """Takes one batch ahead of the loop. Exceptions of the source are raised unchanged in `take`.

    Args:
        reader: reader of the batches; `begin` calls `iter` on it once per epoch.
        source: source of the reader, stopped before the reader is closed.
        on_label_kinds: called once, in the prefetcher's thread, with the kinds of outputs that
            teachers publish. The call comes with the first batch that arrives after the kinds are
            known, before `take` returns it.
        label_names: names of the soft labels; empty: batches have none.
        tensor: converts a leaf of a batch, as `Framework.tensor` does.

    Attributes:
        source_s: seconds that the batch of the last `take` took to arrive, even if the loop did not
            wait for it.
    """

    def __init__(
        self,
        reader: DistilReader | DirectReader,
        source: ShardedSource | UnshardedSource,
        on_label_kinds: Callable[[Mapping[str, str]], None],
        label_names: tuple[str, ...],
        tensor: Callable[[Any], Any],
    ) -> None:
        self._reader = reader
        self._source = source
        self._label_names, self._tensor = label_names, tensor
        self._on_label_kinds: Callable[[Mapping[str, str]], None] | None = on_label_kinds
        self._epochs: SimpleQueue[Iterator[Any] | None] = SimpleQueue()
        self._taken: SimpleQueue[Any] = SimpleQueue()
        self._room = threading.Semaphore(0)
        self._closed = False
        self.source_s = 0.0
        self._thread = threading.Thread(target=self._run, name="edl-rank-prefetcher", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin the next epoch; the previous one must have been taken to its end."""
        self._epochs.put(iter(self._reader))
        self._room.release()

    def take(self, timeout_s: float) -> Any:
        """Return the next batch; `END_OF_EPOCH` after the last; None after `timeout_s` seconds."""
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

    def parts(self, batch: Any) -> Parts:
        """Split a batch into its parts, for the step."""
        positions = self._source.has_positions
        return split_batch(batch, self._label_names, tensor=self._tensor, positions=positions)

    def trained(self, epoch: int, positions: Array) -> None:
        """Record that a step trained a batch with these positions, int64 [rows]."""
        self._source.trained(epoch, positions)

    def waiting_for(self) -> str:
        """Return what the next batch waits for, as text."""
        stats = self.stats()
        if stats is None:
            return "the next batch of the feed"
        return f"soft labels: {stats.waiting_for}" if stats.waiting_for else "soft labels"

    def stats(self) -> Any:
        """Return `ReaderStats`; None if the job uses no teachers."""
        return getattr(self._reader, "stats", None)

    def close(self) -> None:
        """Take no more batches. Does not wait for the thread, as the feed may block."""
        self._closed = True
        self._epochs.put(None)
        self._room.release()
        self._source.stop()
        self._reader.close()

    def _run(self) -> None:
        while (batches := self._epochs.get()) is not None:
            try:
                self._epoch(batches)
                self._taken.put(("over", END_OF_EPOCH, 0.0))
            except BaseException as error:  # the loop handles any exception of the user's code
                self._taken.put(("raised", error, 0.0))
            del batches

    def _epoch(self, batches: Iterator[Any]) -> None:
        self._room.acquire()
        began = time.perf_counter()
        for batch in batches:
            self._report_label_kinds()
            self._taken.put(("batch", batch, time.perf_counter() - began))
            self._room.acquire()
            if self._closed:
                return
            began = time.perf_counter()

    def _report_label_kinds(self) -> None:
        if self._on_label_kinds is None or (stats := self.stats()) is None:
            return
        if stats.label_kinds:
            self._on_label_kinds(dict(stats.label_kinds))
            self._on_label_kinds = None


#: Number of steps that a rank may read ahead before the next vote. With more, buffers fill faster,
#: but changes of the shares apply later.
MARGIN = 8


class Shares:
    """The rows of this rank in each step, for the training loop and the thread that reads ahead.

    With its vote, a rank promises how far it reads ahead: until it has all votes, it reads no step
    after the one that `promise` returned. Shares change only for steps after the promised ones of
    all ranks. So each rank reads the number of rows that the others expect of it.

    Args:
        proportion: shares of all ranks; the same value on each rank.
        rank: number of this rank.
    """

    def __init__(self, proportion: RowShares, rank: int) -> None:
        self.proportion = proportion
        self._rank = rank
        self._changed = threading.Condition()
        self._first = 0  # step of the whole training at which the epoch began
        self._read = -1
        self._promised: int | None = None
        self._closed = False

    def begin(self, step: int) -> None:
        """Begin an epoch at `step` of the whole training, without a promise."""
        with self._changed:
            self._first, self._read, self._promised = step, step - 1, None
            self._changed.notify_all()

    def rows(self, ordinal: int, left: int) -> int:
        """Return the rows of this rank at step `ordinal` of the epoch, from 0.

        All ranks together have `left` rows for this step and all later ones of the epoch. This
        blocks until the step is within the promise; before the first vote of an epoch it does not
        block, as loaders call it when the epoch begins.

        Raises:
            PeerLost: the loop has ended.
        """
        step = self._first + ordinal
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._promised is None or step <= self._promised
            )
            if self._closed:
                raise PeerLost("the training loop has ended while its source read ahead")
            self._read = max(self._read, step)
            return limit_rows(self.proportion.rows(step), left)[self._rank]

    def expected(self, step: int) -> int:
        """Return the rows that the shares give this rank at `step`."""
        return self.proportion.rows(step)[self._rank]

    def promise(self, step: int) -> int:
        """Promise, with the vote on `step`, how far this rank reads ahead before the next vote.

        Returns:
            The last step for which it may read rows.
        """
        with self._changed:
            self._promised = max(self._read, step) + MARGIN
            self._changed.notify_all()
            return self._promised

    def set_shares(self, proportion: RowShares) -> None:
        """Set the shares that all ranks have derived from the votes."""
        with self._changed:
            self.proportion = proportion

    def close(self) -> None:
        """Let waiting threads fail with PeerLost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
