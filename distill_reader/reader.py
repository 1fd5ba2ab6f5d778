"""`DistilReader`: the loader that a training loop iterates; the face, with the work behind it."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

from ..errors import UsageError
from .config import DEFAULT_UPPER_BYTES, Feeds, ReaderConfig, feed_pairs
from .engine_client import EngineClient
from .puller import Puller
from .ring import Ring
from .stats import ReaderStats
from .stream import Labelled, Stream
from .structure import put_together

log = logging.getLogger(__name__)

#: A wait for labels is explained in the log each time it has lasted so long.
EXPLAIN_EVERY_S = 10.0
PULLER_GRACE_S = 5.0


class DistilReader:
    """Iterates the batches of `source`, each with the soft labels that teachers gave it.

    In order, each batch exactly once, whatever happens to teachers (the paper, sections 3.1, 3.2).
    Batches are tuples, lists or dicts of numpy arrays or Paddle tensors; soft labels come behind
    the fields of a tuple or list, under the names of the model's outputs in a dict. A reader may be
    iterated again, left early, and lives beside others in one process. Without `with` it closes
    itself when it is collected or the interpreter ends.

    Args:
        source: any re-iterable of batches, such as a `paddle.io.DataLoader`.
        service: name of the set of teachers to ask.
        coordinator: Redis URL of the mesh, as in `redis://head:6379`.
        teachers: addresses `host:port`, in place of a coordinator.
        feeds: what of a batch the teachers get: fields in the order of the model's inputs, as in
            `[0]` or `["image"]`, or a dict from model input to field. By default the fields that
            bear the names of inputs, else the first ones.
        fetches: model outputs that come back, as soft labels, in this order; by default all.
        upper_bytes: `ut` of Algorithm 1: above so many bytes of labelled batches none is pulled.
        lower_bytes: `lt`: below so many bytes pulling goes on; by default half of `upper_bytes`.
        job: name of this training in the mesh.
        rank: number of this student in its job.
        window: requests in flight per teacher.
        teachers_min: never ask for fewer teachers.
        teachers_max: never ask for more.
        request_timeout_s: seconds after which an unanswered request counts as a lost teacher.
        wait_timeout_s: seconds without any teacher after which `NoTeacherAvailable` is raised;
            None waits for ever. The log says what it waits for.

    Raises:
        UsageError: settings that cannot work. While iterating, what the source raised, as it is;
            PoisonBatch, NoTeacherAvailable or EngineLost where the mesh cannot go on.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        service: str,
        coordinator: str | None = None,
        teachers: Sequence[str] = (),
        feeds: Feeds | None = None,
        fetches: Sequence[str] | None = None,
        upper_bytes: int = DEFAULT_UPPER_BYTES,
        lower_bytes: int | None = None,
        job: str = "job",
        rank: int = 0,
        window: int = 2,
        teachers_min: int = 1,
        teachers_max: int = 64,
        request_timeout_s: float = 120.0,
        wait_timeout_s: float | None = 600.0,
    ) -> None:
        if isinstance(source, Iterator):
            raise UsageError(
                "an iterator can be read only once; give the reader what makes it, such as the"
                " DataLoader itself, or a class with __iter__"
            )
        self.source = source
        self.config = ReaderConfig(
            service=service,
            coordinator=coordinator,
            teachers=tuple(teachers),
            feeds=feed_pairs(feeds),
            fetches=tuple(fetches or ()),
            upper_bytes=upper_bytes,
            lower_bytes=upper_bytes // 2 if lower_bytes is None else lower_bytes,
            job=job,
            rank=rank,
            window=window,
            teachers_min=teachers_min,
            teachers_max=teachers_max,
            request_timeout_s=request_timeout_s,
            wait_timeout_s=wait_timeout_s,
        )
        self._stream = Stream()
        self._ring = Ring()
        self._engine = EngineClient(self.config, self._stream, self._ring)
        self._puller = Puller(self._stream, self._ring, self._engine)
        self._delivered = 0
        self._samples_delivered = 0
        self._close = weakref.finalize(
            self, _close, self._stream, self._puller, self._engine, self._ring
        )

    def __len__(self) -> int:
        """Batches of an epoch: what the source says."""
        return len(self.source)  # type: ignore[arg-type]  # a source without len() says so itself

    def __iter__(self) -> Epoch:
        """A new epoch; one that is still being read ends."""
        if not self._close.alive:
            raise UsageError("this reader is closed")
        epoch = self._leave_epoch()
        self._puller.pull(iter(self.source), epoch)
        return Epoch(self, epoch)

    @property
    def stats(self) -> ReaderStats:
        """Its figures at this moment."""
        known = {field.name for field in fields(ReaderStats)}
        told = {key: _frozen(value) for key, value in self._engine.stats.items() if key in known}
        return ReaderStats(
            **{
                **told,
                "yielded": self._stream.pulled,
                "delivered": self._delivered,
                "samples_delivered": self._samples_delivered,
                "upper_bytes": self.config.upper_bytes,
                "lower_bytes": self.config.lower_bytes,
                "engine_restarts": self._engine.restarts,
            }
        )

    @property
    def engine_pid(self) -> int:
        """Process id of the engine that works for this reader now."""
        return self._engine.pid

    def close(self) -> None:
        """End the engine and give the buffer back; again without effect."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _leave_epoch(self) -> int:
        """End the current epoch, whatever it still holds, and give the number of the next."""
        epoch, batches, labels = self._stream.begin()
        self._puller.settle(PULLER_GRACE_S)  # behind this it announces nothing of the old epoch
        for pulled in batches:
            self._ring.drop(pulled.record)
        for label in labels:
            self._engine.drop_labels(label)
        self._engine.reset()
        return epoch

    def _next(self, epoch: int, step_s: float | None) -> Any:
        labelled = self._stream.take(epoch, timeout_s=0.0)
        if labelled is None:
            self._engine.waiting()
            labelled = self._wait(epoch)
        pulled = labelled.pulled
        self._engine.taken(pulled.number, pulled.parts.samples, step_s)
        self._delivered += 1
        self._samples_delivered += pulled.parts.samples
        return put_together(
            pulled.parts.skeleton,
            self._ring.views(pulled.record),
            self._engine.label_views(labelled.labels),
        )

    def _wait(self, epoch: int) -> Labelled:
        since = time.monotonic()
        while (labelled := self._stream.take(epoch, EXPLAIN_EVERY_S)) is None:
            why = self._engine.stats.get("waiting_for") or "the engine has not said for what"
            log.warning("waiting %.0f s: %s", time.monotonic() - since, why)
        return labelled


class Epoch(Iterator[Any]):
    """One iteration of a reader; leaving it early, by `break` or `del`, ends its epoch."""

    def __init__(self, reader: DistilReader, epoch: int) -> None:
        self._reader = reader
        self._epoch = epoch
        self._returned_at: float | None = None

    def __next__(self) -> Any:
        called_at = time.monotonic()
        step_s = None if self._returned_at is None else called_at - self._returned_at
        batch = self._reader._next(self._epoch, step_s)
        self._returned_at = time.monotonic()
        return batch

    def close(self) -> None:
        """Leave the epoch; the reader can be iterated again."""
        reader = self._reader
        if reader._stream.epoch == self._epoch and reader._close.alive:
            reader._leave_epoch()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


def _close(stream: Stream, puller: Puller, engine: EngineClient, ring: Ring) -> None:
    stream.fail(UsageError("this reader is closed"), for_good=True)
    stream.begin()
    puller.close()
    engine.close()
    ring.close()


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value
