"""Routes of the page: files, feed, drain; and the access rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...proto.security import AccessControl, Caller, names_loopback
from ...runtime.errors import (
    AccessError,
    EdlError,
    Forbidden,
    RateLimited,
    RegistryUnavailable,
    RetryableError,
    Unauthenticated,
    UsageError,
)
from .feed import Feed, Source

_STATIC: Final = Path(__file__).parent / "static"
_KINDS: Final = {
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
    (RegistryUnavailable, 503),
    (RetryableError, 503),
)

#: Load only own files, run no inline scripts, forbid frames, cache nothing.
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


def make_app(source: Source, access: Access, feed: Feed, *, local: bool) -> ASGIApp:
    """Return the application. `feed.run` must run in the same event loop.

    Args:
        source: the mesh.
        access: the access rules.
        feed: what open pages receive.
        local: the server listens on loopback.
    """
    files = {path.name: path.read_bytes() for path in _STATIC.iterdir() if path.suffix in _KINDS}

    def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return JSONResponse({"error": "there is no such page"}, 404)
        return Response(files[name], media_type=_KINDS[Path(name).suffix])

    def who(request: Request) -> Response:
        return JSONResponse(access.describe(_authorization(request)))

    def look(request: Request) -> Response:
        check = partial(access.check_view, _authorization(request))
        check()
        return _FeedResponse(feed, check)

    async def drain(request: Request) -> Response:
        access.check_drain(_authorization(request))
        service, teacher = _named(await _body(request))
        await asyncio.to_thread(source.drain, service, teacher)
        return JSONResponse({"draining": teacher})

    async def sorry(_: Request, error: Exception) -> Response:
        code = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        headers = {"WWW-Authenticate": "Bearer"} if code == 401 else None
        return JSONResponse({"error": str(error)}, code, headers)

    app = Starlette(
        routes=[
            Route("/", _in_loop(file), methods=["GET"]),
            Route("/static/{name}", _in_loop(file), methods=["GET"]),
            Route("/api/access", _in_loop(who), methods=["GET"]),
            Route("/api/feed", _in_loop(look), methods=["GET"]),
            Route("/api/drain", drain, methods=["POST"]),
        ],
        exception_handlers={EdlError: sorry},
    )
    return _Guard(app, local)


class _Guard:
    """Adds security headers to responses, and on loopback refuses any `Host` but loopback's.

    This stops DNS rebinding: a foreign site whose name resolves to 127.0.0.1 could otherwise read
    what only this machine may read.

    Args:
        app: the application.
        local: it listens on loopback.
    """

    def __init__(self, app: ASGIApp, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        if self._local and not names_loopback(Headers(scope=scope).get("host", "")):
            answer = JSONResponse({"error": "open this page as 127.0.0.1 or localhost"}, 421)
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _in_loop(answer: Any) -> Any:
    """Return a coroutine function, as Starlette runs plain functions in worker threads."""

    async def endpoint(request: Request) -> Response:
        response: Response = answer(request)
        return response

    return endpoint


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


def _authorization(request: Request) -> str:
    return request.headers.get("authorization", "")


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


def _named(body: object) -> tuple[str, str]:
    match body:
        case {"service": str(service), "teacher": str(teacher)} if service and teacher:
            return service, teacher
    raise UsageError('name the teacher: {"service": NAME, "teacher": ID}')


_VIEWER = "viewer"
_ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of one page.

    Attributes:
        gate: knows the tokens; None: there are none. Then nobody may drain, not even from this
            machine, as any web page in a local browser could send the request.
        guarded: viewing requires a token too.
    """

    gate: AccessControl | None
    guarded: bool

    def check_view(self, authorization: str) -> None:
        """Raise Unauthenticated or Forbidden if the caller may not view the page."""
        if self.guarded:
            self._check(authorization, _VIEWER)

    def check_drain(self, authorization: str) -> None:
        """Raise Unauthenticated or Forbidden if the caller may not drain teachers."""
        self._check(authorization, _ADMIN)

    def describe(self, authorization: str) -> dict[str, bool]:
        """Return what the caller may do, and whether this page knows and requires tokens."""
        caller = self._known(_token(authorization))
        return {
            "guarded": self.guarded,
            "tokens": self.gate is not None,
            "known": caller is not None,
            "view": not self.guarded or (caller is not None and caller.may(_VIEWER)),
            "drain": caller is not None and caller.may(_ADMIN),
        }

    def _known(self, token: str) -> Caller | None:
        if self.gate is None or not token:
            return None
        try:
            return self.gate.bearer(token)
        except AccessError:
            return None

    def _check(self, authorization: str, role: str) -> None:
        if self.gate is None:
            raise Forbidden(
                "this manager has no tokens: start it with --tokens FILE to drain from the page"
            )
        self.gate.require(self.gate.bearer(_token(authorization)), role)


def _token(authorization: str) -> str:
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
