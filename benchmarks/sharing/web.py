"""The online service of `edl bench elastic`: a request takes a few milliseconds of CPU time."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ...runtime.lifecycle import stop_on_signals
from ...runtime.supervise import end_with_parent

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
        """Log nothing: the load takes the times."""


def main() -> None:
    """Serve until a signal stops the process."""
    import threading

    end_with_parent()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, stop_on_signals() as stop:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"listens on port {server.server_port}", flush=True)
        stop.wait()
        server.shutdown()


if __name__ == "__main__":
    main()
