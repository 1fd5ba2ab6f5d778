"""TCP proxies on loopback that close connections, hold data back, delay it or corrupt it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

#: Host on which processes behind proxies listen, each at the port number of its proxy.
BACKEND_HOST = "127.0.0.2"
_CHUNK_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 5.0
_JOIN_TIMEOUT_S = 5.0

#: Maps received bytes to the bytes that are forwarded instead.
StreamFilter = Callable[[bytes], bytes]


class ChaosProxy:
    """TCP proxy on a free port of 127.0.0.1 that can hold back or delay data. Thread-safe.

    Args:
        name: name for the threads.
        target: `host:port` to forward to; None: the proxy's port number on `BACKEND_HOST`.
        response_filter: called for each connection; returns the filter of the bytes that the
            target sends. None: no filter.

    Attributes:
        effects: number of chunks held back or delayed, plus connections closed.
    """

    def __init__(
        self,
        name: str,
        target: str | None = None,
        *,
        response_filter: Callable[[], StreamFilter] | None = None,
    ) -> None:
        self._name = name
        self._listener = socket.create_server(("127.0.0.1", 0))
        target_host, _, port = (target or f"{BACKEND_HOST}:{self.port}").rpartition(":")
        self._target = (target_host, int(port))
        self._response_filter = response_filter
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._delay_s = 0.0
        self.effects = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start_thread(self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        return f"127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Forward nothing until `heal`; connections stay open."""
        self._flowing.clear()

    def delay(self, seconds: float) -> None:
        """Delay each chunk by `seconds`."""
        self._delay_s = seconds

    def heal(self) -> None:
        """Forward data that was held back, and forward all later data without delay."""
        self._delay_s = 0.0
        self._flowing.set()

    def close_connections(self) -> None:
        """Close all open connections; new ones are accepted."""
        with self._lock:
            sockets = list(self._sockets)
            self.effects += len(sockets) // 2  # each connection has two sockets
        for sock in sockets:
            _shut_down(sock)

    def close(self) -> None:
        """Stop listening, close all connections and join the threads. Idempotent."""
        self._closed.set()
        _shut_down(self._listener)
        self._listener.close()
        self.close_connections()
        self.heal()
        for thread in self._threads:  # the accepting thread first, because it starts the others
            thread.join(_JOIN_TIMEOUT_S)

    def _start_thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        name = f"edl-proxy-{self._name}"
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                self._start_thread(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Serve one connection: this thread forwards responses, another one forwards requests."""
        with (
            contextlib.suppress(OSError),  # the target does not listen
            client,
            socket.create_connection(self._target, timeout=_CONNECT_TIMEOUT_S) as server,
        ):
            server.settimeout(None)
            pair = (client, server)
            for sock in pair:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.update(pair)
            if self._closed.is_set():  # `close` may have missed these sockets
                self.close_connections()
            requests = self._start_thread(self._forward, client, server, bytes)
            response_filter = self._response_filter() if self._response_filter else bytes
            self._forward(server, client, response_filter)
            requests.join(_JOIN_TIMEOUT_S)
            with self._lock:
                self._sockets.difference_update(pair)

    def _forward(self, source: socket.socket, sink: socket.socket, transform: StreamFilter) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if self._delay_s or not self._flowing.is_set():
                    with self._lock:
                        self.effects += 1
                self._flowing.wait()
                if self._delay_s:
                    self._closed.wait(self._delay_s)
                sink.sendall(transform(data))
        for sock in (source, sink):
            _shut_down(sock)


def _shut_down(sock: socket.socket) -> None:
    """Shut a socket down: unlike closing, this wakes threads that wait for it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
