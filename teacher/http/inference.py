"""`POST .../infer`: a batch in JSON, in bytes behind it or in shared memory, and its labels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ...proto.json_tensors import HEAD_LENGTH, decode_request, encode_response, is_binary, split
from ...proto.tensors import Heavy, InferRequest, InferResponse
from ..access_log import Entry
from ..config import ServerConfig
from ..front.calls import CallTable
from ..in_thread import in_thread
from ..metrics import TeacherMetrics
from ..refusals import TooLarge
from ..servicer import Servicer
from ..shared_memory.reading import Reading
from ..shared_memory.visitors import Visitor
from .bodies import read_body
from .callers import Callers
from .logged import ENTRY

#: JSON takes many times its size while it is read, and the interpreter's lock for as long.
_MAX_JSON_BYTES: Final = 16 << 20
#: Above this, one is read after another.
_SMALL_JSON_BYTES: Final = 64 << 10
#: Up to this, it is read, or made of an output, in the event loop.
_LITTLE_JSON_BYTES: Final = 4 << 10
#: Of an output, above which it is not made bytes in the event loop.
_LIGHT_BYTES: Final = 1 << 20

#: Given the headers of an answer's body and its length, what is to stand before it.
Before = Callable[[Mapping[str, str], int], bytes]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for labels, all of which is here.

    Attributes:
        model: that the path names.
        version: empty where none is named.
        body: not to be changed while it is answered.
        head_length: the header `HEAD_LENGTH`; None: it is not there.
    """

    model: str
    version: str
    body: memoryview
    head_length: str | None


@dataclass(frozen=True, slots=True)
class Labels:
    """An answer.

    Attributes:
        headers: of its body.
        content: the body, behind what was to stand before it.
        nbytes: of the body.
    """

    headers: Mapping[str, str]
    content: bytes
    nbytes: int


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
        """A request that comes through starlette, read once its caller is known; its answer."""
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
            path = request.path_params
            version, head_length = path.get("version", ""), request.headers.get(HEAD_LENGTH)
            asked = Asked(path["model"], version, body, head_length)
            labels = await self.labels(asked, visitor, getattr(request.state, ENTRY))
        finally:
            self._calls.end(call)
        return Response(labels.content, headers=dict(labels.headers))

    async def labels(
        self, asked: Asked, visitor: Visitor, entry: Entry, before: Before = lambda _, __: b""
    ) -> Labels:
        """The answer to a request.

        Args:
            asked: the request.
            visitor: whose it is.
            entry: of the access log.
            before: what is to stand before its body, in one piece with it.

        Raises:
            EdlError: it has none.
        """
        with self._metrics.request(len(asked.body)) as meter:
            decode, encode = self._decoding(asked), partial(_encode, before)
            labels = await self._servicer.infer(decode, encode, visitor, entry=entry)
            meter.answered(labels.nbytes)
        return labels

    def close(self) -> None:
        """Wait for nobody."""
        self._json_reader.shutdown(wait=False)

    def _decoding(self, asked: Asked) -> Callable[[Reading], Awaitable[InferRequest]]:
        """What gives the request, or raises what is wrong with it.

        Raises:
            WireError: its head has no such length.
            TooLarge: its head is more JSON than is taken.
        """
        head, raw = split(asked.body, asked.head_length)
        if len(head) > _MAX_JSON_BYTES:
            raise TooLarge(
                f"the JSON of a request is larger than max ({len(head)} vs. {_MAX_JSON_BYTES} "
                "bytes): send tensors as bytes, by the binary extension or gRPC"
            )
        work = partial(
            decode_request, head, raw, model_name=asked.model, model_version=asked.version
        )
        threads = None if len(head) <= _SMALL_JSON_BYTES else self._json_reader

        async def decode(reading: Reading) -> InferRequest:
            if len(head) <= _LITTLE_JSON_BYTES:
                with contextlib.suppress(Heavy):
                    return work(reading.read_in_place, light=True)
            return await asyncio.get_running_loop().run_in_executor(threads, work, reading.read)

        return decode


async def _encode(
    before: Before, request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> Labels:
    if all(
        name in elsewhere or array.nbytes <= _light_bytes(request, name, array.dtype.hasobject)
        for name, array in response.outputs.items()
    ):
        return _labels(before, request, response, elsewhere)
    return await in_thread(_labels, before, request, response, elsewhere)


def _light_bytes(request: InferRequest, name: str, text: bool) -> int:
    return _LIGHT_BYTES if is_binary(request, name) and not text else _LITTLE_JSON_BYTES


def _labels(
    before: Before, request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> Labels:
    head, raws = encode_response(request, response, elsewhere)
    headers = {"content-type": "application/json"}
    if raws:
        headers = {"content-type": "application/octet-stream", HEAD_LENGTH: str(len(head))}
    nbytes = len(head) + sum(map(len, raws))
    return Labels(headers, b"".join((before(headers, nbytes), head, *raws)), nbytes)
