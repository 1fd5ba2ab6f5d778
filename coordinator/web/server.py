"""The page of a manager: its routes and access rules, and uvicorn in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...proto.security.access_control import AccessControl, Caller
from ...proto.security.certificates import reloading_context
from ...proto.security.credentials import TlsFiles, is_local_address
from ...proto.security.servers import Acceptor, uvicorn_config
from ...runtime.addresses import bind_socket, is_loopback, join_address, split_listen
from ...runtime.errors import (
    AccessError,
    EdlError,
    Forbidden,
    RateLimited,
    RedisUnavailable,
    RetryableError,
    Unauthenticated,
    UsageError,
)
from .feed import MAX_VIEWERS, Feed, MeshSource

log = logging.getLogger(__name__)

_BACKLOG: Final = 64
_MAX_CONNECTIONS: Final = 4 * MAX_VIEWERS
#: Seconds within which a connection must send a request.
_REQUEST_S: Final = 10.0
_GRACE_S: Final = 1


class WebServer:
    """Serves the live page of a mesh.

    On loopback, or if there are no tokens, everybody may view it; otherwise viewing requires a
    viewer's token. Draining always requires an administrator's token.

    Args:
        source: the mesh.
        listen: "PORT" or "HOST:PORT"; port 0: any free one.
        gate: checks tokens; without a gate, or if it does not authenticate, there are no tokens.
        insecure: even without authentication, allow an address that other machines can reach.
        tls: certificate and key for https, read again when they change; None: plain http.

    Raises:
        UsageError: `listen` is no address of this machine, or other machines can reach it without
            authentication and `insecure` is False; or certificate or key cannot be used.
        AddressInUse: another process listens on the address.
    """

    def __init__(
        self,
        source: MeshSource,
        listen: str,
        gate: AccessControl | None = None,
        insecure: bool = False,
        *,
        tls: TlsFiles | None = None,
    ) -> None:
        host, port = split_listen(listen)
        token_gate = gate if gate is not None and gate.authenticates else None
        local = is_loopback(host)
        if token_gate is None and not local and not insecure:
            raise UsageError(
                f"the page on {host} can be seen from other machines: listen on 127.0.0.1, give "
                "--tokens FILE, or give --insecure if the network is trusted"
            )
        if token_gate is not None and not local and tls is None:
            log.warning("tokens that are entered in the page on %s are sent unencrypted", host)
        self._feed = Feed(source)
        access = Access(token_gate, guarded=token_gate is not None and not local)
        app = make_app(source, access, self._feed, local=local)
        config = uvicorn_config(app, _GRACE_S)
        self._server = uvicorn.Server(config)
        state = self._server.server_state
        self._scheme = "http" if tls is None else "https"
        context = None if tls is None else reloading_context(tls)
        self._socket = bind_socket(host, port, "--http")
        self._socket.listen(_BACKLOG)
        self._acceptor = Acceptor(
            self._socket,
            partial(_Connection, config=config, server_state=state, app_state={}),
            context,
            max_connections=_MAX_CONNECTIONS,
            open_connections=lambda: len(state.connections),
            make_room=lambda: _end_one_silent(state.connections),
        )
        self._thread = threading.Thread(target=self._run, name="edl-page", daemon=True)

    @property
    def url(self) -> str:
        """URL of the page for a browser on this machine."""
        host, port = self._socket.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{self._scheme}://{join_address(shown, port)}/"

    def start(self) -> str:
        """Start the thread, once; return `url`."""
        self._thread.start()
        return self.url

    def stop(self) -> None:
        """End every connection and the thread. Idempotent."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        feeding = asyncio.create_task(self._feed.run())
        serving = asyncio.create_task(self._server.serve([]))  # the acceptor listens
        self._acceptor.start()
        while not self._server.should_exit and not serving.done():
            await asyncio.sleep(0.1)
        self._acceptor.close()
        feeding.cancel()  # ends the streams, which the server waits for
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
        await serving


