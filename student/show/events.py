"""Event files of a training for TensorBoard, in the format of tensorboardX."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...runtime.errors import UsageError
from ...runtime.extras import install_command
from ..messages import Progress
from .status import TrainingStatus

log = logging.getLogger(__name__)

#: Seconds between flushes to disk.
_FLUSH_S: Final = 10.0
#: Seconds without writes after an error of the disk; figures that arrive meanwhile are dropped.
_PAUSE_S: Final = 60.0
#: Limit of the steps that wait for a slow disk; the figures of further steps are dropped.
_MOST_WAITING: Final = 1000


class StepScalars(NamedTuple):
    """The figures of a step.

    Attributes:
        generation: generation of the ranks that took it.
        purge: step from which on values in older files are void; None: all stay valid.
        step: number of the step.
        values: tags and values.
    """

    generation: int
    purge: int | None
    step: int
    values: tuple[tuple[str, float], ...]


class EventFiles:
    """Writes the figures of each step that rank 0 reports; nothing on nodes without rank 0.

    Each generation begins a new file. Except for a first generation that starts at step 0, the file
    says from which step on the values of older files are void. A thread writes, so that nothing
    else waits for the disk. (The library's `SummaryWriter` has a thread too, but an error of the
    disk ends it, and then its callers block forever.)

    Args:
        folder: folder of the files, created if needed.
        pause_s: seconds without writes after an error of the disk.

    Raises:
        UsageError: the folder cannot be created, or the library is not installed.
    """

    def __init__(self, folder: str, pause_s: float = _PAUSE_S) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"event files need tensorboardX ({error}): leave --events out, or"
                f" {install_command('events')}"
            ) from None
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"event files cannot be written to {folder}: {error}") from error
        self._folder, self._pause_s = folder, pause_s
        self._status = TrainingStatus()
        self._purge: int | None = None
        self._last_step = -1
        self._queue: queue.Queue[StepScalars | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        """Begin a generation; arguments as in `Terminal.begin`."""
        self._status.begin(generation, world, step, steps)
        self._purge = step + 1 if step or generation > 1 else None
        self._last_step = step

    def progress(self, rank: int, progress: Progress) -> None:
        """Record a report of a rank of this node.

        If it is of rank 0 and of a new step, queue the figures for writing; if the queue is full,
        drop them.
        """
        self._status.progress(rank, progress, time.monotonic())
        if rank != 0 or progress.step <= self._last_step:
            return
        self._last_step = progress.step
        values = tuple(scalars(self._status))
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="edl-events", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(
                StepScalars(self._status.generation, self._purge, progress.step, values)
            )

    def close(self) -> None:
        """Write everything that was reported, for at most `2 * _FLUSH_S` seconds."""
        if self._thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_FLUSH_S)
        self._thread.join(_FLUSH_S)
        self._thread = None

    def _write(self) -> None:
        file = _File(self._folder)
        paused_until = 0.0
        while True:
            figures: StepScalars | None = None
            with contextlib.suppress(queue.Empty):
                if (figures := self._queue.get(timeout=_FLUSH_S)) is None:
                    break
            if (now := time.monotonic()) < paused_until:
                continue
            try:
                file.write(figures, now)
            except OSError as error:
                log.warning(
                    "event files cannot be written to %s: %s; next attempt in %.0f s",
                    self._folder,
                    error,
                    self._pause_s,
                )
                file.close()
                paused_until = now + self._pause_s
        file.close()


class _File:
    """The newest event file of a folder; its methods raise OSError, except `close`."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._file: Any = None
        self._generation = 0
        self._flushed = 0.0

    def write(self, figures: StepScalars | None, now: float) -> None:
        """Append figures, if there are any; flush if the last flush is `_FLUSH_S` ago."""
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        if figures is not None:
            if self._file is None or figures.generation != self._generation:
                self.close()
                self._open(figures)
            summary = Summary()
            for tag, value in figures.values:
                summary.MergeFrom(scalar(tag, value))
            self._append(step=figures.step, summary=summary)
        if self._file is not None and now - self._flushed >= _FLUSH_S:
            self._file.flush()
            self._flushed = now

    def close(self) -> None:
        """Close the file, ignoring errors of the disk."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self, figures: StepScalars) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.record_writer import RecordWriter

        # TensorBoard reads the files of a folder in alphabetical order.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        self._file = RecordWriter(str(self._folder / name))
        self._generation = figures.generation
        self._append(file_version="brain.Event:2")
        if figures.purge is not None:
            self._append(step=figures.purge, session_log=SessionLog(status=SessionLog.START))

    def _append(self, **event: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._file.write(Event(wall_time=time.time(), **event).SerializeToString())


def scalars(status: TrainingStatus) -> Iterator[tuple[str, float]]:
    """Yield tags and values of the current step."""
    for name, value in status.losses.items():
        yield f"loss/{name}", value
    for name, value in status.metrics.items():
        yield f"metrics/{name}", value
    yield "speed/samples_per_s", status.samples_per_s
    yield "world/ranks", status.world
    yield "world/total_batch", status.total
    for rank, step_s, wait_s in status.step_times():
        yield f"speed/step_s/rank_{rank}", step_s
        yield f"speed/wait_s/rank_{rank}", wait_s
    if (teachers := status.teachers) is not None:
        yield "labels/teachers", teachers[0]
    if (buffer := status.buffer) is not None:
        yield "labels/volume_bytes", buffer[0]
