"""Small messages between a parent process and its child: JSON lines over a socket pair.

A line is one message, or a list of messages that were sent together. Arrays are not sent here: they
lie in an `Arena`, and messages contain their locations. JSON is used instead of pickle, because
reading it executes nothing. End of file means that the other process has ended.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from ..runtime.errors import WireError

Message = dict[str, Any]

_READ_BYTES: Final = 1 << 16
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().decode


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    Attributes:
        together: a context manager that queues the messages of `send` and sends them at its end in
            one line. If the other process does not read, only the thread that leaves the context
            blocks: messages of other threads are queued meanwhile.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages: deque[Message] = deque()  # received, not returned yet
        self._partial_line = b""  # received beginning of the next line
        self._ended = False
        self._receive_lock = threading.Lock()
        # Reentrant: a garbage collection inside send() may run code that sends.
        self._send_lock = threading.RLock()
        self._queued: list[Message] | None = None
        self.together: AbstractContextManager[None] = _BatchedSends(self)

    @classmethod
    def pair(cls) -> tuple[Self, int]:
        """Create a channel and the descriptor of its other end, which a child attaches to."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs.detach()

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Return a channel for a descriptor that this process inherited."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the descriptor of this end; -1 after `close`."""
        return self._socket.fileno()

    @property
    def has_room(self) -> bool:
        """Whether a small message can be sent now without waiting for the other process to read."""
        if self._queued is not None:
            return True  # the message is queued
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLOUT)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True  # closed: `send` returns at once

    def send(self, kind: str, **fields: Any) -> bool:
        """Send one message; return False if the other process has ended.

        Within `together` the message is only queued, and the result is True.
        """
        return self.send_all([{"kind": kind, **fields}])

    def send_all(self, messages: Iterable[Message]) -> bool:
        """Send messages, each with a "kind", in one line; return False as `send` does."""
        messages = [*messages]
        with self._send_lock:
            if self._queued is None:
                return not messages or self._send(messages)
            self._queued += messages
            return True

    def receive(self) -> Message | None:
        """Wait for the next message; return None if the other process has ended.

        Raises:
            WireError: a line is not a message.
        """
        while not self._messages:
            if self._ended:
                return None
            self._read()
        return self._messages.popleft()

    def received(self) -> list[Message] | None:
        """Return the messages that have arrived. Never blocks.

        Returns None once the other process has ended and all its messages were returned.

        Raises:
            WireError: a line is not a message.
        """
        if not self._ended:
            with contextlib.suppress(BlockingIOError):
                self._read(socket.MSG_DONTWAIT)
        if self._ended and not self._messages:
            return None
        messages = [*self._messages]
        self._messages.clear()
        return messages

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the other process has ended."""
        return iter(self.receive, None)

    def close(self) -> None:
        """Close the connection; a `receive` that waits in another thread returns None."""
        with contextlib.suppress(OSError):  # the other end is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._receive_lock:  # else that thread could read from a reused descriptor
            self._socket.close()

    def _send(self, messages: list[Message]) -> bool:
        line = _encode(messages if len(messages) != 1 else messages[0])
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError:
            return False
        return True

    def _read(self, flags: int = 0) -> None:
        """Receive available data; an incomplete line before the end of file is dropped."""
        try:
            with self._receive_lock:
                data = self._socket.recv(_READ_BYTES, flags)
        except BlockingIOError:
            raise
        except OSError:  # reset by the peer, or closed by another thread of this process
            data = b""
        self._ended = not data
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            try:
                decoded = _decode(line.decode())
            except ValueError:
                decoded = None
            messages = decoded if isinstance(decoded, list) else [decoded]
            for message in messages or (None,):
                if not isinstance(message, dict) or "kind" not in message:
                    raise WireError(f"not a message of a control channel: {line[:80]!r}")
            self._messages += messages


class _BatchedSends(AbstractContextManager[None]):
    """See `Channel.together`. A class, because a generator would take three times as long."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        with self._channel._send_lock:
            # If another thread is inside, the first exit sends the queued messages of both.
            if self._channel._queued is None:
                self._channel._queued = []

    def __exit__(self, *_: object) -> None:
        channel = self._channel
        while True:
            with channel._send_lock:
                messages = channel._queued
                if not messages:
                    channel._queued = None
                    return
                channel._queued = []
            channel._send(messages)