class _Connection(H11Protocol):
    """A connection that is closed if it sends no request in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._end_if_silent)

    @property
    def is_silent(self) -> bool:
        """Whether it has sent no request yet."""
        return self.cycle is None and not self.transport.is_closing()

    def _end_if_silent(self) -> None:
        if self.is_silent:
            self.transport.close()


def _end_one_silent(connections: set[Any]) -> bool:
    """Close one connection that has sent no request; return whether there was one."""
    silent = next((connection for connection in connections if connection.is_silent), None)
    if silent is not None:
        silent.transport.abort()
    return silent is not None


_STATIC: Final = Path(__file__).parent / "static"
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_MAX_BODY: Final = 4096
_PING_S: Final = 10.0
#: Seconds within which a page must read a message; then its connection is closed.
_SEND_S: Final = 15.0
_STATUS: Final[tuple[tuple[type[EdlError], int], ...]] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (UsageError, 400),
    (RateLimited, 429),
    (RedisUnavailable, 503),
    (RetryableError, 503),
)

#: With these headers, browsers load only our own files, run no inline scripts, refuse to show the
#: page in a frame, and cache nothing.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def make_app(source: MeshSource, access: Access, feed: Feed, *, local: bool) -> ASGIApp:
    """Return the application. `feed.run` must run in the same event loop.

    Args:
        source: the mesh.
        access: the access rules.
        feed: the messages for open pages.
        local: whether the server listens on loopback.
    """
    files = {
        path.name: path.read_bytes() for path in _STATIC.iterdir() if path.suffix in _MEDIA_TYPES
    }

    # Coroutine functions: Starlette would run plain functions in worker threads.
    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return JSONResponse({"error": "there is no such page"}, 404)
        return Response(files[name], media_type=_MEDIA_TYPES[Path(name).suffix])

    async def describe_access(request: Request) -> Response:
        return JSONResponse(access.describe(_token(request)))

    async def send_feed(request: Request) -> Response:
        check = partial(access.check_view, _token(request))
        check()
        return _FeedResponse(feed, check)

    async def drain(request: Request) -> Response:
        access.check_drain(_token(request))
        service, teacher = _teacher_in(await _body(request))
        await asyncio.to_thread(source.drain, service, teacher)
        return JSONResponse({"draining": teacher})

    async def report_error(_: Request, error: Exception) -> Response:
        code = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        headers = {"WWW-Authenticate": "Bearer"} if code == 401 else None
        return JSONResponse({"error": str(error)}, code, headers)

    app = Starlette(
        routes=[
            Route("/", file, methods=["GET"]),
            Route("/static/{name}", file, methods=["GET"]),
            Route("/api/access", describe_access, methods=["GET"]),
            Route("/api/feed", send_feed, methods=["GET"]),
            Route("/api/drain", drain, methods=["POST"]),
        ],
        exception_handlers={EdlError: report_error},
    )
    return _guarded(app, local)


def _guarded(app: ASGIApp, local: bool) -> ASGIApp:
    """Add security headers to responses, and on loopback refuse any `Host` but loopback's.

    This stops DNS rebinding: a foreign site whose name resolves to 127.0.0.1 could otherwise read
    what only this machine may read.

    Args:
        app: the application.
        local: whether it listens on loopback.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        answer = app
        if local and not is_local_address(Headers(scope=scope).get("host", "")):
            answer = JSONResponse({"error": "open this page as 127.0.0.1 or localhost"}, 421)
        await answer(scope, receive, send_guarded)

    return guarded


class _FeedResponse(Response):
    """Streams the feed to one page, which counts as a viewer until the stream ends.

    Args:
        feed: the feed.
        check: raises AccessError if the page may not receive it any more.
    """

    def __init__(self, feed: Feed, check: Callable[[], None]) -> None:
        super().__init__()
        self._feed = feed
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.viewing() as messages:
            stream = EventSourceResponse(
                self._events(messages), ping=_PING_S, send_timeout=_SEND_S, cleanup_timeout=1.0
            )
            await stream(scope, receive, send)

    async def _events(self, messages: AsyncIterator[str]) -> AsyncIterator[ServerSentEvent]:
        async for message in messages:
            try:
                self._check()
            except AccessError:
                return  # the page calls again, and gets the error
            yield ServerSentEvent(message, event="mesh", sep="\n")


def _token(request: Request) -> str:
    """Return the bearer token; empty: none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


async def _body(request: Request) -> object:
    """Return a small JSON body; raise UsageError if it is invalid."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UsageError("the body must be application/json")
    data = b""
    with contextlib.suppress(ClientDisconnect):
        async for piece in request.stream():
            data += piece
            if len(data) > _MAX_BODY:
                raise UsageError(f"the body is larger than {_MAX_BODY} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("the body is not valid JSON") from None


def _teacher_in(body: object) -> tuple[str, str]:
    match body:
        case {"service": str(service), "teacher": str(teacher)} if service and teacher:
            return service, teacher
    raise UsageError('name the teacher: {"service": NAME, "teacher": ID}')


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of one page.

    Attributes:
        gate: knows the tokens; None: there are none. Then nobody may drain, not even from this
            machine: any web page in a local browser could send the request.
        guarded: whether viewing requires a token, too.
    """

    gate: AccessControl | None
    guarded: bool

    def check_view(self, token: str) -> None:
        """Raise Unauthenticated or Forbidden if the caller may not view the page."""
        if self.guarded:
            self._check(token, "viewer")

    def check_drain(self, token: str) -> None:
        """Raise Unauthenticated or Forbidden if the caller may not drain teachers."""
        self._check(token, "admin")

    def describe(self, token: str) -> dict[str, bool]:
        """Return what the caller may do, and whether this page knows and requires tokens."""
        caller = self._known(token)
        return {
            "guarded": self.guarded,
            "tokens": self.gate is not None,
            "known": caller is not None,
            "view": not self.guarded or (caller is not None and caller.may("viewer")),
            "drain": caller is not None and caller.may("admin"),
        }

    def _known(self, token: str) -> Caller | None:
        if self.gate is None or not token:
            return None
        try:
            return self.gate.bearer(token)
        except AccessError:
            return None

    def _check(self, token: str, role: str) -> None:
        if self.gate is None:
            raise Forbidden(
                "this manager has no tokens: start it with --tokens FILE to drain from the page"
            )
        self.gate.require(self.gate.bearer(token), role)
