"""A gate between two processes: a TCP proxy on loopback that cuts, silences, delays and spoils."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

_CHUNK_BYTES = 1 << 16
_CONNECT_S = 5.0
_END_S = 5.0

Through = Callable[[bytes], bytes]


class Gate:
    """Listens on a free port of 127.0.0.1 and hands on every byte, unless told not to.

    Args:
        name: for its threads.
        target: `host:port` that it hands on to; None: the same port of `host`.
        host: where the target is, if it is not named: another address of loopback.
        answers: makes, for each connection, what goes over the bytes of the target.

    Attributes:
        struck: how many pieces of data it has held back or delayed, and connections it has cut.
    """

    def __init__(
        self,
        name: str,
        target: str | None = None,
        *,
        host: str = "127.0.0.2",
        answers: Callable[[], Through] | None = None,
    ) -> None:
        self._name = name
        self._listener = socket.create_server(("127.0.0.1", 0))
        there, _, port = (target or f"{host}:{self.port}").rpartition(":")
        self._target = (there, int(port))
        self._answers = answers
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._delay_s = 0.0
        self.struck = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._start(self._accept)

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """`host:port` for those who come through it."""
        return f"127.0.0.1:{self.port}"

    def silence(self) -> None:
        """From now on nothing passes, and nobody is told: connections stay open."""
        self._flowing.clear()

    def delay(self, seconds: float) -> None:
        """Hand on each piece of data so much later."""
        self._delay_s = seconds

    def heal(self) -> None:
        """Let pass what was held back, and all that comes, at once."""
        self._delay_s = 0.0
        self._flowing.set()

    def cut(self) -> None:
        """End every connection there is; new ones may come."""
        with self._lock:
            sockets = list(self._sockets)
            self.struck += len(sockets) // 2  # of each connection there are two
        for one in sockets:
            _shut(one)

    def close(self) -> None:
        """End it, and all that goes through it; again without effect."""
        self._closed.set()
        _shut(self._listener)
        self._listener.close()
        self.cut()
        self.heal()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"edl-gate-{self._name}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            self._start(lambda client=client: self._connect(client))  # type: ignore[misc]

    def _connect(self, client: socket.socket) -> None:
        """Serve one connection: this thread hands on what comes back, another what goes there."""
        with contextlib.ExitStack() as ending:
            ending.enter_context(client)
            try:
                server = socket.create_connection(self._target, timeout=_CONNECT_S)
            except OSError:
                return
            ending.enter_context(server)
            server.settimeout(None)
            pair = (client, server)
            for one in pair:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.update(pair)
            if self._closed.is_set():  # between the cut of all and now
                self.cut()
            there = threading.Event()

            def ask() -> None:
                self._hand_on(client, server, bytes)
                there.set()

            self._start(ask)
            self._hand_on(server, client, self._answers() if self._answers else bytes)
            there.wait(_END_S)
            with self._lock:
                self._sockets.difference_update(pair)

    def _hand_on(self, source: socket.socket, sink: socket.socket, through: Through) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if self._delay_s or not self._flowing.is_set():
                    with self._lock:
                        self.struck += 1
                self._flowing.wait()
                if self._delay_s:
                    self._closed.wait(self._delay_s)
                sink.sendall(through(data))
        for one in (source, sink):
            _shut(one)


def _shut(one: socket.socket) -> None:
    """Wake whoever waits at it; closing alone would not."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
