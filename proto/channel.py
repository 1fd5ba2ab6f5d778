"""Small messages between a parent and its child process: JSON lines over a socket pair.

A line is a message, or a list of those that were sent together.
Arrays never travel here; they lie in an `Arena` and a message says where. JSON, not pickle, so that
nothing is ever executed by being read. End of file means that the other process is gone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from ..errors import WireError

Message = dict[str, Any]

_READ_BYTES: Final = 1 << 16
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().decode


class Channel:
    """One end of a connection; any thread may send, one thread receives.

    Attributes:
        together: within it, whatever is sent is held back, and goes out at the end by one system
            call. While that waits for a process that does not read, what others send waits, and
            they do not.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lines: deque[bytes] = deque()  # received, and not looked at yet
        self._messages: deque[Message] = deque()  # of those lines that were, and not asked for yet
        self._partial_line = b""  # what has come of the next one
        self._ended = False
        self._receiving = threading.Lock()
        # Reentrant: a garbage collection inside send() may run code that sends, too.
        self._lock = threading.RLock()
        self._held: list[Message] | None = None
        self.together: AbstractContextManager[None] = _BatchedSends(self)

    @classmethod
    def pair(cls) -> tuple[Self, int]:
        """A channel for this process and the descriptor of its other end, for a child."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs.detach()

    @classmethod
    def attach(cls, fd: int) -> Self:
        """The channel at a descriptor that this process was started with."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The descriptor of this end; -1 once closed."""
        return self._socket.fileno()

    def send(self, kind: str, **fields: Any) -> bool:
        """Send one message; False when the other process is gone."""
        return self._send_or_hold([{"kind": kind, **fields}])

    def send_all(self, messages: Iterable[Message]) -> bool:
        """Send messages, each with its "kind", by one system call; else as `send`."""
        return self._send_or_hold([*messages])

    def receive(self) -> Message | None:
        """The next message, waiting for it; None when the other process is gone.

        Raises:
            WireError: a line that is not a message.
        """
        while not self._messages:
            if self._lines:
                self._messages += _messages(self._lines.popleft())
            elif self._ended:
                return None
            else:
                self._read()
        return self._messages.popleft()

    def received(self) -> list[Message] | None:
        """The messages that are here, without waiting; None when the other process is gone.

        Raises:
            WireError: a line that is not a message.
        """
        if not self._ended:
            with contextlib.suppress(BlockingIOError):
                self._read(socket.MSG_DONTWAIT)
        if self._ended and not (self._lines or self._messages):
            return None
        messages, lines = [*self._messages], [*self._lines]
        self._messages.clear()
        self._lines.clear()
        for line in lines:
            messages += _messages(line)
        return messages

    def __iter__(self) -> Iterator[Message]:
        """Every message until the other process is gone."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """End the connection; a receive() that waits in another thread returns None."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._receiving:  # else the descriptor may be another file's before that thread looks
            self._socket.close()

    def _send_or_hold(self, messages: list[Message]) -> bool:
        with self._lock:
            if self._held is not None:
                self._held += messages
            elif messages:
                return self._send(messages)
            return True

    def _send(self, messages: list[Message]) -> bool:
        line = _encode(messages if len(messages) != 1 else messages[0])
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError:
            return False
        return True

    def _read(self, flags: int = 0) -> None:
        """Take in what has come; a line that is cut short by the end is dropped."""
        try:
            with self._receiving:
                data = self._socket.recv(_READ_BYTES, flags)
        except BlockingIOError:
            raise
        except OSError:  # reset by the peer; closed by another thread of ours
            data = b""
        self._ended = not data
        first, *others = data.split(b"\n")
        if others:
            self._lines.append(self._partial_line + first)
            self._partial_line = others.pop()
            self._lines += others
        else:
            self._partial_line += first


class _BatchedSends(AbstractContextManager[None]):
    """See `Channel.together`; a generator would take three times as long."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        with self._channel._lock:
            if self._channel._held is None:  # else another thread is within: both go out together
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
        told = _decode(line.decode())
    except ValueError:
        told = None
    messages = told if isinstance(told, list) else [told]
    for message in messages or (None,):
        if not isinstance(message, dict) or "kind" not in message:
            raise WireError(f"not a message of a control channel: {line[:80]!r}")
    return messages
