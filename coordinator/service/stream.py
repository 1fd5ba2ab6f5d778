"""A student's stream as the manager sees it."""

from __future__ import annotations

import asyncio
import contextlib

from ...errors import EdlError
from ...proto import coordinator_pb2 as pb


class Outgoing:
    """Keeps the latest assignment until it is sent; any thread may push, one task sends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.report: pb.StudentReport | None = None
        self._loop = loop
        self._changed = asyncio.Event()
        self._latest: pb.Assignment | None = None
        self._error: EdlError | None = None
        self._finished = False

    def push(self, assignment: pb.Assignment) -> None:
        """Send it soon; a later one replaces one that was not sent yet. For the manager."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._set_latest, assignment)

    def close(self, error: EdlError) -> None:
        """End the stream by `error`. For the manager."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.fail, error)

    def fail(self, error: EdlError) -> None:
        """End the stream by `error`; in the loop's thread."""
        self._error = self._error or error
        self._changed.set()

    def finish(self) -> None:
        """The student has closed its side; in the loop's thread."""
        self._finished = True
        self._changed.set()

    async def next(self) -> pb.Assignment | None:
        """The next to send; None when the student has closed its side; raises the stream's end."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._error is not None:
                raise self._error
            if self._finished:
                return None
            if (latest := self._latest) is not None:
                self._latest = None
                return latest

    def _set_latest(self, assignment: pb.Assignment) -> None:
        self._latest = assignment
        self._changed.set()
