"""A file of Chrome trace events with bounded size that is valid at any time.

The format is the JSON array of objects that Perfetto and chrome://tracing read. Each event is a
line, and readers of the format do not need the end of the array: the file is valid even after a
`kill -9`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..runtime.errors import UsageError

log = logging.getLogger(__name__)

#: Events are written in chunks of this size, or by `flush`.
_BUFFER_BYTES: Final = 64 << 10
_BEGIN: Final = b"[\n"
_BETWEEN: Final = b",\n"
_END: Final = b"\n]\n"

TraceEvent = Mapping[str, Any]


def create_trace(path: Path) -> None:
    """Create or empty the trace at `path`, and delete its older part.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        older(path).unlink(missing_ok=True)
        path.write_bytes(_BEGIN)
    except OSError as error:
        raise UsageError(f"the trace cannot be written: {error}") from None


def older(path: Path) -> Path:
    """Return the path of the older part: `run.json` -> `run.older.json`."""
    return path.with_suffix(f".older{path.suffix}")


class TraceFile:
    """Appends to the trace at `path`. Not thread-safe.

    When the file reaches half of `max_bytes`, it replaces `older(path)` and a new one begins, so
    the latest events are always kept. An error of the file system ends the trace with a warning in
    the log.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._limit = max_bytes // 2
        self._names: dict[tuple[Any, ...], bytes] = {}  # of tracks; repeated in each new file
        self._buffer: list[bytes] = []
        self._buffered = self._size = 0
        self._fd = -1
        try:
            self._fd = _opened(path)
            self._size = _repair(self._fd)
        except OSError as error:
            self._give_up(error)

    def name_track(self, what: str, name: str, pid: int, tid: int = 0) -> None:
        """Name a track; `what` is "process_name" or "thread_name"."""
        event = {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        line = self._names[what, pid, tid] = _line(event)
        self._put(line)

    def add(self, *events: TraceEvent) -> None:
        """Buffer events; those of one call are written to the same file."""
        for event in events:
            self._put(_line(event))
        if self._buffered >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered events; begin a new file if this one is full."""
        self._write(b"".join(self._buffer))
        self._buffer.clear()
        self._buffered = 0
        if self._fd >= 0 and self._size >= self._limit:
            self._rotate()

    def close(self, last: TraceEvent) -> None:
        """Write `last`, end the array and close the file.

        `last` marks the end of the trace: a `TraceFile` that continues the file removes it.
        """
        self._put(_line(last).removesuffix(_BETWEEN) + _END)
        self._write(b"".join(self._buffer))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, line: bytes) -> None:
        if self._fd >= 0:
            self._buffer.append(line)
            self._buffered += len(line)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and self._fd >= 0:
                written = os.write(self._fd, view)
                self._size += written
                view = view[written:]
        except OSError as error:
            self._give_up(error)

    def _rotate(self) -> None:
        try:
            os.ftruncate(self._fd, self._size - len(_BETWEEN))
            os.write(self._fd, _END)
            self._path.replace(older(self._path))
            fresh = _opened(self._path)
        except OSError as error:
            self._give_up(error)
            return
        os.close(self._fd)
        self._fd, self._size = fresh, 0
        self._write(_BEGIN + b"".join(self._names.values()))

    def _give_up(self, error: OSError) -> None:
        log.warning("the trace %s ends here: %s", self._path, error)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _line(event: TraceEvent) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + _BETWEEN


def _repair(fd: int) -> int:
    """Cut off a partial event, or the last event with the array's end; returns the file's size.

    An earlier engine may have left either of them.
    """
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _BUFFER_BYTES, max(size - _BUFFER_BYTES, 0))
    kept = max(
        (tail.rfind(mark) + len(mark) for mark in (_BETWEEN, _BEGIN) if mark in tail), default=0
    )
    size = size - len(tail) + kept
    os.ftruncate(fd, size)
    if size == 0:
        size = os.write(fd, _BEGIN)
    return size
