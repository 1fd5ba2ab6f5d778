"""Tells the access log of each HTTP request, refused ones included."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...coordinator.config import join_address
from .. import access_log

#: In a request's `state`: the entry of the access log.
ENTRY: Final = "entry"


class Logged:
    """Wraps an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Without the query, in which somebody may send what is not for a log.
        method = f"{scope['method']} {scope['path']}"
        with access_log.call("http", method, lambda: join_address(*scope["client"])) as entry:
            scope["state"][ENTRY] = entry
            if entry is not access_log.UNLOGGED:
                receive, send = _counted_in(receive, entry), _counted_out(send, entry)
            await self._app(scope, receive, send)


def _counted_in(receive: Receive, entry: access_log.Entry) -> Receive:
    async def counted() -> Message:
        message = await receive()
        entry.received(len(message.get("body", b"")))
        return message

    return counted


def _counted_out(send: Send, entry: access_log.Entry) -> Send:
    async def counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            entry.ended(message["status"])
        entry.sent(len(message.get("body", b"")))
        await send(message)

    return counted
