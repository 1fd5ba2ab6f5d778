"""HTTP server for the Prometheus metrics and the health of this process."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import HTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, MetricsHandler

from .addresses import bind_socket, is_loopback, join_address, split_listen
from .errors import AccessError, EdlError, Forbidden, UnavailableError, UsageError

log = logging.getLogger(__name__)

#: Seconds after which a read or write of a connection times out, and after which a scrape may be
#: ended in favour of others.
_TIMEOUT_S: Final = 5.0
#: Limit of simultaneous scrapes; further ones are answered 503.
_MAX_SCRAPES: Final = 16
#: Limit of connections that have not begun a scrape, including health checks. One more connection
#: makes the server close the oldest, so that silent connections block nobody.
_MAX_WAITING: Final = 32
#: Errors of a system that has no descriptor or memory for another connection, and seconds before
#: the next attempt.
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_PAUSE_S: Final = 0.5
#: Paths of the liveness and readiness probes.
LIVE: Final = "/health/live"
READY: Final = "/health/ready"


class MetricsServer:
    """Serves one registry at `http://ADDRESS/metrics` until it is closed.

    If `listen` names no host, the server listens on loopback: metrics hold no secrets, but they
    show the structure of a mesh. Invalid HTTP, slow clients and too many clients affect only their
    own connections: health probes are answered however many clients scrape or are silent.

    `/health/live` answers 200, `/health/ready` 200 or 503, both with an empty body. They need no
    token, because a kubelet has none. A kubelet has no client certificate, either, so it cannot
    probe the process's other ports.

    Args:
        listen: "PORT" or "HOST:PORT"; port 0: any free one.
        registry: the metrics; the caller's own registry, never the library's global one.
        insecure: allow a host that other machines can reach, without authentication.
        authorize: called with the bearer token of each scrape ("" without one); raises AccessError
            to refuse it. With it, the server may listen on any host.
        json_route: called with the path of each request that is no probe; returns the JSON of the
            answer, or None: the answer is the metrics. If it raises AccessError or
            UnavailableError, the answer is 503; for any other EdlError, 404.
        ready: returns whether the process can do its work now.

    Raises:
        UsageError: `listen` is no address of this machine, or other machines can reach it and
            neither `insecure` nor `authorize` is given.
        AddressInUse: another process listens on the address.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        *,
        insecure: bool = False,
        authorize: Callable[[str], object] | None = None,
        json_route: Callable[[str], bytes | None] = lambda path: None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        host, port = split_listen(listen)
        if not insecure and authorize is None and not is_loopback(host):
            raise UsageError(
                f"metrics on {host} can be read from other machines: listen on 127.0.0.1, or pass "
                "--insecure if the network is trusted"
            )
        self._server = _Server(host, port, _handler(registry, authorize, json_route, ready))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="edl-metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Address on which the server listens: "host:port"."""
        host, port = self._server.server_address[:2]
        return join_address(str(host), int(port))

    def close(self) -> None:
        """Stop the server and close its connections. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.close_all()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """Runs one thread per connection; bounds the number of connections and can close all."""

    daemon_threads = False  # so that `server_close` waits for them
    request_queue_size = 128

    def __init__(self, host: str, port: int, handler: type[MetricsHandler]) -> None:
        self._waiting: dict[socket.socket, None] = {}  # the oldest first
        self._scraping: dict[socket.socket, float] = {}  # value: start in monotonic seconds
        self._lock = threading.Lock()
        listener = bind_socket(host, port, "--metrics-listen or metrics_listen")
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.address_family = listener, listener.family
        self.server_activate()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the connection stays ready: without a pause this spins
                time.sleep(_EXHAUSTED_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._waiting) >= _MAX_WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                _shut_down(oldest)
            self._waiting[request] = None
        request.settimeout(_TIMEOUT_S)
        super().process_request(request, client_address)

    def begin_scrape(self, request: socket.socket) -> bool:
        """Register a connection as a scrape; return False if the scrape is refused."""
        now = time.monotonic()
        with self._lock:
            if request not in self._waiting:  # closed to make room for another connection
                return False
            if len(self._scraping) < _MAX_SCRAPES:
                del self._waiting[request]
                self._scraping[request] = now
                return True
            for connection, since in self._scraping.items():  # make room for the next scrape
                if now - since > _TIMEOUT_S:
                    _shut_down(connection)
            return False

    def shutdown_request(self, request: Any) -> None:
        # Free its place before the connection ends: its client may connect again at once.
        with self._lock:
            self._waiting.pop(request, None)
            self._scraping.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape by %s broke", client_address, exc_info=True)

    def close_all(self) -> None:
        """Close all connections and the listener; wait for the threads of the connections."""
        with self._lock:
            still_open = [*self._waiting, *self._scraping]
        for connection in still_open:
            _shut_down(connection)
        self.server_close()


def _shut_down(connection: socket.socket) -> None:
    """Shut a connection down; the thread that serves it then closes it."""
    with contextlib.suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)


def _handler(
    registry: CollectorRegistry,
    authorize: Callable[[str], object] | None,
    json_route: Callable[[str], bytes | None],
    ready: Callable[[], bool],
) -> type[MetricsHandler]:
    class Handler(MetricsHandler):
        server_version, sys_version = "edl", ""
        server: _Server

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in (LIVE, READY):
                is_healthy = path == LIVE or ready()
                self._send(200 if is_healthy else 503, b"", "Cache-Control", "no-store")
                return
            if not self.server.begin_scrape(self.connection):
                self._send(503, b"", "Retry-After", "1")
                return
            scheme, _, token = self.headers.get("Authorization", "").partition(" ")
            try:
                if authorize is not None:
                    authorize(token.strip() if scheme.lower() == "bearer" else "")
            except AccessError as error:
                status = 403 if isinstance(error, Forbidden) else 401
                self._send(status, b"", "WWW-Authenticate", "Bearer")
                return
            try:
                answer = json_route(path)
            except EdlError as error:
                status = 503 if isinstance(error, AccessError | UnavailableError) else 404
                body = json.dumps({"error": str(error)}).encode()
                self._send(status, body, "Content-Type", "application/json")
                return
            if answer is None:
                super().do_GET()
            else:
                self._send(200, answer, "Content-Type", "application/json")

        def _send(self, status: int, body: bytes, header: str, value: str) -> None:
            self.send_response(status)
            self.send_header(header, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    Handler.registry = registry
    return Handler
