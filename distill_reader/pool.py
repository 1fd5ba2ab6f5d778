"""`TeacherPool`: soft labels on demand, for loops that generate their own inputs."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self

from ..runtime.errors import UsageError
from .calls import CLOSED, Labels
from .reader import DistilReader
from .setting_checks import number
from .stats import ReaderStats

DEFAULT_TIMEOUT_S: Final = 60.0
#: Options of `DistilReader` that concern a source or a training loop.
_LOOP_OPTIONS: Final = frozenset(
    {
        "source",
        "upper_bytes",
        "lower_bytes",
        "world_size",
        "uneven",
        "seed",
        "ordered",
        "no_teacher",
        "trace",
    }
)


class TeacherPool:
    """Gets soft labels for single batches, as for on-policy distillation or active learning.

    Calls have the guarantees of `DistilReader`: they survive the death of teachers and of the
    engine, teachers with wrong labels are found, and each call gets exactly one answer. `submit`
    waits if callers produce batches faster than teachers label them. The pool asks the coordinator
    for as many teachers as its calls need. Thread-safe.

    Without `with`, a pool closes when it is garbage-collected or the interpreter ends.

    Args:
        service: name of the teachers' service; or several with weights, as for `DistilReader`.
        coordinator: Redis URL of the mesh, as in `redis://head:6379`.
        teachers: addresses `host:port` of teachers, instead of a coordinator.
        timeout_s: seconds that a call may take, unless the call states its own limit.
        job: name of this pool in the mesh; by default, a unique one.
        **options: further arguments of `DistilReader` about teachers, labels and limits.

    Raises:
        UsageError: settings are wrong or contradict each other.
        ProcessFailed: the system refuses memory, descriptors, a process or a thread.
        TypeError: an option that does not exist, or is about a training loop.
    """

    def __init__(
        self,
        *,
        service: str | Mapping[str, float],
        coordinator: str | None = None,
        teachers: Sequence[str] | Mapping[str, Sequence[str]] = (),
        timeout_s: float = DEFAULT_TIMEOUT_S,
        job: str | None = None,
        **options: Any,
    ) -> None:
        if wrong := sorted(_LOOP_OPTIONS & options.keys()):
            raise TypeError(f"a TeacherPool has no training loop: remove {wrong[0]}=")
        if job is None:  # no other pool has this name, so do not save a profile for it
            # Containers may share a host name and have the same pids.
            job = f"pool-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
            options.setdefault("profiles", None)
        self._timeout_s = _timeout(timeout_s)
        self._reader = DistilReader(
            (), service=service, coordinator=coordinator, teachers=teachers, job=job, **options
        )
        self._reader._pipeline.begin_epochs_when_due()
        self._owns_reader, self._closed = True, False

    @classmethod
    def of(cls, reader: DistilReader, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Self:
        """Return a pool that shares the engine and the teachers of a reader.

        Its calls use the reader's settings, and fail when the reader is closed; closing
        the pool leaves the reader open.
        """
        pool = cls.__new__(cls)
        pool._timeout_s = _timeout(timeout_s)
        pool._reader = reader
        pool._owns_reader, pool._closed = False, False
        return pool

    def label(self, batch: Any, timeout_s: float | None = None) -> Labels:
        """Return the soft labels of a batch, by name of the model's output.

        Args:
            batch: as a source of `DistilReader` would yield it: a tuple, list or dict of numpy
                arrays or tensors, or a single array. A batch without rows needs no teacher, but
                raises BatchError until the pool has labelled another batch.
            timeout_s: seconds that the call may take; None: the pool's.

        Returns:
            Arrays or tensors, as in the batch, with one row for each of its rows.

        Raises:
            LabelTimeout: there were no labels in time.
            PoisonBatch: teachers refuse the batch.
            BatchError: the batch cannot be sent.
            UsageError: the batch does not fit the model, the pool is closed or was made in another
                process, or the caller is a callback of a future: labels would arrive only after
                the callback returns.
            MemoryRefused, ProcessFailed: the system refuses shared memory, or a thread.
            EdlError: the pool can label nothing any more; the error says why.
        """
        if self._reader._pipeline.engine.calls.is_in_callback:
            raise UsageError(
                "a callback of a future cannot wait for labels, because other answers wait for it:"
                " call submit, and add a callback to that future"
            )
        future = self.submit(batch, timeout_s)
        try:
            return future.result()
        finally:
            future.cancel()  # after a Ctrl-C; else without effect
            del future  # an error that it raised would keep itself alive through this frame

    def submit(self, batch: Any, timeout_s: float | None = None) -> Future[Labels]:
        """Return a future for the result or error of `label`.

        Blocks while too many calls wait for labels, except in a callback of a future. The batch is
        copied before this returns. The future can be cancelled. Its callbacks run in a thread of
        the pool and delay other answers; they may call `submit`.
        """
        limit_s = self._limit(timeout_s)
        return self._submit(batch, limit_s, time.monotonic() + limit_s)

    async def label_async(self, batch: Any, timeout_s: float | None = None) -> Labels:
        """Like `label`, but does not block the event loop."""
        return await (await self.submit_async(batch, timeout_s))

    async def submit_async(
        self, batch: Any, timeout_s: float | None = None
    ) -> asyncio.Future[Labels]:
        """Like `submit`, but does not block the event loop; returns a future of that loop."""
        submitted: list[Future[Labels]] = []
        is_cancelled = False
        limit_s = self._limit(timeout_s)
        deadline = time.monotonic() + limit_s  # not in the thread, which may start late

        def submit() -> None:  # in a thread, which goes on if this task is cancelled
            submitted.append(self._submit(batch, limit_s, deadline))
            if is_cancelled:
                submitted[0].cancel()

        try:
            await asyncio.to_thread(submit)
        except asyncio.CancelledError:
            is_cancelled = True
            for future in submitted:
                future.cancel()
            raise
        return asyncio.wrap_future(submitted[0])

    def _submit(self, batch: Any, limit_s: float, deadline: float) -> Future[Labels]:
        if self._closed:
            raise UsageError(CLOSED)
        return self._reader._pipeline.call(batch, limit_s, deadline)

    def _limit(self, timeout_s: float | None) -> float:
        """Return the seconds that a call may take."""
        return self._timeout_s if timeout_s is None else _timeout(timeout_s)

    @property
    def stats(self) -> ReaderStats:
        """Current statistics, at most 0.2 s old; those of the reader, if the pool shares one."""
        return self._reader.stats

    def close(self) -> None:
        """End the engine; waiting calls get a UsageError. Idempotent.

        If the pool shares the engine of a reader, the engine goes on, and waiting calls get labels.
        """
        self._closed = True
        if self._owns_reader:
            self._reader.close()

    def __reduce__(self) -> Any:
        raise UsageError(
            "a pool can be neither copied nor pickled: it has processes and threads of its own;"
            " make one in each process"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _timeout(seconds: float) -> float:
    if (timeout_s := number("timeout_s", seconds)) <= 0:
        raise UsageError(f"timeout_s must be above 0, not {timeout_s}")
    return timeout_s
