"""One connection: requests for labels in its own way, all others by uvicorn; how long it may idle.

uvicorn hands what it reads through h11 and ASGI, piece by piece, and so a batch is copied three
times over. Here a plain request for labels (`heads.py`) is taken out of the stream where one
begins, and its body is received into the memory that it stays in. Of every other request each byte
goes to uvicorn as it came.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .callers import CERTIFICATE
from .exchange import Desk, Exchange
from .heads import END, MAX_BYTES, Head, head_of, may_begin

#: Seconds that a connection may be without a request that is being answered.
_IDLE_S: Final = 10.0
#: Of requests behind the one that is being answered; more is left to the socket.
_AHEAD_BYTES: Final = 64 << 10


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection that has to make requests, and in time.

    Args:
        desk: for requests for labels.
        on_malformed: told of each request that is no HTTP.
        uvicorn: what that gives to its protocols.

    Attributes:
        idle_since: None while a request is being answered.
    """

    def __init__(self, desk: Desk, on_malformed: Callable[[], None], **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.idle_since: float | None = None
        self._desk = desk
        self._on_malformed = on_malformed
        self._certificate: str | None = None
        self._exchange: Exchange | None = None  # until it is answered, and its body taken
        self._answering: asyncio.Task[None] | None = None
        self._held = b""  # of a head that may become that of an exchange, or behind one
        self._watching: asyncio.TimerHandle | None = None

    # --- what is read

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are to go."""
        body = None if self._exchange is None else self._exchange.body
        elsewhere = self._desk.scratch
        return body.room(elsewhere) if body is not None and body.left else elsewhere

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        body = None if self._exchange is None else self._exchange.body
        if body is not None and body.left:
            body.came(nbytes)
            self._go_on()
        else:
            self.data_received(self._desk.scratch[:nbytes].tobytes())

    def data_received(self, data: bytes) -> None:
        """They are of no exchange's body."""
        if self._exchange is not None:
            self._held += data
            if len(self._held) > _AHEAD_BYTES:
                self.flow.pause_reading()
            return
        if self._between_requests():
            data, self._held = self._held + data, b""
            if may_begin(data):
                end = data.find(END)
                if end < 0 and len(data) <= MAX_BYTES:
                    self._held = data
                    return
                end += len(END)
                if end >= len(END) and (head := head_of(data[:end])) is not None:
                    self._begin(head, memoryview(data)[end:])
                    return
        super().data_received(data)

    def _between_requests(self) -> bool:
        """Whether uvicorn is at rest, so that the next byte is the first of a request."""
        states = (self.conn.our_state, self.conn.their_state)
        return states == (h11.IDLE, h11.IDLE) and not self.conn.trailing_data[0]

    # --- an exchange

    def _begin(self, head: Head, more: memoryview) -> None:
        self._unset_keepalive_if_required()
        self.idle_since = None
        address, state = self.client or ("", 0), self.server_state
        exchange = Exchange(
            self._desk, head, self._certificate, address, lambda: state.default_headers
        )
        self._held = exchange.body.take_in(more).tobytes()
        self._exchange = exchange
        self._answering = self.loop.create_task(self._answer(exchange))
        self.tasks.add(self._answering)
        self._answering.add_done_callback(self.tasks.discard)
        self._answering.add_done_callback(lambda _: exchange.end())  # it may never have begun

    async def _answer(self, exchange: Exchange) -> None:
        self.transport.write(await exchange.answer())
        if self.flow.write_paused:
            try:
                async with asyncio.timeout(self._desk.config.receive_s):
                    await self.flow.drain()
            except TimeoutError:  # nobody reads it
                self.transport.abort()
        self._answering = None
        self.idle_since = self.loop.time()
        if exchange.last and exchange.body.left:
            # To close now would take the answer from whoever still sends.
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()
        self._go_on()

    def _go_on(self) -> None:
        """Take the next request, if the exchange is over."""
        exchange = self._exchange
        if exchange is None or self._answering is not None or exchange.body.left:
            return
        self._exchange = None
        if exchange.last:
            self.transport.close()
            return
        held, self._held = self._held, b""
        self.on_response_complete()
        if held and not self.transport.is_closing():
            self.data_received(held)

    # --- as uvicorn has it, and what is added to that

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._certificate = _common_name(transport)
        if self._certificate is not None:
            self.app_state = {**self.app_state, CERTIFICATE: self._certificate}
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()
        self._exchange = self._answering = None
        # asyncio's TLS keeps methods of this: without these references gone, its memory (256 KiB
        # with TLS) would wait for the garbage collector.
        self.transport = self.flow = self.cycle = None  # type: ignore[assignment]
        # Or what was read of it would stay until they look the next time.
        self._unset_keepalive_if_required()
        if self._watching is not None:
            self._watching.cancel()

    def shutdown(self) -> None:
        if self._exchange is None:
            super().shutdown()
        elif self._answering is None:
            self.transport.close()
        else:
            self._exchange.last = True

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
