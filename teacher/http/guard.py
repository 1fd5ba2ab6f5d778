"""Keeps web pages out: a browser's requests are made for whoever wrote the page that it shows.

On loopback anybody on this machine may have batches labelled, and its browser is on this machine. A
page can send requests to 127.0.0.1, or let a name of its own point there; the header `Origin`, or
the name in `Host`, gives it away. No client of the protocol sends the one or uses another name.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...coordinator.web.guard import is_here


class Guard:
    """Wraps an application.

    Args:
        app: what is guarded.
        local: it listens on loopback, so that it is called by the names of this machine only.
    """

    def __init__(self, app: ASGIApp, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        if "origin" in headers:
            await _refused(403, "this is for programs, not for web pages")(scope, receive, send)
        elif self._local and not is_here(headers.get("host", "")):
            await _refused(421, "this is called by 127.0.0.1 or localhost")(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refused(status: int, words: str) -> JSONResponse:
    return JSONResponse({"error": words}, status)
