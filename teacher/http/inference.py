"""`POST .../infer`: a batch in JSON, in bytes behind it or in shared memory, and its labels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...proto.json_tensors import decode_request, encode_response
from ...proto.tensors import InferRequest, Read
from ..config import ServerConfig
from ..front.calls import CallTable
from ..metrics import TeacherMetrics
from ..refusals import TooLarge
from ..servicer import Servicer
from ..shared_memory.visitors import Visitor
from .bodies import HEAD_LENGTH, read_body, split
from .callers import Callers

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
        threads: where the model is waited for.
        calls: the calls that have batches labelled, by whichever protocol they came.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: Servicer,
        callers: Callers,
        metrics: TeacherMetrics,
        threads: ThreadPoolExecutor,
        calls: CallTable,
    ) -> None:
        self._config = config
        self._servicer = servicer
        self._callers = callers
        self._metrics = metrics
        self._threads = threads
        self._calls = calls
        self._large_json = threading.Lock()

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
                work = partial(
                    self._answer,
                    body,
                    request.headers.get(HEAD_LENGTH),
                    request.path_params,
                    visitor,
                )
                loop = asyncio.get_running_loop()
                answer, head_length = await loop.run_in_executor(self._threads, work)
                meter.answered(len(answer))
        finally:
            self._calls.end(call)
        if head_length is None:
            return Response(answer, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(head_length)}
        return Response(answer, headers=headers, media_type="application/octet-stream")

    def _answer(
        self, body: memoryview, head_length: str | None, path: dict[str, str], visitor: Visitor
    ) -> tuple[bytes, int | None]:
        def decode(read: Read) -> InferRequest:
            head, raw = split(body, head_length)
            if len(head) > _MAX_JSON_BYTES:
                raise TooLarge(
                    f"the JSON of a request is larger than max ({len(head)} vs. {_MAX_JSON_BYTES} "
                    "bytes): send tensors as bytes, by the binary extension or gRPC"
                )
            many = len(head) > _SMALL_JSON_BYTES
            with self._large_json if many else contextlib.nullcontext():
                return decode_request(
                    head,
                    raw,
                    read,
                    model_name=path["model"],
                    model_version=path.get("version", ""),
                )

        return self._servicer.infer(decode, encode_response, visitor)
