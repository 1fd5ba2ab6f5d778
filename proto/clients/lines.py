"""Lines to one server that are kept: what it costs to open one is paid once.

A line may end for reasons that are not its requests': its server has made room for others, or one
that shared it was late. Then a request is sent once more, over a fresh line. To label a batch twice
does no harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from ...errors import EdlError, TeacherLost

#: Lines that one request tries at most: a kept one, a fresh one, and another should that be shared.
_TRIES: Final = 3


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


class _Kept:
    """A line, and what is on its way over it."""

    __slots__ = ("busy", "fresh", "line", "retired", "shared")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.busy = 1
        self.fresh = True  # only its first request is on its way
        self.shared = False
        self.retired = False  # to be ended once nothing is on its way


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
        self._lines: list[_Kept] = []  # the last one used is the next one
        self._closed = False

    def call(self, message: bytes, until_s: float) -> memoryview:
        """The answer to `message`, as a view of what came by then, on the monotonic clock.

        Raises:
            DeadlineExceeded: it did not come in time.
            TeacherLost: nobody answers, the connection broke, or this was closed.
            EdlError: why the server has ended the line.
        """
        kept = self._free()
        for tries_left in reversed(range(_TRIES)):
            if kept is None:
                kept = self._fresh()
            fresh = kept.fresh
            try:
                return self._ask(kept, message, until_s)
            except Ended as ended:
                why = ended.why
            innocent = not fresh or kept.shared
            kept = None
            if not innocent or not tries_left or until_s <= time.monotonic():
                break
        try:
            raise why
        finally:
            del why  # its traceback knows this frame, and this frame the message

    def renew(self) -> None:
        """Use none of the present lines for what comes from now on."""
        with self._lock:
            for kept in self._lines:
                kept.retired = True
            idle = [kept for kept in self._lines if not kept.busy]
        for kept in idle:
            self._drop(kept)

    def close(self) -> None:
        """End all lines; calls that wait end as TeacherLost. Idempotent."""
        with self._lock:
            self._closed = True
            lines, self._lines = self._lines, []
        for kept in lines:
            kept.line.end()

    def _ask(self, kept: _Kept, message: bytes, until_s: float) -> memoryview:
        try:
            answer = kept.line.ask(message, until_s)
        except BaseException:
            self._drop(kept)
            if self._closed:
                raise TeacherLost("the connection is closed") from None
            raise
        with self._lock:
            kept.busy -= 1
            over = kept.retired and not kept.busy
        if over:
            self._drop(kept)
        return answer

    def _free(self) -> _Kept | None:
        """A line that is there and has room, with a request more on its way."""
        while True:
            with self._lock:
                free = (one for one in reversed(self._lines) if self._has_room(one))
                if (kept := next(free, None)) is None:
                    return None
                kept.shared = kept.busy > 0
                kept.fresh = kept.fresh and kept.shared
                kept.busy += 1
                self._lines.remove(kept)
                self._lines.append(kept)
            if kept.line.is_open:
                return kept
            self._drop(kept)

    def _has_room(self, kept: _Kept) -> bool:
        return kept.busy < self._at_once and not kept.retired

    def _fresh(self) -> _Kept:
        if not self._closed:
            kept = _Kept(self._open_line())
            with self._lock:
                if not self._closed:
                    self._lines.append(kept)
                    return kept
            kept.line.end()
        raise TeacherLost("the connection is closed")

    def _drop(self, kept: _Kept) -> None:
        with self._lock:
            if kept in self._lines:
                self._lines.remove(kept)
        kept.line.end()
