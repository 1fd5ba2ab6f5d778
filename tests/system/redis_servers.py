"""Real Redis servers with options of a test's own: with users, replicas, sentinels, behind TLS."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import redis
import trustme

from edl.coordinator.embedded import server_program
from edl.runtime.supervise import Command, Process, start
from edl.tests.coordinator.conftest import held_port
from edl.tests.waiting import DEADLINE_S, wait_until

MASTER = "mesh"
#: A silence after which sentinels take a master for dead; longer than a stall of a process.
DOWN_AFTER_MS = 8000


@contextmanager
def redis_server(*options: str) -> Iterator[tuple[Process, int]]:
    """A server on loopback that keeps nothing; its process and port."""
    with held_port() as port:
        words = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", *options)
        with _running("redis", r"Ready to accept connections", *words) as process:
            yield process, port


@contextmanager
def _running(name: str, ready: str, *words: str) -> Iterator[Process]:
    process = start(Command(name, (server_program(), *words), guard=True))
    try:
        process.expect(ready, 15.0)
        yield process
    finally:
        process.stop(grace_s=1.0)


@dataclass
class Watched:
    """A master and its replica, which a sentinel watches."""

    ports: tuple[int, int]  # of the master, then of the replica
    master: Process
    sentinel: int  # its port


@contextmanager
def watched_redis(folder: Path) -> Iterator[Watched]:
    """A master with a replica in step, and a sentinel that knows both; `folder` is for files."""
    options = ("--repl-diskless-sync-delay", "0", "--dir", str(folder))
    with ExitStack() as stack:
        master, port = stack.enter_context(redis_server(*options))
        _, other = stack.enter_context(redis_server("--replicaof", f"127.0.0.1 {port}", *options))
        with redis.Redis(port=other, decode_responses=True, protocol=2) as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        sentinel = stack.enter_context(_sentinel(folder / "sentinel.conf", port))
        with redis.Redis(port=sentinel, decode_responses=True, protocol=2) as client:
            wait_until(lambda: client.sentinel_master(MASTER)["num-slaves"] == 1)
        yield Watched((port, other), master, sentinel)


@contextmanager
def _sentinel(config: Path, master_port: int) -> Iterator[int]:
    with held_port() as port:
        config.write_text(
            f"port {port}\nbind 127.0.0.1\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {master_port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER} 3000\n"
        )
        with _running("sentinel", r"Sentinel ID is|\+monitor", str(config), "--sentinel"):
            yield port


class TlsProxy:
    """Ends TLS before a server that speaks none, as stunnel does. Close it at the end.

    Its certificate is signed by `authority` for `name`, and ends at `ends` (None: in many years).
    Clients have to show one of `client_authority` (None: none).
    """

    def __init__(
        self,
        port: int,
        authority: trustme.CA,
        client_authority: trustme.CA | None = None,
        name: str = "127.0.0.1",
        ends: datetime | None = None,
    ) -> None:
        self._upstream = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name, not_after=ends).configure_cert(self._context)
        if client_authority is not None:
            client_authority.configure_trust(self._context)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="tls-proxy")]
        self._threads[0].start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._listener.close()

    def _accept(self) -> None:
        self._listener.settimeout(0.05)
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                plain, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(plain,), name="tls-proxy")
                self._threads.append(thread)
                thread.start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(5.0)
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._upstream)) as server,
            selectors.DefaultSelector() as ready,
        ):
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while not self._over.is_set():
                for key, _ in ready.select(0.05):
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)
