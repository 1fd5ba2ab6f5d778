"""Lines to one server that are kept: what it costs to open one is paid once.

A line may end for reasons that are not its requests': its server has made room for others, or one
that shared it was late. Then a request is sent once more, over a fresh line. To label a batch twice
does no harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from ...errors import DeadlineExceeded, EdlError, TeacherLost

#: Lines that one request tries at most: a kept one, a fresh one, and another should that be shared.
_TRIES: Final = 3

_Message = TypeVar("_Message")
_Answer = TypeVar("_Answer")
_Asked = TypeVar("_Asked", contravariant=True)
_Said = TypeVar("_Said", covariant=True)


class Ended(Exception):
    """A line has ended without an answer, because of `why`."""

    def __init__(self, why: EdlError) -> None:
        super().__init__(why)
        self.why = why


class Line(Protocol[_Asked, _Said]):
    """One line. Any thread may use it; it takes what it was made for at once."""

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent: as far as is known here, it has not ended."""
        ...

    def ask(self, message: _Asked, until_s: float) -> _Said:
        """Send a request and wait for its answer until then, on the monotonic clock.

        Raises:
            Ended: there will be none.
            DeadlineExceeded: it did not come in time; the line is of no use any more.
        """
        ...

    def end(self) -> None:
        """Whoever waits for an answer waits no more; again without effect."""
        ...


class _Kept(Generic[_Message, _Answer]):
    """A line, and what is on its way over it."""

    __slots__ = ("busy", "fresh", "line", "retired", "shared")

    def __init__(self, line: Line[_Message, _Answer]) -> None:
        self.line = line
        self.busy = 1
        self.fresh = True  # only its first request is on its way
        self.shared = False
        self.retired = False  # to be ended once nothing is on its way


class Lines(Generic[_Message, _Answer]):
    """Asks over as many lines as it needs; any thread may.

    Args:
        open_line: makes one until then, on the monotonic clock; what it raises is raised by `call`.
        at_once: requests that one line takes at once.
    """

    def __init__(self, open_line: Callable[[float], Line[_Message, _Answer]], at_once: int) -> None:
        self._open_line = open_line
        self._at_once = at_once
        self._lock = threading.Lock()
        self._lines: list[_Kept[_Message, _Answer]] = []  # the last one used is the next one
        self._closed = False

    def call(self, message: _Message, until_s: float) -> _Answer:
        """The answer to `message`, if it comes by then, on the monotonic clock.

        Raises:
            DeadlineExceeded: it did not come in time.
            TeacherLost: nobody answers, the connection broke, or this was closed.
            EdlError: why the server has ended the line.
        """
        kept = self._free()
        for tries_left in reversed(range(_TRIES)):
            if kept is None:
                kept = self._fresh(until_s)
            fresh = kept.fresh
            try:
                return self._ask(kept, message, until_s)
            except Ended as ended:
                why = ended.why
            innocent = not fresh or kept.shared
            kept = None
            if not innocent or not tries_left:
                break
            if until_s <= time.monotonic():  # which may be why who shared the line has ended it
                why = DeadlineExceeded("no answer within the time that there was for one")
                break
        try:
            raise why
        finally:
            del why  # its traceback knows this frame, and this frame the message

    def prepare(self, until_s: float) -> None:
        """Have a line to ask over, opened by then where there is none; raises as `call` does."""
        if (kept := self._free()) is None:
            kept = self._fresh(until_s)
        self._give_back(kept)

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

    def _ask(self, kept: _Kept[_Message, _Answer], message: _Message, until_s: float) -> _Answer:
        try:
            answer = kept.line.ask(message, until_s)
        except BaseException:
            self._drop(kept)
            if self._closed:
                raise TeacherLost("the connection is closed") from None
            raise
        self._give_back(kept)
        return answer

    def _give_back(self, kept: _Kept[_Message, _Answer]) -> None:
        with self._lock:
            kept.busy -= 1
            over = kept.retired and not kept.busy
        if over:
            self._drop(kept)

    def _free(self) -> _Kept[_Message, _Answer] | None:
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

    def _has_room(self, kept: _Kept[_Message, _Answer]) -> bool:
        return kept.busy < self._at_once and not kept.retired

    def _fresh(self, until_s: float) -> _Kept[_Message, _Answer]:
        if not self._closed:
            kept = _Kept(self._open_line(until_s))
            with self._lock:
                if not self._closed:
                    self._lines.append(kept)
                    return kept
            kept.line.end()
        raise TeacherLost("the connection is closed")

    def _drop(self, kept: _Kept[_Message, _Answer]) -> None:
        with self._lock:
            if kept in self._lines:
                self._lines.remove(kept)
        kept.line.end()


def left_s(deadline: float) -> float:
    """Seconds until `deadline`, on the monotonic clock; raises TimeoutError where none is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
