"""Small messages between a parent process and its child: JSON lines over a socket pair.

A line holds one message, or a list of messages that were sent together. Arrays never travel here:
they lie in an `Arena`, and a message says where. JSON and not pickle, so that reading executes
nothing. End of file means that the other process is gone.
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
        together: a context manager that holds back sent messages and sends them at its end by one
            system call. If that call blocks because the other process does not read, messages of
            other threads are queued and those threads do not block.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages: deque[Message] = deque()  # received, not returned yet
        self._partial_line = b""  # the beginning of the next line
        self._ended = False
        self._receiving = threading.Lock()
        # Reentrant: a garbage collection inside send() may run code that sends.
        self._lock = threading.RLock()
        self._held: list[Message] | None = None
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
        if self._held is not None:
            return True  # it is queued
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLOUT)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True  # closed: nothing waits

    def send(self, kind: str, **fields: Any) -> bool:
        """Send one message; returns False if the other process is gone."""
        return self.send_all([{"kind": kind, **fields}])

    def send_all(self, messages: Iterable[Message]) -> bool:
        """Send messages, each with its "kind", by one system call; return what `send` returns."""
        messages = [*messages]
        with self._lock:
            if self._held is None:
                return not messages or self._send(messages)
            self._held += messages
            return True

    def receive(self) -> Message | None:
        """Wait for the next message; returns None if the other process is gone.

        Raises:
            WireError: a line is not a message.
        """
        while not self._messages:
            if self._ended:
                return None
            self._read()
        return self._messages.popleft()

    def received(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the other process is gone. Never blocks.

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
        """Yield messages until the other process is gone."""
        return iter(self.receive, None)

    def close(self) -> None:
        """Close the connection; a `receive` that waits in another thread returns None."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._receiving:  # or that thread could read from a reused descriptor
            self._socket.close()

    def _send(self, messages: list[Message]) -> bool:
        line = _encode(messages if len(messages) != 1 else messages[0])
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError:
            return False
        return True

    def _read(self, flags: int = 0) -> None:
        """Receive what has arrived; an incomplete line before the end is dropped."""
        try:
            with self._receiving:
                data = self._socket.recv(_READ_BYTES, flags)
        except BlockingIOError:
            raise
        except OSError:  # reset by the peer; closed by another thread of ours
            data = b""
        self._ended = not data
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._messages += _messages(line)


class _BatchedSends(AbstractContextManager[None]):
    """See `Channel.together`. A class, because a generator would take three times as long."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        with self._channel._lock:
            # If another thread is inside, its exit sends the messages of both.
            if self._channel._held is None:
                self._channel._held = []

    def __exit__(self, *_: object) -> None:
        channel = self._channel
        while True:
            with channel._lock:
                messages = channel._held
                if not messages:
                    channel._held = None
                    return
                channel._held = []
            channel._send(messages)


def _messages(line: bytes) -> list[Message]:
    try:
        decoded = _decode(line.decode())
    except ValueError:
        decoded = None
    messages = decoded if isinstance(decoded, list) else [decoded]
    for message in messages or (None,):
        if not isinstance(message, dict) or "kind" not in message:
            raise WireError(f"not a message of a control channel: {line[:80]!r}")
    return messages
