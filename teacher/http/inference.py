"""`POST .../infer`: a batch in JSON, in bytes behind it or in shared memory, and its labels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...proto.json_tensors import HEAD_LENGTH, decode_request, encode_response, split
from ...proto.tensors import InferRequest, InferResponse
from ..config import ServerConfig
from ..front.calls import CallTable
from ..in_thread import in_thread
from ..metrics import TeacherMetrics
from ..refusals import TooLarge
from ..servicer import Servicer
from ..shared_memory.reading import Reading
from .bodies import read_body
from .callers import Callers
from .logged import ENTRY

#: JSON takes many times its size while it is read, and the interpreter's lock for as long.
_MAX_JSON_BYTES: Final = 16 << 20
#: Above this, one is read after another.
_SMALL_JSON_BYTES: Final = 64 << 10


class Inference:
    """Answers batches; lives in one event loop.

    Args:
        config: the limits.
        servicer: what to answer.
        callers: who may ask.
        metrics: told of every request.
        calls: the calls that have batches labelled, by whichever protocol they came.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: Servicer,
        callers: Callers,
        metrics: TeacherMetrics,
        calls: CallTable,
    ) -> None:
        self._config = config
        self._servicer = servicer
        self._callers = callers
        self._metrics = metrics
        self._calls = calls
        # Of its own, and one: small requests must not wait for large ones.
        self._json_reader = ThreadPoolExecutor(1, "json")

    async def endpoint(self, request: Request) -> Response:
        """The request, read once its caller is known, and its answer."""
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
            with self._metrics.request(len(body)) as meter:
                decode = self._decoding(request, body)
                entry = getattr(request.state, ENTRY)
                answer, head_length = await self._servicer.infer(
                    decode, _encode, visitor, entry=entry
                )
                meter.answered(len(answer))
        finally:
            self._calls.end(call)
        if head_length is None:
            return Response(answer, media_type="application/json")
        headers = {HEAD_LENGTH: str(head_length)}
        return Response(answer, headers=headers, media_type="application/octet-stream")

    def close(self) -> None:
        """Wait for nobody."""
        self._json_reader.shutdown(wait=False)

    def _decoding(
        self, request: Request, body: memoryview
    ) -> Callable[[Reading], Awaitable[InferRequest]]:
        """What gives the request that `body` holds, or raises what is wrong with it.

        Raises:
            WireError: its head has no such length.
            TooLarge: its head is more JSON than is taken.
        """
        head, raw = split(body, request.headers.get(HEAD_LENGTH))
        if len(head) > _MAX_JSON_BYTES:
            raise TooLarge(
                f"the JSON of a request is larger than max ({len(head)} vs. {_MAX_JSON_BYTES} "
                "bytes): send tensors as bytes, by the binary extension or gRPC"
            )
        path = request.path_params
        work = partial(
            decode_request,
            head,
            raw,
            model_name=path["model"],
            model_version=path.get("version", ""),
        )
        threads = None if len(head) <= _SMALL_JSON_BYTES else self._json_reader

        async def decode(reading: Reading) -> InferRequest:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads, work, reading.read)

        return decode


async def _encode(
    request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[bytes, int | None]:
    return await in_thread(encode_response, request, response, elsewhere)
