"""How long a connection may owe something; lives in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `late` if it is not stopped within `seconds` of its start."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self._seconds, self._late = seconds, late
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Without effect while it runs."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._seconds, self._is_late)

    def stop(self) -> None:
        """Without effect while it does not run."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _is_late(self) -> None:
        self._handle = None
        self._late()


class SendingDeadline:
    """Aborts a connection whose peer takes nothing of what is sent for so long.

    A peer that takes it slowly is not gone.

    Args:
        transport: of the connection.
        seconds: within which something has to be taken.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._deadline = Deadline(seconds, self._look)
        self._unsent = 0  # bytes, when it was looked last

    def start(self) -> None:
        """The peer has not taken all."""
        self._unsent = self._transport.get_write_buffer_size()
        self._deadline.start()

    def stop(self) -> None:
        """It has, or is gone."""
        self._deadline.stop()

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._unsent:
            self.start()
        else:
            self._transport.abort()
