"""The queue of tasks for the engine's thread, and its polling of sockets."""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from ...proto.channel import Channel, Message
from ...runtime.errors import WireError

Task = Callable[[], None]
Handler = Callable[[], None]
#: Maximum number of tasks that `Inbox.next` returns; they take some milliseconds.
MAX_TASKS: Final = 32


class HasFileno(Protocol):
    """A pollable object."""

    def fileno(self) -> int: ...


class Inbox:
    """Tasks for the engine's thread, in order of arrival.

    Other threads may call `post` and `stop`. The engine's thread itself reads the trainer's channel
    and all watched sockets, because separate threads would cost context switches.
    """

    def __init__(self) -> None:
        self._tasks: deque[Task | None] = deque()
        self._ended = False
        self._asleep = False
        self._watched: dict[int, Handler] = {}
        self._on_writable: dict[int, Handler] = {}
        self._deferred: list[Task] = []
        self._poll = select.poll()  # for a dozen sockets, twice as fast as a selector
        self._wake_reader, self._wake_writer = os.pipe()
        for fd in (self._wake_reader, self._wake_writer):
            os.set_blocking(fd, False)
        self._watch(self._wake_reader, self._empty_wake_pipe)

    def post(self, handler: Callable[..., None], *args: object) -> None:
        """Have `handler(*args)` called by the engine's thread; any thread may post."""
        self._tasks.append(partial(handler, *args))
        if self._asleep:
            self._wake()

    def stop(self) -> None:
        """Make `next` return None after the earlier tasks; a signal handler may call this."""
        self._tasks.append(None)
        if self._asleep:
            self._wake()

    def next(self, timeout_s: float) -> list[Task] | None:
        """Run the deferred tasks, wait for posted ones, and handle the sockets that are ready.

        Args:
            timeout_s: seconds to wait; 0: do not wait, and leave the deferred tasks.

        Returns:
            At most `MAX_TASKS` posted tasks for the caller to run, perhaps none; None once stopped.
        """
        if self._ended:
            return None
        if timeout_s and self._deferred:
            deferred, self._deferred = self._deferred, []
            for task in deferred:
                task()
        self._asleep = True  # before the queue is checked: every later post wakes this thread
        ready = self._poll.poll(0.0 if self._tasks else math.ceil(timeout_s * 1e3))
        self._asleep = False
        for fd, events in ready:
            if events & select.POLLOUT and (send := self._on_writable.get(fd)) is not None:
                send()
            # An earlier handler may have removed this one.
            if events & ~select.POLLOUT and (handler := self._watched.get(fd)) is not None:
                handler()
        tasks: list[Task] = []
        while self._tasks and len(tasks) < MAX_TASKS:
            if (posted := self._tasks.popleft()) is None:
                self._ended = True  # after the tasks that were posted before
            else:
                tasks.append(posted)
        return tasks

    def defer(self, task: Task) -> None:
        """Run `task` before the next wait; for the engine's thread."""
        self._deferred.append(task)

    def listen(self, channel: Channel, handler: Callable[[Message], None]) -> None:
        """Queue a call of `handler` for each message of the trainer.

        The message "stop" and a hangup have the effect of `stop`.
        """
        self.watch(channel, partial(self._receive, channel, handler))
        self._receive(channel, handler)  # messages that the channel has read already

    def watch(self, connection: HasFileno, handler: Handler) -> None:
        """Call `handler` in the engine's thread when the connection is readable."""
        self._watch(connection.fileno(), handler)

    def watch_room(self, connection: HasFileno, handler: Handler | None) -> None:
        """Call `handler` whenever a watched connection has room to send; None: no longer."""
        fd = connection.fileno()
        if handler is not None:
            self._on_writable[fd] = handler
            self._poll.modify(fd, select.POLLIN | select.POLLOUT)
        elif self._on_writable.pop(fd, None) is not None:
            self._poll.modify(fd, select.POLLIN)

    def unwatch(self, connection: HasFileno) -> None:
        """Stop watching a connection; required before it is closed."""
        del self._watched[connection.fileno()]
        self._on_writable.pop(connection.fileno(), None)
        self._poll.unregister(connection.fileno())

    def close(self) -> None:
        """Close the queue; later posts are ignored."""
        self._ended, self._asleep = True, False
        self._watched.clear()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _watch(self, fd: int, handler: Handler) -> None:
        self._watched[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _receive(self, channel: Channel, handler: Callable[[Message], None]) -> None:
        try:
            messages = channel.received()
        except WireError:  # a Ctrl-C cut the message short: the next engine gets all messages again
            messages = None
        for message in messages or ():
            if message["kind"] == "stop":
                messages = None
                break
            self._tasks.append(partial(handler, message))
        if messages is None:
            self.unwatch(channel)
            self.stop()

    def _wake(self) -> None:
        self._asleep = False
        with contextlib.suppress(OSError):  # the pipe is full, so the thread wakes; or it is closed
            os.write(self._wake_writer, b"!")

    def _empty_wake_pipe(self) -> None:
        os.read(self._wake_reader, 1 << 10)
