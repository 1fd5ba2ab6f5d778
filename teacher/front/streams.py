"""`ModelStreamInfer`: many requests over one call, answered in their order, each by itself.

A stream that waits for its next request owes one, as a unary call does that has sent nothing: where
there is no room it is ended first. While requests of it are answered, it is not. What is wrong with
one request is said in its answer's `error_message`, and the stream goes on. Of each stream two
requests are in work at a time, so that one travels while the model has the other; no more are read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from ...errors import EdlError, RateLimited, TeacherLost, WireError
from ...proto import inference_pb2 as pb
from ...proto.status import to_status
from ...proto.wire import bytes_field, take_out
from ..refusals import TooLarge
from ..shared_memory.visitors import Visitor
from .calls import Call, CallTable

_AT_ONCE: Final = 2
_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
_RAW_INPUTS: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER

_Context = grpc.aio.ServicerContext[Any, Any]
_Infer = Callable[[bytes], Awaitable[bytes]]


class Streams:
    """The streams of one server; lives in its event loop.

    Args:
        calls: where streams have their places, among other calls.
        refused: told of each request that is not answered.
    """

    def __init__(self, calls: CallTable, refused: Callable[[EdlError], None]) -> None:
        self._calls = calls
        self._refused = refused
        self._open: set[_Stream] = set()
        self._leaving = False

    async def serve(self, visitor: Visitor, context: _Context, infer: _Infer) -> None:
        """Answer what comes over one stream by `infer`, until its caller ends it.

        Raises:
            RateLimited: there is no room for it, or it had to make room.
            TeacherLost: this teacher takes leave.
        """
        call = self._calls.begin(visitor.owner)
        stream = _Stream(context, call, self._calls, infer, self._refused)
        self._open.add(stream)
        try:
            if not self._leaving:
                await stream.serve()
        finally:
            self._open.discard(stream)
            self._calls.end(call)
        if self._leaving:
            raise TeacherLost("this teacher takes leave: go on with another one")

    def leave(self) -> None:
        """Each stream ends once what it has sent is answered."""
        self._leaving = True
        for stream in self._open:
            stream.hang_up()


class _Stream:
    """One stream: a request that is being read, and those that are in work."""

    def __init__(
        self,
        context: _Context,
        call: Call,
        calls: CallTable,
        infer: _Infer,
        refused: Callable[[EdlError], None],
    ) -> None:
        self._context = context
        self._call = call
        self._calls = calls
        self._infer = infer
        self._refused = refused
        self._work: deque[asyncio.Task[bytes]] = deque()
        self._reading: asyncio.Future[Any] | None = None
        self._over = False
        call.on_evicted = self.hang_up

    def hang_up(self) -> None:
        """Read no more."""
        self._over = True
        if self._reading is not None:
            self._reading.cancel()

    async def serve(self) -> None:
        try:
            while not self._over or self._work:
                await self._step()
        except asyncio.CancelledError:
            if not self._context.peer():
                # gRPC itself has refused a message above the limit, and has forgotten the peer; one
                # that hung up it still knows.
                self._refused(TooLarge("a request of a stream is larger than max"))
            raise
        finally:
            for left in (self._reading, *self._work):
                if left is not None:
                    left.cancel()
        if self._call.evicted:
            raise RateLimited("a stream that sent nothing was ended for another call")

    async def _step(self) -> None:
        """Wait for a request or for an answer, and go on with it."""
        if self._reading is None and not self._over and len(self._work) < _AT_ONCE:
            self._reading = asyncio.ensure_future(self._context.read())
        waits = [one for one in (self._reading, *list(self._work)[:1]) if one is not None]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._work and self._work[0].done():
            await self._context.write(self._work.popleft().result())
            if not self._work:
                self._calls.owes(self._call)
        elif self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            data = None if reading.cancelled() else reading.result()
            if not isinstance(data, bytes):
                self._over = True
                if data is not None and not self._context.peer():
                    raise asyncio.CancelledError
                return
            self._calls.received(self._call)
            self._work.append(asyncio.create_task(self._answer(data)))

    async def _answer(self, data: bytes) -> bytes:
        """The answer of one request, serialised; or what is wrong with it."""
        try:
            answer = await self._infer(data)
        except EdlError as error:
            self._refused(error)
            _, words = to_status(error)
            about = pb.ModelInferResponse(id=_id_of(data))
            failed = pb.ModelStreamInferResponse(error_message=words, infer_response=about)
            return failed.SerializeToString()
        return b"".join((bytes_field(_RESPONSE, len(answer)), answer))


def _id_of(data: bytes) -> str:
    """The id of a request that may be malformed in any way."""
    try:
        return pb.ModelInferRequest.FromString(take_out(data, _RAW_INPUTS)[0]).id
    except (WireError, DecodeError):
        return ""
