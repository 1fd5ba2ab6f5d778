"""HTTP beside gRPC: uvicorn in the event loop of a teacher's server, with limited connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakMethod

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...proto.security.certificates import reloading_context
from ...proto.security.servers import Acceptor, uvicorn_config
from ...runtime.addresses import bind_socket, is_loopback, join_address, split_listen
from .admission import SendingDeadline
from .http_app import CALL_WHEN_SENT, COMMON_NAME, HttpApi, record_calls, refuse_browsers
from .servicer import ServerContext

#: Seconds without a running request after which a connection is closed.
_IDLE_S: Final = 10.0


class HttpConnection(H11Protocol):
    """A connection with time limits for idling and for reading answers.

    Args:
        receive_s: seconds within which the peer must read some of an answer.
        on_malformed: called for each request that is not HTTP.
        uvicorn: arguments of uvicorn's protocols.

    Attributes:
        idle_since: time on the loop's clock since which no request is being answered; None while a
            request is being answered, or while writing is paused because the peer does not read.
    """

    def __init__(self, receive_s: float, on_malformed: Callable[[], None], **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.idle_since: float | None = None
        self._receive_s = receive_s
        self._on_malformed = on_malformed
        self._idle_timer: asyncio.TimerHandle | None = None
        self._when_sent: list[Callable[[], None]] = []

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self.app_state = {**self.app_state, CALL_WHEN_SENT: WeakMethod(self.call_when_sent)}
        if (name := _common_name(transport)) is not None:
            self.app_state = {**self.app_state, COMMON_NAME: name}
        self._send_deadline = SendingDeadline(transport, self._receive_s)
        self._close_if_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._send_deadline.stop()
        self._answers_sent()
        # asyncio's TLS refers to methods of this object. Clearing these references breaks the
        # cycle, which would keep 256 KiB until the next garbage collection.
        self.transport = self.flow = self.cycle = None  # type: ignore[assignment]
        # Otherwise uvicorn's timer would keep the last request.
        self._unset_keepalive_if_required()
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_deadline.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._send_deadline.stop()
        if self.cycle is None or self.cycle.response_complete:
            self.idle_since = self.loop.time()
            self._answers_sent()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = None

    def on_response_complete(self) -> None:
        # A peer that still reads its answer is not idle; `_send_deadline` watches it.
        self.idle_since = None if self.flow.write_paused else self.loop.time()
        if not self.flow.write_paused:
            self._answers_sent()
        super().on_response_complete()

    def call_when_sent(self, function: Callable[[], None]) -> None:
        """Call `function` when the answer to the present request is sent, or cannot be sent."""
        self._when_sent.append(function)
        if self.transport is None:  # the connection was lost
            self._answers_sent()

    def _answers_sent(self) -> None:
        while self._when_sent:
            self._when_sent.pop()()

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

    def _close_if_idle(self) -> None:
        """Close the connection if it has been idle for too long; else check again later."""
        now = self.loop.time()
        left_s = _IDLE_S if self.idle_since is None else self.idle_since + _IDLE_S - now
        if left_s <= 0:
            if self.transport.is_closing():  # the peer does not read the rest
                self.transport.abort()
                return
            self.transport.close()
            left_s = _IDLE_S
        self._idle_timer = self.loop.call_later(left_s, self._close_if_idle)


def end_longest_idle(connections: set[Any]) -> bool:
    """Abort the connection that has been idle for longest; return False if none is idle."""
    idle = [c for c in connections if c.idle_since is not None and not c.transport.is_closing()]
    if idle:
        min(idle, key=lambda connection: connection.idle_since).transport.abort()
    return bool(idle)


def _common_name(transport: Any) -> str | None:
    """Return the common name in the client's certificate; None if there is not exactly one."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate: Any = connection.getpeercert() if connection is not None else None
    names = [
        value
        for part in (certificate or {}).get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return names[0] if len(names) == 1 else None


_BACKLOG: Final = 128
#: Limits of connections without and with TLS; for a further one, the longest idle connection is
#: ended. asyncio allocates 256 KiB for each TLS connection.
_MAX_CONNECTIONS: Final = 1024
_MAX_TLS_CONNECTIONS: Final = 256
#: Seconds between checks whether everything is answered, after a stop.
_POLL_S: Final = 0.01


class HttpServer:
    """The HTTP server: binds when it is created; the rest runs in the event loop of gRPC.

    Args:
        context: shared objects of the server.

    Attributes:
        url: its URL: "http://HOST:PORT", or https.

    Raises:
        UsageError: `config.http` is not an address of this machine, or the certificates cannot be
            used.
        AddressInUse: another process listens there.
    """

    def __init__(self, context: ServerContext) -> None:
        config = context.config
        host, port = split_listen(config.http or "")
        self._api = api = HttpApi(context)
        app = record_calls(refuse_browsers(api.app(), local=is_loopback(host)), context.recorder)
        uvicorn_settings = uvicorn_config(app)
        self._server = uvicorn.Server(uvicorn_settings)
        state = self._server.server_state
        tls = None
        if config.security is not None and config.security.tls is not None:
            tls = reloading_context(config.security.tls, ask_clients=True)
        listening = bind_socket(host, port, "--http")
        listening.listen(_BACKLOG)
        address = join_address(*listening.getsockname()[:2])
        self.url = f"https://{address}" if tls else f"http://{address}"
        self._acceptor = Acceptor(
            listening,
            partial(
                HttpConnection,
                config.receive_s,
                partial(context.recorder.count_refusal, "malformed"),
                config=uvicorn_settings,
                server_state=state,
                app_state={},
            ),
            tls,
            max_connections=_MAX_TLS_CONNECTIONS if tls else _MAX_CONNECTIONS,
            open_connections=lambda: len(state.connections),
            make_room=lambda: end_longest_idle(state.connections),
        )
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start accepting connections."""
        # Only drives uvicorn's clock; the acceptor listens, and `stop` waits for open requests.
        self._ticking = asyncio.create_task(self._server.main_loop())
        self._acceptor.start()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, wait up to `grace_s` for open requests, and close."""
        self._acceptor.close()
        if self._ticking is None:
            return
        self._ticking.cancel()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while state.connections or state.tasks:
                    await asyncio.sleep(_POLL_S)
        self._api.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the connections close
