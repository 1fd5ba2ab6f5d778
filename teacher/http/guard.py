"""Keeps web pages out: a browser's requests are made for whoever wrote the page that it shows.

On loopback anybody on this machine may have batches labelled, and its browser is on this machine. A
page can send requests to 127.0.0.1, or let a name of its own point there; the header `Origin`, or
the name in `Host`, gives it away. No client of the protocol sends the one or uses another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...coordinator.web.guard import is_here

_is_here = lru_cache(maxsize=64)(is_here)  # a client says the same name with each batch


class Guard:
    """Looks at what a browser cannot hide.

    Args:
        local: what is guarded listens on loopback, so that it is called by the names of this
            machine only.
    """

    def __init__(self, local: bool) -> None:
        self._local = local

    def refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and words for a request with these headers, by lower case; None: it may pass."""
        if "origin" in headers:
            return 403, "this is for programs, not for web pages"
        if self._local and not _is_here(headers.get("host", "")):
            return 421, "this is called by 127.0.0.1 or localhost"
        return None

    def around(self, app: ASGIApp) -> ASGIApp:
        """An application, guarded."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            if refusal := self.refusal(Headers(scope=scope)):
                status, words = refusal
                await JSONResponse({"error": words}, status)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return guarded
