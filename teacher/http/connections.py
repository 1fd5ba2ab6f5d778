"""One connection of uvicorn's: who holds its certificate, how long it may say nothing."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds that a connection may be without a request that is being answered.
_IDLE_S: Final = 10.0
#: Connections at once; for one more, the one goes that has been idle for longest.
_MAX_CONNECTIONS: Final = 1024
#: In a request's `state`: the common name of the caller's certificate.
CERTIFICATE: Final = "certificate"


def connections(on_malformed: Callable[[], None]) -> type[H11Protocol]:
    """What uvicorn is to serve each connection with.

    Args:
        on_malformed: told of each request that is no HTTP.
    """

    class Connection(H11Protocol):
        """A connection that has to make requests, and in time."""

        idle_since: float | None = None  # None: a request is being answered

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.idle_since = self.loop.time()
            if (name := _common_name(transport)) is not None:
                self.app_state = {**self.app_state, CERTIFICATE: name}
            if len(self.connections) > _MAX_CONNECTIONS:
                _end_longest_idle(self.connections)
            self._watch()

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not None and not self.cycle.response_complete:
                self.idle_since = None

        def on_response_complete(self) -> None:
            self.idle_since = self.loop.time()
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            on_malformed()
            body = json.dumps({"error": msg}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
                for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _watch(self) -> None:
            """Look again and again, until it is closed, whether it has been idle for too long."""
            if self.transport.is_closing():
                return
            now = self.loop.time()
            left_s = _IDLE_S if self.idle_since is None else self.idle_since + _IDLE_S - now
            if left_s <= 0:
                self.transport.close()
            else:
                self.loop.call_later(left_s, self._watch)

    return Connection


def _end_longest_idle(open_: set[Any]) -> None:
    idle = [one for one in open_ if one.idle_since is not None and not one.transport.is_closing()]
    if idle:
        min(idle, key=lambda one: one.idle_since).transport.abort()


def _common_name(transport: Any) -> str | None:
    """Whom the client's certificate names; None: it has shown none, or one without a name."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate: Any = connection.getpeercert() if connection is not None else None
    names = [
        value
        for part in (certificate or {}).get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return names[0] if len(names) == 1 else None
