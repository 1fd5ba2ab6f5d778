"""One connection of uvicorn's: how long it may be idle, and who is at its other end."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..request import SendingDeadline
from .middleware import CERTIFICATE

#: Seconds that a connection may be without a request that is being answered.
_IDLE_S: Final = 10.0


class Connection(H11Protocol):
    """A connection that has to make requests, and in time.

    Args:
        receive_s: seconds within which something of an answer has to be taken.
        on_malformed: told of each request that is no HTTP.
        uvicorn: what that gives to its protocols.

    Attributes:
        idle_since: None while a request is being answered.
    """

    def __init__(self, receive_s: float, on_malformed: Callable[[], None], **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.idle_since: float | None = None
        self._receive_s = receive_s
        self._on_malformed = on_malformed
        self._watching: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        if (certificate := _common_name(transport)) is not None:
            self.app_state = {**self.app_state, CERTIFICATE: certificate}
        self._sending = SendingDeadline(transport, self._receive_s)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._sending.stop()
        # asyncio's TLS keeps methods of this: without these references gone, its memory (256 KiB
        # with TLS) would wait for the garbage collector.
        self.transport = self.flow = self.cycle = None  # type: ignore[assignment]
        # Or what was read of it would stay until they look the next time.
        self._unset_keepalive_if_required()
        if self._watching is not None:
            self._watching.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._sending.stop()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = None

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._on_malformed()
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
        """Look again and again, until it is lost, whether it has been idle for too long."""
        now = self.loop.time()
        left_s = _IDLE_S if self.idle_since is None else self.idle_since + _IDLE_S - now
        if left_s <= 0:
            if self.transport.is_closing():  # nobody reads the last of it
                self.transport.abort()
                return
            self.transport.close()
            left_s = _IDLE_S
        self._watching = self.loop.call_later(left_s, self._watch)


def end_longest_idle(open_: set[Any]) -> bool:
    """End the connection that has been idle for longest; False: none is."""
    idle = [one for one in open_ if one.idle_since is not None and not one.transport.is_closing()]
    if idle:
        min(idle, key=lambda one: one.idle_since).transport.abort()
    return bool(idle)


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
