"""The one queue through which everything else speaks to the engine's thread."""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from ...errors import WireError
from ...proto.channel import Channel, Message

Event = Callable[[], None]
#: Calls that are made before anything is decided: some milliseconds' worth.
MOST: Final = 32


class HasFileno(Protocol):
    """What can be waited for."""

    def fileno(self) -> int: ...


class Inbox:
    """Calls to be made by the engine's thread, one after another, in the order they came in.

    Other threads post them. What comes by the trainer's channel, or by any socket that is watched,
    that thread reads by itself: a thread of its own for each would cost a change of threads.
    """

    def __init__(self) -> None:
        self._calls: deque[Event | None] = deque()
        self._ended = False
        self._asleep = False
        self._watched: dict[int, Event] = {}
        self._room: dict[int, Event] = {}  # called once the socket takes more
        self._put_off: list[Event] = []
        self._poll = select.poll()  # of a dozen sockets; in half the time of a selector's
        self._alarm, self._bell = os.pipe()
        for fd in (self._alarm, self._bell):
            os.set_blocking(fd, False)
        self._watch(self._alarm, self._woken)

    def post(self, handler: Callable[..., None], *args: object) -> None:
        """Have `handler(*args)` called by the engine's thread; any thread may post."""
        self._calls.append(partial(handler, *args))
        if self._asleep:
            self._wake()

    def stop(self) -> None:
        """Let the engine's thread end; may be called by a signal handler."""
        self._calls.append(None)
        if self._asleep:
            self._wake()

    def next(self, timeout_s: float) -> list[Event] | None:
        """The calls to make now: none if nothing comes within `timeout_s`; None at the end.

        All that lie here come together, as far as `MOST`: what is to follow from them is decided
        once.
        """
        if self._ended:
            return None
        if timeout_s and self._put_off:
            put_off, self._put_off = self._put_off, []
            for call in put_off:
                call()
        self._asleep = True  # before the look at what is here: nobody posts unheard
        ready = self._poll.poll(0.0 if self._calls else math.ceil(timeout_s * 1e3))
        self._asleep = False  # from here on it looks by itself
        for fd, events in ready:
            if events & select.POLLOUT and (send := self._room.get(fd)) is not None:
                send()
            # Else it was the last that heard.
            if events & ~select.POLLOUT and (handler := self._watched.get(fd)) is not None:
                handler()
        calls: list[Event] = []
        while self._calls and len(calls) < MOST:
            if (event := self._calls.popleft()) is None:
                self._ended = True  # behind what the trainer had said before it sent the signal
            else:
                calls.append(event)
        return calls

    def put_off(self, event: Event) -> None:
        """Call `event` before the engine's thread, which asks for it, waits the next time."""
        self._put_off.append(event)

    def listen(self, channel: Channel, handler: Callable[[Message], None]) -> None:
        """Have `handler` called with each of the trainer's messages, until it says stop."""
        self.watch(channel, partial(self._hear, channel, handler))
        self._hear(channel, handler)  # what came together with what was read before

    def watch(self, connection: HasFileno, handler: Event) -> None:
        """Call `handler` when there is something to read; in the engine's thread, as all here."""
        self._watch(connection.fileno(), handler)

    def watch_room(self, connection: HasFileno, handler: Event | None) -> None:
        """Call `handler` when a connection that is watched takes more; None: no more."""
        fd = connection.fileno()
        if handler is not None:
            self._room[fd] = handler
            self._poll.modify(fd, select.POLLIN | select.POLLOUT)
        elif self._room.pop(fd, None) is not None:
            self._poll.modify(fd, select.POLLIN)

    def unwatch(self, connection: HasFileno) -> None:
        """Look at a connection no more; before it is closed."""
        del self._watched[connection.fileno()]
        self._room.pop(connection.fileno(), None)
        self._poll.unregister(connection.fileno())

    def close(self) -> None:
        """Nothing more comes; who posts all the same is not heard."""
        self._ended, self._asleep = True, False
        self._watched.clear()
        os.close(self._alarm)
        os.close(self._bell)

    def _watch(self, fd: int, handler: Event) -> None:
        self._watched[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _hear(self, channel: Channel, handler: Callable[[Message], None]) -> None:
        try:
            messages = channel.received()
        except WireError:  # cut short by Ctrl-C: it cannot be mended, the next engine is told all
            messages = None
        for message in messages or ():
            if message["kind"] == "stop":
                messages = None
                break
            self._calls.append(partial(handler, message))
        if messages is None:
            self.unwatch(channel)
            self.stop()

    def _wake(self) -> None:
        self._asleep = False
        with contextlib.suppress(OSError):  # it is full, and so is heard; or closed
            os.write(self._bell, b"!")

    def _woken(self) -> None:
        os.read(self._alarm, 1 << 10)
