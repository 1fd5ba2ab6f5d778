"""Keeps web pages out: a browser's requests are made for whoever wrote the page that it shows.

On loopback anybody on this machine may have batches labelled, and its browser is on this machine. A
page can send requests to 127.0.0.1, or let a name of its own point there; the header `Origin`, or
the name in `Host`, gives it away. No client of the protocol sends the one or uses another name.
"""

from __future__ import annotations

from functools import lru_cache

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...coordinator.web.guard import is_here

_is_here = lru_cache(maxsize=64)(is_here)  # a client says the same name with each batch


def guarded(app: ASGIApp, *, local: bool) -> ASGIApp:
    """An application that is kept from web pages.

    Args:
        app: is asked what may pass.
        local: it listens on loopback, so that it is called by the names of this machine only.
    """

    def refusal(headers: Headers) -> tuple[int, str] | None:
        if "origin" in headers:
            return 403, "this is for programs, not for web pages"
        if local and not _is_here(headers.get("host", "")):
            return 421, "this is called by 127.0.0.1 or localhost"
        return None

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if refused := refusal(Headers(scope=scope)):
            status, words = refused
            await JSONResponse({"error": words}, status)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return ask
