"""The online service of `edl bench elastic`, and its load, each a child process."""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ...proto.channel import Channel

_TIMEOUT_S: Final = 30.0
_WARM_UP_REQUESTS: Final = 20
#: Rounds of a key derivation: a few milliseconds of a core.
_ROUNDS: Final = 8_000


class Handler(BaseHTTPRequestHandler):
    """Answers GET with a digest that takes a few milliseconds to compute."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet: a second one would wait for the ACK of the first

    def do_GET(self) -> None:
        digest = hashlib.pbkdf2_hmac("sha256", self.path.encode(), b"salt", _ROUNDS)
        body = digest.hex().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the load measures the times."""


def serve(channel: Channel) -> None:
    """Serve until the channel ends; its first message to the benchmark has the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        channel.send("ready", port=server.server_port)
        channel.receive()
        server.shutdown()


def load(channel: Channel, port: int, per_s: float, count: int) -> None:
    """Send requests to the service; the only message to the benchmark has the time of each."""
    channel.send("done", times_ms=send_requests(port, per_s, count))


def send_requests(port: int, per_s: float, count: int) -> list[float]:
    """Send `count` requests to a port of loopback, one at a time; return the milliseconds of each.

    The time of a request begins when the request is due, so that a slow request also shows in the
    requests that it delays. Some warm-up requests come first.

    Args:
        port: port of the service.
        per_s: requests per second.
        count: number of requests.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    took = []
    began_s = time.perf_counter()
    for number in range(_WARM_UP_REQUESTS + count):
        due_s = began_s + number / per_s
        time.sleep(max(0.0, due_s - time.perf_counter()))
        connection.request("GET", f"/{number}")
        connection.getresponse().read()
        took.append((time.perf_counter() - due_s) * 1000)
    connection.close()
    return took[_WARM_UP_REQUESTS:]
