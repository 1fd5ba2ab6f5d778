"""What stands around every request over HTTP: who calls, whether it is let in, and its log line.

Web pages are kept out: a browser's requests are made for whoever wrote the page that it shows. On
loopback anybody on this machine may have batches labelled, and its browser is on this machine. A
page can send requests to 127.0.0.1, or let a name of its own point there; the header `Origin`, or
the name in `Host`, gives it away. No client of the protocol sends the one or uses another name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...coordinator.config import join_address
from ...coordinator.web.guard import is_here
from ..callers import CallCredentials
from ..recorder import CallRecord, Recorder

#: In a request's `state`: the common name of the caller's certificate.
CERTIFICATE = "certificate"


def shown_by(request: Request) -> CallCredentials:
    """What a request shows of its caller: a header, and the certificate of its connection."""
    certificate: str | None = getattr(request.state, CERTIFICATE, None)
    identities = {"x509_common_name": [certificate.encode()]} if certificate else {}
    metadata = [("authorization", request.headers.get("authorization", ""))]
    return CallCredentials(metadata, identities, "", client=request.client)


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
        if refused := refusal(Headers(scope=scope)):
            status, words = refused
            await JSONResponse({"error": words}, status)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return ask


#: In a request's `state`: the record of its call.
_ENTRY: Final = "entry"


def entry_of(request: Request) -> CallRecord:
    """The record of the call that a request is."""
    entry: CallRecord = getattr(request.state, _ENTRY)
    return entry


def recorded(app: ASGIApp, recorder: Recorder) -> ASGIApp:
    """An application of which the recorder is told each call."""

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        # Without the query, in which somebody may send what is not for a log.
        method = f"{scope['method']} {scope['path']}"
        with recorder.call("http", method, lambda: join_address(*scope["client"])) as entry:
            scope["state"][_ENTRY] = entry

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    entry.status = message["status"]
                else:
                    entry.sent_bytes = len(message.get("body", b""))
                await send(message)

            await app(scope, receive, told)

    return ask
