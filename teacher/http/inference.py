"""`POST .../infer`: a batch in JSON, in bytes behind it or in shared memory, and its labels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...proto.json_tensors import HEAD_LENGTH, decode_request, encode_response, is_binary, split
from ...proto.tensors import Heavy, InferRequest, InferResponse
from ..config import ServerConfig
from ..front.calls import CallTable
from ..request import TooLarge
from ..servicer import Servicer, in_thread
from ..shared_memory.regions import Reading
from .bodies import read_body
from .middleware import Callers, entry_of

#: JSON takes many times its size while it is read, and the interpreter's lock for as long.
_MAX_JSON_BYTES: Final = 16 << 20
#: Above this, one is read after another.
_SMALL_JSON_BYTES: Final = 64 << 10
#: Up to this, it is read, or made of an output, in the event loop.
_LITTLE_JSON_BYTES: Final = 4 << 10
#: Of an output, above which it is not made bytes in the event loop.
_LIGHT_BYTES: Final = 1 << 20


class Inference:
    """Answers batches; lives in one event loop.

    Args:
        config: the limits.
        servicer: what to answer.
        callers: who may ask.
        calls: the calls that have batches labelled, by whichever protocol they came.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: Servicer,
        callers: Callers,
        calls: CallTable,
    ) -> None:
        self._config = config
        self._servicer = servicer
        self._callers = callers
        self._calls = calls
        # Of its own, and one: small requests must not wait for large ones.
        self._json_reader = ThreadPoolExecutor(1, "json")

    async def endpoint(self, request: Request) -> Response:
        """The answer to a request, which is read once its caller is known."""
        visitor = self._callers.visitor(request, "student")
        call = self._calls.begin(visitor.owner)
        try:
            body = await read_body(
                request,
                self._calls,
                call,
                most_bytes=self._config.max_message_bytes,
                within_s=self._config.receive_s,
            )
            return await self._servicer.infer(
                self._decoding(request, body),
                _encode,
                visitor,
                deadline_s=None,
                entry=entry_of(request),
                nbytes=len(body),
            )
        finally:
            self._calls.end(call)

    def close(self) -> None:
        """Wait for nobody."""
        self._json_reader.shutdown(wait=False)

    def _decoding(
        self, request: Request, body: memoryview
    ) -> Callable[[Reading], Awaitable[InferRequest]]:
        """What gives the request that a body holds, or raises what is wrong with it.

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
            model_name=path["model"],
            model_version=path.get("version", ""),
        )
        threads = None if len(head) <= _SMALL_JSON_BYTES else self._json_reader

        async def decode(reading: Reading) -> InferRequest:
            if len(head) <= _LITTLE_JSON_BYTES:
                with contextlib.suppress(Heavy):
                    return work(reading.read_in_place, light=True)
            return await asyncio.get_running_loop().run_in_executor(threads, work, reading.read)

        return decode


async def _encode(
    request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[Response, int]:
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
