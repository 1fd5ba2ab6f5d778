"""Lines to one server that are kept: what it costs to open one is paid once.

A kept line may have been ended by its server meanwhile, to make room for others: then the request
is sent once more, over a fresh one, and so are those that shared a line with one that was late. To
label a batch twice does no harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ...errors import EdlError, TeacherLost


class Ended(Exception):
    """A line has ended without an answer, because of `why`."""

    def __init__(self, why: EdlError) -> None:
        super().__init__(why)
        self.why = why


class Line(Protocol):
    """One line. Any thread may use it; it takes what it was made for at once."""

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent: as far as is known here, it has not ended."""
        ...

    def ask(self, message: bytes, until_s: float) -> memoryview:
        """Send a request and wait for its answer until then, on the monotonic clock.

        Raises:
            Ended: there will be none.
            DeadlineExceeded: it did not come in time; the line is of no use any more.
        """
        ...

    def end(self) -> None:
        """Whoever waits for an answer waits no more; again without effect."""
        ...


class Lines:
    """Asks over as many lines as it needs; any thread may.

    Args:
        open_line: makes one; what it raises is raised by `call`.
        at_once: requests that one line takes at once.
    """

    def __init__(self, open_line: Callable[[], Line], at_once: int) -> None:
        self._open_line = open_line
        self._at_once = at_once
        self._lock = threading.Lock()
        self._busy: dict[Line, int] = {}  # requests on their way; the last one used comes last
        self._closed = False

    def call(self, message: bytes, timeout_s: float) -> memoryview:
        """The answer to `message`, as a view of what came.

        Raises:
            DeadlineExceeded: it did not come in time.
            TeacherLost: nobody answers, the connection broke, or this was closed.
            EdlError: why the server has ended the line.
        """
        until_s = time.monotonic() + timeout_s
        if (kept := self._kept()) is not None:
            with suppress(Ended):
                return self._ask(kept, message, until_s)
        try:
            return self._ask(self._fresh(), message, until_s)
        except Ended as ended:
            raise ended.why from None

    def close(self) -> None:
        """End all lines; calls that wait end as TeacherLost. Idempotent."""
        with self._lock:
            self._closed = True
            lines, self._busy = list(self._busy), {}
        for line in lines:
            line.end()

    def _ask(self, line: Line, message: bytes, until_s: float) -> memoryview:
        try:
            answer = line.ask(message, until_s)
        except BaseException:
            self._drop(line)
            if self._closed:
                raise TeacherLost("the connection is closed") from None
            raise
        with self._lock:
            if line in self._busy:
                self._busy[line] -= 1
        return answer

    def _kept(self) -> Line | None:
        """A line that is there and has room, with a request more on its way."""
        while True:
            with self._lock:
                free = (one for one, busy in reversed(self._busy.items()) if busy < self._at_once)
                if (line := next(free, None)) is None:
                    return None
                self._busy[line] = self._busy.pop(line) + 1
            if line.is_open:
                return line
            self._drop(line)

    def _fresh(self) -> Line:
        if not self._closed:
            line = self._open_line()
            with self._lock:
                if not self._closed:
                    self._busy[line] = 1
                    return line
            line.end()
        raise TeacherLost("the connection is closed")

    def _drop(self, line: Line) -> None:
        with self._lock:
            self._busy.pop(line, None)
        line.end()
