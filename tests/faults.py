"""A TCP proxy that a test can stall, redirect and observe."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Self

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.02


class FaultProxy:
    """Forwards all bytes between a free port of loopback and `target`, unless told otherwise.

    Use it as a context manager: its thread runs within the `with` block.

    Args:
        target: `host:port`.
        on_request: called in the proxy's thread with each chunk from a client before it is
            forwarded; the time that it takes delays the chunk.
    """

    def __init__(self, target: str, *, on_request: Callable[[bytes], None] | None = None) -> None:
        self._target = _split(target)
        self._on_request = on_request
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._other_ends: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._fillers: list[socket.socket] = []
        self._breaking = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._stalled = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def address(self) -> str:
        """The address for clients, `host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def stall(self) -> None:
        """Forward nothing from now on, like a stopped process.

        Connections stay open and silent, and the system accepts new ones.
        """
        self._flowing.clear()

    def partition(self) -> None:
        """Forward nothing and let no one connect from now on, like a broken network path."""
        self.stall()
        self._stalled.wait()
        self._listener.listen(0)
        with contextlib.suppress(TimeoutError):  # raised when the listen backlog is full
            while True:
                self._fillers.append(socket.create_connection(self._listener.getsockname(), 0.2))

    def heal(self) -> None:
        """Forward what was held back, and all later bytes."""
        self._close_fillers()
        self._listener.listen()
        self._stalled.clear()
        self._flowing.set()

    def redirect(self, target: str) -> None:
        """Close all connections; later ones go to `target`."""
        self._target = _split(target)
        self._breaking.set()

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(5.0)
        self._close_fillers()
        for client in list(self._clients):
            self._close(client)
        self._selector.close()
        self._listener.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._flowing.is_set():
                self._stalled.set()
                self._stopping.wait(_LOOK_S)
                continue
            if self._breaking.is_set():
                self._breaking.clear()
                for client in list(self._clients):
                    self._close(client)
            for key, _ in self._selector.select(_LOOK_S):
                side = key.fileobj
                assert isinstance(side, socket.socket)
                if side is self._listener:
                    self._accept()
                elif side in self._other_ends:  # otherwise this loop has just closed it
                    self._pass_on(side)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            client.close()
            return
        self._clients.add(client)
        for side, other in ((client, server), (server, client)):
            self._other_ends[side] = other
            self._selector.register(side, selectors.EVENT_READ)

    def _pass_on(self, side: socket.socket) -> None:
        try:
            data = side.recv(_CHUNK_BYTES)
            if data and side in self._clients and self._on_request is not None:
                self._on_request(data)
        except OSError:
            data = b""
        if not data:
            self._close(side)
            return
        # If the other end has closed, bytes that it sent before must still be forwarded.
        with contextlib.suppress(OSError):
            self._other_ends[side].sendall(data)

    def _close(self, side: socket.socket) -> None:
        """Close both ends of a connection."""
        for end in (side, self._other_ends[side]):
            self._selector.unregister(end)
            del self._other_ends[end]
            self._clients.discard(end)
            end.close()

    def _close_fillers(self) -> None:
        while self._fillers:
            self._fillers.pop().close()


def _split(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host, int(port)
