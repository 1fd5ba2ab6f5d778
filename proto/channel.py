"""Small messages between a parent and its child process: JSON lines over a socket pair.

Arrays never travel here; they lie in an `Arena` and a message says where. JSON, not pickle, so that
nothing is ever executed by being read. End of file means that the other process is gone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, Self

from ..errors import WireError

Message = dict[str, Any]


class Channel:
    """One end of a connection; any thread may send, one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb", buffering=1 << 16)
        # Reentrant: a garbage collection inside send() may run code that sends, too.
        self._lock = threading.RLock()

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
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """The next message, waiting for it; None when the other process is gone.

        Raises:
            WireError: a line that is not a message.
        """
        try:
            line = self._reader.readline()
        except (OSError, ValueError):  # reset by the peer; closed by another thread of ours
            return None
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or "kind" not in message:
            raise WireError(f"not a message of a control channel: {line[:80]!r}")
        return message

    def __iter__(self) -> Iterator[Message]:
        """Every message until the other process is gone."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """End the connection; a receive() that waits in another thread returns None."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.close()  # it shares the descriptor, which stays open until both are closed
        self._socket.close()
