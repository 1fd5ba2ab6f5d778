"""Bodies of requests and of errors, as HTTP has them."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from google.protobuf.message import Message
from starlette.requests import Request

from ...errors import (
    BadAnswer,
    DeadlineExceeded,
    EdlError,
    Forbidden,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    UsageError,
    WireError,
    WrongInstance,
)
from ...proto.status import STATUS_HEADER, to_metadata, to_status
from ..front.calls import EVICTED, Call, CallTable, expire
from ..request import TooLarge
from .middleware import entry_of

#: Logged of a request whose caller has hung up, as nginx does.
CLIENT_GONE: Final = 499
#: Longer words help nobody.
_MAX_WORDS: Final = 1000


class NotThere(RequestRefused):
    """Nothing has this path."""


class WrongKind(RequestRefused):
    """The body is in a form that is not taken."""


_SENT: Final[dict[type[BaseException], int]] = {
    NotThere: 404,
    WrongKind: 415,
    RequestRefused: 400,
    WireError: 400,
    UsageError: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    WrongInstance: 412,
    TooLarge: 413,
    RateLimited: 429,
    RetryableError: 503,
    DeadlineExceeded: 504,
    TeacherLost: 503,
    BadAnswer: 500,
    Exception: 500,
}


def to_http(error: EdlError) -> tuple[int, dict[str, str], str]:
    """What a request is answered that ends by `error`: status, headers, words."""
    status = next(_SENT[kind] for kind in type(error).__mro__ if kind in _SENT)
    headers = {STATUS_HEADER: to_status(error)[0].name, **dict(to_metadata(error))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RateLimited) and status == 429:
        # In whole seconds: who comes back sooner finds no room.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 0)))
    words = str(error).encode("utf-8", "replace").decode()
    return status, headers, words if len(words) <= _MAX_WORDS else words[: _MAX_WORDS - 1] + "…"


def plain(message: Message) -> dict[str, Any]:
    """Every field of a message without maps; numbers are numbers, whatever their size.

    Optional numbers and texts that are not set are left out.
    """
    return {
        field.name: _value(getattr(message, field.name), field.is_repeated)
        for field in message.DESCRIPTOR.fields
        if not (field.message_type and field.message_type.GetOptions().map_entry)
        if field.message_type or not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any, repeated: bool) -> Any:
    if repeated:
        return [_value(one, False) for one in value]
    return plain(value) if isinstance(value, Message) else value


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
    entry, body = entry_of(request), bytearray()
    try:
        async with asyncio.timeout(0.0 if call.evicted else within_s) as limit:
            call.on_evicted = lambda: expire(limit)
            async for piece in request.stream():
                if len(body) + len(piece) > most_bytes:
                    raise _too_large("more", most_bytes)
                body += piece
                entry.received_bytes = len(body)
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
