"""What a client makes of a server that goes silent in the midst of an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from kubernetes.client import Configuration

from edl.errors import KubernetesUnavailable
from edl.mesh.kubernetes.client import Client, Connection


class Silent:
    """A server that answers one request with `sent`, and then says nothing more."""

    def __init__(self, listening: socket.socket) -> None:
        self.sent = b""
        self._listening, self._over = listening, threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        configuration = Configuration(host=f"http://127.0.0.1:{listening.getsockname()[1]}")
        self._connection = Connection(configuration, "default")
        self._client: Client | None = None

    def pod_log(self, timeout_s: float) -> Iterator[str]:
        """What a client has of it that waits so long for each piece."""
        self._client = Client(self._connection, timeout_s=timeout_s)
        return self._client.pod_log("a-1")

    def _serve(self) -> None:
        with self._listening.accept()[0] as one:
            one.recv(1 << 16)
            one.sendall(self.sent)
            self._over.wait(20)

    @property
    def holds(self) -> bool:
        """Whether it has not ended the connection by itself."""
        return self._thread.is_alive()

    def close(self) -> None:
        self._over.set()
        self._thread.join(20)
        if self._client is not None:
            self._client.close()


@pytest.fixture
def server() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = Silent(listening)
        yield found
        found.close()


def _head(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def test_a_log_whose_server_goes_silent_breaks_off(server: Silent) -> None:
    server.sent = _head("200 OK") + b"4\r\none\n\r\n"
    lines = server.pod_log(1.0)  # what has been sent has to come within it
    assert next(lines) == "one"
    with pytest.raises(KubernetesUnavailable, match="the log of a-1 broke off"):
        next(lines)
    assert server.holds


def test_a_refusal_that_does_not_come_whole_is_no_answer(server: Silent) -> None:
    server.sent = _head("404 Not Found") + b"4\r\n"
    with pytest.raises(KubernetesUnavailable, match="does not answer"):
        next(server.pod_log(0.2))
    assert server.holds
