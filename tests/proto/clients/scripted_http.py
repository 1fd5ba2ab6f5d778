"""A server of HTTP that does what a test tells it, by plain sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl.tests.waiting import DEADLINE_S


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it came; headers are by names in lower case."""

    headers: Mapping[str, str]
    body: bytes


#: Given a request and its connection, says what is to go back; nothing: that was done.
Behaviour = Callable[[ReceivedRequest, socket.socket], bytes]


def reply(
    body: bytes = b"", status: str = "200 OK", headers: Mapping[str, object] | None = None
) -> bytes:
    said = {"content-length": len(body), **(headers or {})}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class ScriptedHttp:
    """Serves on a free port of loopback.

    Attributes:
        behave: answers each request.
        asked: all requests, in the order in which they were read.
        connections: that were accepted.
    """

    def __init__(self, behave: Behaviour = lambda *_: reply()) -> None:
        self.behave = behave
        self.asked: list[ReceivedRequest] = []
        self.connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        self._listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while (asked := _read(connection)) is not None:
                self.asked.append(asked)
                connection.sendall(self.behave(asked, connection))


def _read(connection: socket.socket) -> ReceivedRequest | None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (came := connection.recv(1 << 16)):
            return None
        data += came
    head, _, body = data.partition(b"\r\n\r\n")
    _, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    whole = bytearray(body)
    while len(whole) < int(headers.get("content-length", 0)):
        if not (came := connection.recv(1 << 20)):
            return None
        whole += came
    return ReceivedRequest(headers, bytes(whole))
