"""Bodies of requests, of answers and of errors, as HTTP has them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from ...errors import EdlError, RateLimited, RequestRefused
from ...proto.json_tensors import HEAD_LENGTH, decode_request, encode_response, is_binary, split
from ...proto.status import HTTP, STATUS_HEADER, to_metadata, to_status
from ...proto.tensors import Heavy, InferRequest, InferResponse
from ..calls import Call
from ..request import TooLarge
from ..servicer import in_thread
from ..shared_memory.regions import RegionReader
from .middleware import entry_of

#: Logged of a request whose caller has hung up, as nginx does.
CLIENT_GONE: Final = 499
#: JSON takes many times its size while it is read, and the interpreter's lock for as long.
_MAX_JSON_BYTES: Final = 16 << 20
#: Above this, one is read after another.
_SMALL_JSON_BYTES: Final = 64 << 10
#: Up to this, it is read, or made of an output, in the event loop.
_LITTLE_JSON_BYTES: Final = 4 << 10
#: Of an output, above which it is not made bytes in the event loop.
_LIGHT_BYTES: Final = 1 << 20


class NotThere(RequestRefused):
    """Nothing has this path."""


class WrongKind(RequestRefused):
    """The body is in a form that is not taken."""


#: Statuses that no code of gRPC stands for.
_OWN: Final = {NotThere: 404, WrongKind: 415, TooLarge: 413}


def to_http(error: EdlError) -> tuple[int, dict[str, str], str]:
    """What a request is answered that ends by `error`: status, headers, words."""
    code, words = to_status(error)
    status = _OWN.get(type(error), HTTP.get(code, 500))
    headers = {STATUS_HEADER: code.name, **dict(to_metadata(error))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RateLimited) and status == 429:
        # In whole seconds: who comes back sooner finds no room.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 0)))
    return status, headers, words


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


async def read_body(request: Request, call: Call, most_bytes: int, within_s: float) -> memoryview:
    """All of a body that comes through starlette, once its sender is known.

    Args:
        request: whose body.
        call: of this request, which it owes until this ends well.
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
    call.announced(announced)
    entry, body = entry_of(request), bytearray()
    async with call.receiving(within_s):
        async for piece in request.stream():
            if len(body) + len(piece) > most_bytes:
                raise _too_large("more", most_bytes)
            body += piece
            entry.received_bytes = len(body)
    call.received(len(body))
    return memoryview(body).toreadonly()


def _too_large(size: str, most_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than max ({size} vs. {most_bytes} bytes)")


def decoder(
    request: Request, body: memoryview, json_reader: Executor
) -> Callable[[RegionReader], Awaitable[InferRequest]]:
    """What gives the request for labels that a body holds, or raises what is wrong with it.

    Args:
        request: whose body it is.
        body: JSON, and perhaps bytes of tensors behind it.
        json_reader: where much JSON is read.

    Raises:
        WireError: its head has no such length.
        TooLarge: its head is more JSON than is taken.
    """
    path = request.path_params
    head, raw = split(body, request.headers.get(HEAD_LENGTH))
    if len(head) > _MAX_JSON_BYTES:
        raise TooLarge(
            f"the JSON of a request is larger than max ({len(head)} vs. {_MAX_JSON_BYTES} "
            "bytes): send tensors as bytes, by the binary extension or gRPC"
        )
    work = partial(
        decode_request,
        head,
        raw,
        model_name=path["name"],
        model_version=path.get("version", ""),
    )
    threads = None if len(head) <= _SMALL_JSON_BYTES else json_reader

    async def decode(reading: RegionReader) -> InferRequest:
        if len(head) <= _LITTLE_JSON_BYTES:
            with contextlib.suppress(Heavy):
                return work(reading.read_in_place, light=True)
        return await asyncio.get_running_loop().run_in_executor(threads, work, reading.read)

    return decode


async def encode(
    request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[Response, int]:
    """The answer to a request for labels, and its bytes.

    Args:
        request: what was asked.
        response: the labels.
        elsewhere: outputs that lie in shared memory.
    """
    if all(
        name in elsewhere or array.nbytes <= _light_bytes(request, name, array.dtype.hasobject)
        for name, array in response.outputs.items()
    ):
        return _encoded(request, response, elsewhere)
    return await in_thread(_encoded, request, response, elsewhere)


def _light_bytes(request: InferRequest, name: str, text: bool) -> int:
    return _LIGHT_BYTES if is_binary(request, name) and not text else _LITTLE_JSON_BYTES


def _encoded(
    request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[Response, int]:
    head, raws = encode_response(request, response, elsewhere)
    if not raws:
        return Response(head, media_type="application/json"), len(head)
    headers = {"content-type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
    body = b"".join((head, *raws))
    return Response(body, headers=headers), len(body)
