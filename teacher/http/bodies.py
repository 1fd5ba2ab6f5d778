"""The body of a request: so large at most, and within so much time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from ...errors import RateLimited, RetryableError
from ..front.calls import EVICTED, Call, CallTable, expire
from ..request import TooLarge
from .statuses import WrongKind


async def read_body(
    request: Request, calls: CallTable, call: Call, *, most_bytes: int, within_s: float
) -> memoryview:
    """All of a body that comes through starlette, once its sender is known.

    Args:
        request: whose body.
        calls: holds the call, which owes its request until this ends well.
        call: of this request.
        most_bytes: that are taken.
        within_s: seconds from now.

    Raises:
        TooLarge: it is, or says that it is going to be.
        RetryableError: it did not come in time.
        RateLimited: there is no room for it, or the call had to make room for another one.
        WrongKind: it is compressed.
        starlette's ClientDisconnect: nobody waits for an answer any more.
    """
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise WrongKind(f"bodies are taken as they are, not with Content-Encoding {coding:.40}")
    length = request.headers.get("content-length", "")
    announced = int(length[:20]) if length.isdigit() else most_bytes
    if announced > most_bytes:
        raise _too_large(str(announced), most_bytes)
    calls.announced(call, announced)
    body = bytearray()
    try:
        async with asyncio.timeout(0.0 if call.evicted else within_s) as limit:
            call.on_evicted = lambda: expire(limit)
            async for piece in request.stream():
                if len(body) + len(piece) > most_bytes:
                    raise _too_large("more", most_bytes)
                body += piece
    except TimeoutError:
        if call.evicted:
            raise RateLimited(EVICTED) from None
        raise RetryableError(
            f"the request did not come within {within_s:g} s of its head"
        ) from None
    calls.received(call, len(body))
    return memoryview(body).toreadonly()


def _too_large(size: str, most_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than max ({size} vs. {most_bytes} bytes)")
