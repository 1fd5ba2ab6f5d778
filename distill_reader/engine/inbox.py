"""The one queue through which everything else speaks to the engine's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from ...proto.channel import Channel, Message

Event = Callable[[], None]


class Inbox:
    """Calls to be made by the engine's thread, one after another, in the order they came in."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event | None] = SimpleQueue()

    def post(self, handler: Callable[..., None], *args: object) -> None:
        """Have `handler(*args)` called by the engine's thread; any thread may post."""
        self._events.put(partial(handler, *args))

    def stop(self) -> None:
        """Let the engine's thread end; may be called by a signal handler."""
        self._events.put(None)

    def next(self, timeout_s: float) -> Event | None:
        """The next call to make: none that does anything, after `timeout_s`; None at the end."""
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return _nothing

    def listen(self, channel: Channel, handler: Callable[[Message], None]) -> None:
        """Post each of the trainer's messages, in a thread of its own, until it says stop."""
        threading.Thread(
            target=self._listen, args=(channel, handler), name="edl-engine-listener", daemon=True
        ).start()

    def _listen(self, channel: Channel, handler: Callable[[Message], None]) -> None:
        try:
            for message in channel:
                if message["kind"] == "stop":
                    break
                self.post(handler, message)
        finally:  # a message cut short by Ctrl-C cannot be mended: the next engine is told all
            self.stop()


def _nothing() -> None:
    """A tick: nothing happened but time."""
