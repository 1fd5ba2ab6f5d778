"""What a user may hang onto a reader: calls of their own when something happens to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from ..errors import UsageError
from .stats import ReaderStats

log = logging.getLogger(__name__)

CLOSE_GRACE_S: Final = 2.0


class Callback:
    """Told of what happens to a reader; override what you need, and pass it by `callbacks=[...]`.

    `on_batch` is called in the training loop, and costs it the time it takes. All others are called
    by one thread of the reader's, one after another, from its figures, which are renewed about five
    times a second: what comes and goes in between is not told. What a callback raises is logged,
    and stops nothing.
    """

    def on_batch(self, samples: int, waited_s: float) -> None:
        """The training loop is handed a batch of `samples` rows, `waited_s` after asking for it."""

    def on_starved(self, stats: ReaderStats) -> None:
        """The training loop has begun to wait for labels."""

    def on_blocked(self, stats: ReaderStats) -> None:
        """The buffer is full: teachers have begun to wait for the training loop."""

    def on_source_wait(self, stats: ReaderStats) -> None:
        """The training loop has begun to wait for the source of batches."""

    def on_teacher_joined(self, teacher: str) -> None:
        """The reader sends to this teacher from now on; also one that was ejected, and is well."""

    def on_teacher_lost(self, teacher: str) -> None:
        """The reader does not send to it any more: it has died, drains, or serves somebody else."""

    def on_teacher_ejected(self, teacher: str, cause: str) -> None:
        """It is out of the pool: "failed", "silent", "wrong", "lied" or "refused" says why."""

    def on_want_changed(self, want: int, before: int) -> None:
        """The reader asks for so many teachers."""

    def on_engine_restarted(self, restarts: int) -> None:
        """Its engine process had died; another one has taken over, the latest of so many."""


#: A call to be made: the method of a `Callback`, and its arguments.
Call = tuple[str, tuple[Any, ...]]


def calls_for(before: ReaderStats, after: ReaderStats) -> Iterator[Call]:
    """What is to be told between one look at the figures and the next."""
    if after.engine_restarts > before.engine_restarts:
        yield "on_engine_restarted", (after.engine_restarts,)
    had, has = _serving(before), _serving(after)
    ejected = [name for name in after.ejected if name not in before.ejected]
    for name in has:
        if name not in had:
            yield "on_teacher_joined", (name,)
    for name in had:
        if name not in has and name not in ejected:
            yield "on_teacher_lost", (name,)
    for name, cause in zip(after.ejected, after.ejected_for, strict=True):
        if name in ejected:
            yield "on_teacher_ejected", (name, cause)
    if after.want != before.want:
        yield "on_want_changed", (after.want, before.want)
    if after.state != before.state and after.state != "steady":
        yield f"on_{after.state}", (after,)


def _serving(stats: ReaderStats) -> list[str]:
    return [name for name in stats.teachers if name not in stats.ejected]


class Callbacks:
    """Makes the calls of one reader, until `close`.

    Args:
        callbacks: who is told.
        look: the reader's figures at this moment.

    Raises:
        UsageError: something is no `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback], look: Callable[[], ReaderStats]) -> None:
        if not isinstance(callbacks, Iterable):
            raise UsageError(f"callbacks is a list, as in callbacks=[{callbacks!r}]")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise UsageError(
                    f"callbacks are objects of subclasses of Callback, not {callback!r}"
                )
        self._callbacks = tuple(callbacks)
        self._look = look
        self._changed = threading.Condition()
        self._news = self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        if self._callbacks:
            self._thread = threading.Thread(
                target=self._watch, name="edl-reader-callbacks", daemon=True
            )
            self._thread.start()

    def batch(self, samples: int, waited_s: float) -> None:
        """The training loop is handed a batch."""
        self._call("on_batch", (samples, waited_s))

    def notify(self) -> None:
        """There are new figures to look at."""
        if self._thread is not None:
            with self._changed:
                self._news = True
                self._changed.notify()

    def close(self) -> None:
        """Call nobody any more; a call that is under way may still end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(CLOSE_GRACE_S)

    def _watch(self) -> None:
        before = ReaderStats()
        while self._wait():
            after = self._look()
            for name, arguments in calls_for(before, after):
                self._call(name, arguments)
            before = after

    def _wait(self) -> bool:
        """Wait for new figures; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._closed)
            self._news = False
            return not self._closed

    def _call(self, name: str, arguments: tuple[Any, ...]) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, name)(*arguments)
            except Exception:
                log.exception("%s of callback %r failed", name, callback)
