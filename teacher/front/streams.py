"""`ModelStreamInfer`: many requests over one call, answered in their order, each by itself.

A stream that waits for its next request owes one, as a unary call does that has sent nothing: where
there is no room it is ended first. While requests of it are answered, it is not. What is wrong with
one request is said in its answer's `error_message`, and the stream goes on. Of each stream two
requests are in work at a time, so that one travels while the model has the other; no more are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from ...errors import EdlError, TeacherLost, WireError
from ...proto import inference_pb2 as pb
from ...proto.status import to_status
from ...proto.wire import bytes_field, take_out
from ..callers import CallerIdentity
from ..calls import Call, CallTable
from ..config import ServerConfig
from ..request import TooLarge

#: Requests of one stream in work.
AT_ONCE: Final = 2
_RAW_INPUTS: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_Context = grpc.aio.ServicerContext[Any, Any]
#: Gives the serialised `ModelInferResponse` of a serialised request; raises errors of `errors`.
Infer = Callable[[bytes], Awaitable[bytes]]


class Streams:
    """The streams of one server; lives in its event loop.

    Args:
        calls: where streams have their places, among other calls.
        config: the limits.
        refused: told of each request that is not answered.
    """

    def __init__(
        self, calls: CallTable, config: ServerConfig, refused: Callable[[EdlError], None]
    ) -> None:
        self._calls = calls
        self._max_message_bytes, self._receive_s = config.max_message_bytes, config.receive_s
        self._refused = refused
        self._open: set[_Stream] = set()
        self._leaving = False

    async def serve(self, caller: CallerIdentity, context: _Context, infer: Infer) -> None:
        """Answer what comes over one stream by `infer`, until its caller ends it.

        Raises:
            RateLimited: there is no room for it, or it had to make room.
            TeacherLost: this teacher takes leave.
        """
        with self._calls.begin(caller.owner, is_stream=True) as call:
            stream = _Stream(context, call, infer, self._refused)
            self._open.add(stream)
            try:
                if not self._leaving:
                    async with call.receiving(self._receive_s):
                        await call.expect(self._max_message_bytes)  # of one request, while open
                    await stream.serve()
            finally:
                self._open.discard(stream)
        if self._leaving:
            raise TeacherLost("this teacher takes leave: go on with another one")

    def leave(self) -> None:
        """Each stream ends once what has been read of it is answered."""
        self._leaving = True
        for stream in self._open:
            stream.hang_up()


class _Stream:
    """One stream, and the workers of it: each reads a request, has it answered, and writes that."""

    def __init__(
        self,
        context: _Context,
        call: Call,
        infer: Infer,
        refused: Callable[[EdlError], None],
    ) -> None:
        self._context = context
        self._call = call
        self._infer = infer
        self._refused = refused
        self._to_read, self._to_write = asyncio.Lock(), asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._last = _written()  # done once the latest request that was read is answered
        self._in_work = 0
        self._over = False
        call.on_evicted = self.hang_up

    def hang_up(self) -> None:
        """Read no more."""
        self._over = True
        if self._reader is not None:
            self._reader.cancel()

    async def serve(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            # What a worker raised knows this frame: emptied, so that nothing here knows itself, and
            # no request waits for the garbage collector.
            while workers:
                workers.pop().cancel()
        self._call.check()

    async def _work(self) -> None:
        while True:
            async with self._to_read:
                data = await self._read()
                if data is None:
                    return
                before, self._last = self._last, asyncio.get_running_loop().create_future()
                mine = self._last
            said = await self._answer(data)
            del data  # it is large
            await before
            async with self._to_write:
                await self._context.write(said)
            del said  # not to be held until the next one
            mine.set_result(None)
            self._in_work -= 1
            if not self._in_work:
                self._call.owes()

    async def _read(self) -> bytes | None:
        """The next request; None: there will be none."""
        if self._over:
            return None
        self._reader = asyncio.current_task()
        try:
            data = await self._context.read()
        except asyncio.CancelledError:
            if not self._over:
                raise
            return None
        finally:
            self._reader = None
        if isinstance(data, bytes):
            self._call.received()
            self._in_work += 1
            return data
        self._over = True
        if data is not None and not self._context.peer():
            # gRPC itself has refused a message above the limit, and has forgotten the peer; one
            # that hung up it still knows.
            self._refused(TooLarge("a request of a stream is larger than max"))
            raise asyncio.CancelledError
        return None

    async def _answer(self, data: bytes) -> bytes:
        """A serialised `ModelStreamInferResponse`: a request fails alone."""
        try:
            response = await self._infer(data)
        except EdlError as error:
            self._refused(error)
            return _failed(error, data)
        return bytes_field(_RESPONSE, len(response)) + response


def _failed(error: EdlError, data: bytes) -> bytes:
    try:
        request_id = pb.ModelInferRequest.FromString(take_out(data, _RAW_INPUTS)[0]).id
    except (WireError, DecodeError):  # it may be malformed in any way
        request_id = ""
    code, details = to_status(error)
    return pb.ModelStreamInferResponse(
        error_message=details or code.name, infer_response=pb.ModelInferResponse(id=request_id)
    ).SerializeToString()


def _written() -> asyncio.Future[None]:
    """As behind an answer that is written."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written.set_result(None)
    return written
