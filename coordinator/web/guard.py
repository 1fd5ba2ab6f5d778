"""Security headers of every response of the page, and a check of `Host` on loopback."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...proto.security import is_loopback

#: Load only own files, run no inline scripts, forbid frames, cache nothing.
HEADERS: Final = {
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


class Guard:
    """Wraps an application: adds `HEADERS`, and on loopback refuses any `Host` but loopback's.

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
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        if self._local and not is_here(Headers(scope=scope).get("host", "")):
            answer = JSONResponse({"error": "open this page as 127.0.0.1 or localhost"}, 421)
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def is_here(host: str) -> bool:
    """Return whether a `Host` header names loopback."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name)
