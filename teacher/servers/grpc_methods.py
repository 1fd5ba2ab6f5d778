"""`ModelStreamInfer`: many requests over one call, answered in their order, each by itself.

A stream that waits for its next request owes one, as a unary call does that has sent nothing: where
there is no room it is ended first. While requests of it are answered, it is not. What is wrong with
one request is said in its answer's `error_message`, and the stream goes on. Of each stream two
requests are in work at a time, so that one travels while the model has the other; no more are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...errors import EdlError, TeacherLost, WireError
from ...proto import inference_pb2 as pb
from ...proto.protobuf_fields import bytes_field, split_bytes_field
from ...proto.status import to_metadata, to_status
from ..config import ServerConfig
from ..recorder import CallRecord
from ..request import RequestTooLarge
from .admission import AccessLevel, AdmittedCall, CallTable
from .callers import CallCredentials, CallerIdentity
from .servicer import ServerContext, ServicerMethod
from .transport_listener import TransportListener

#: Requests of one stream in work.
AT_ONCE: Final = 2
_RAW_INPUTS: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_Context = grpc.aio.ServicerContext[Any, Any]
#: Gives the serialised `ModelInferResponse` of a serialised request; raises errors of `errors`.
Infer = Callable[[bytes], Awaitable[bytes]]


class InferStreams:
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
        self._open: set[_InferStream] = set()
        self._leaving = False

    async def serve(self, caller: CallerIdentity, context: _Context, infer: Infer) -> None:
        """Answer what comes over one stream by `infer`, until its caller ends it.

        Raises:
            RateLimited: there is no room for it, or it had to make room.
            TeacherLost: this teacher takes leave.
        """
        with self._calls.begin(caller.owner, is_stream=True) as call:
            stream = _InferStream(context, call, infer, self._refused)
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


class _InferStream:
    """One stream, and the workers of it: each reads a request, has it answered, and writes that."""

    def __init__(
        self,
        context: _Context,
        call: AdmittedCall,
        infer: Infer,
        refused: Callable[[EdlError], None],
    ) -> None:
        self._context = context
        self._call = call
        self._infer = infer
        self._refused = refused
        self._to_read, self._to_write = asyncio.Lock(), asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._last = _done_future()  # done once the latest request that was read is answered
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
            self._refused(RequestTooLarge("a request of a stream is larger than max"))
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
        request_id = pb.ModelInferRequest.FromString(split_bytes_field(data, _RAW_INPUTS)[0]).id
    except (WireError, DecodeError):  # it may be malformed in any way
        request_id = ""
    code, details = to_status(error)
    return pb.ModelStreamInferResponse(
        error_message=details or code.name, infer_response=pb.ModelInferResponse(id=request_id)
    ).SerializeToString()


def _done_future() -> asyncio.Future[None]:
    """As behind an answer that is written."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written.set_result(None)
    return written


SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
STREAM: Final = "ModelStreamInfer"
#: From the end of a broken call's messages to its being cancelled.
_HANG_UP_S: Final = 0.1
#: Of a request that holds names only.
_NAMES_BYTES: Final = 64 << 10

_Metadata = tuple[tuple[str, str], ...]
#: Given the request, whose it is, when its caller has lost interest, and the record of its call.
_Answer = Callable[[bytes, CallerIdentity, float | None, CallRecord], Awaitable[bytes]]
#: Serves a call to its end: its answer, unless it has written that.
_Serve = Callable[[_Context, CallRecord], Awaitable[bytes]]
_Handler = Callable[[object, _Context], Awaitable[bytes]]
_M = TypeVar("_M", bound=Message)


class GrpcMethods:
    """The methods of the Open Inference Protocol as gRPC calls them; lives in one event loop.

    Attributes:
        streams: those of `ModelStreamInfer`.
        transport: for batches of our own readers.

    Args:
        given: what it works with.
    """

    def __init__(self, given: ServerContext) -> None:
        config, self._servicer, self._admission, self._recorder = given
        self._receive_s = config.receive_s
        self._max_message_bytes = config.max_message_bytes
        self.streams = InferStreams(self._admission.infer_calls, config, self._recorder.refused)
        self.transport = TransportListener(given)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """By name; without (de)serializers, as malformed bytes are ours to refuse."""
        methods = {
            name: self._simple_method(method) for name, method in self._servicer.methods.items()
        }
        methods |= {
            "ServerMetadata": self._with_trailing_metadata(self._proof, methods["ServerMetadata"]),
            "ModelMetadata": self._with_trailing_metadata(self._offer, methods["ModelMetadata"]),
            "ModelInfer": self._read(
                "student", self._admission.infer_calls, self._servicer.model_infer
            ),
        }
        unary = {
            name: grpc.stream_unary_rpc_method_handler(self._grpc_handler(name, serve))
            for name, serve in methods.items()
        }
        stream = grpc.stream_stream_rpc_method_handler(self._grpc_handler(STREAM, self._stream))
        return {**unary, STREAM: stream}

    def count_unknown(self) -> None:
        """Somebody has called a method that is not here."""
        self._recorder.refused(WireError())

    async def _stream(self, context: _Context, _: CallRecord) -> Any:
        credentials, deadline_s = CallCredentials.from_context(context), _deadline_s(context)

        async def infer(data: bytes) -> bytes:
            with self._recorder.call(
                "grpc", STREAM, lambda: credentials.caller_identity().address
            ) as entry:
                caller = self._admission.admit(
                    credentials, "student"
                )  # it may have been locked out meanwhile
                return await self._servicer.model_infer(data, caller, deadline_s, entry)

        await self.streams.serve(self._admission.admit(credentials, "student"), context, infer)

    def _proof(self, context: _Context) -> _Metadata:
        """For who wants this instance proved."""
        asked = {name: str(value) for name, value in context.invocation_metadata() or ()}
        return self._servicer.proof(asked)

    def _offer(self, context: _Context) -> _Metadata:
        return self.transport.offer(CallCredentials.from_context(context))

    def _simple_method(self, method: ServicerMethod) -> _Serve:
        """A method that is answered at once, in the event loop."""
        fields = method.request.DESCRIPTOR.fields_by_name

        async def unread(context: _Context, _: CallRecord) -> bytes:
            caller = self._admission.admit(CallCredentials.from_context(context), method.right)
            return method.answer(method.request(), caller).SerializeToString()

        async def parsed(
            data: bytes, caller: CallerIdentity, _: float | None, entry: CallRecord
        ) -> bytes:
            request: Any = _parse(data, method.request)
            if "version" in fields:  # else its name is that of something else
                entry.model = request.name or None
            return method.answer(request, caller).SerializeToString()

        return self._read(method.right, self._admission.named_calls, parsed) if fields else unread

    def _with_trailing_metadata(
        self, metadata: Callable[[_Context], _Metadata], answer: _Serve
    ) -> _Serve:
        """A method whose answer has metadata with it."""

        async def serve(context: _Context, entry: CallRecord) -> bytes:
            answered = await answer(context, entry)
            context.set_trailing_metadata(metadata(context))
            return answered

        return serve

    def _read(self, right: AccessLevel, calls: CallTable, answer: _Answer) -> _Serve:
        """A method whose request is read once its caller is known."""

        async def serve(context: _Context, entry: CallRecord) -> bytes:
            caller = self._admission.admit(CallCredentials.from_context(context), right)
            with calls.begin(caller.owner) as call:
                data = await self._request(context, call, entry)
                call.received(len(data))
                entry.received_bytes = len(data)
                return await answer(data, caller, _deadline_s(context), entry)

        return serve

    def _grpc_handler(self, name: str, serve: _Serve) -> _Handler:
        """The method `name` as gRPC calls it: our errors end the call; all are logged."""

        async def called(_: object, context: _Context) -> bytes:
            def address() -> str:
                return CallCredentials.from_context(context).caller_identity().address

            try:
                with self._recorder.call("grpc", name, address) as entry:
                    answer = await serve(context, entry)
                    entry.sent_bytes = len(answer or b"")
                    return answer
            except EdlError as error:
                self._recorder.refused(error)
                status, beside = to_status(error), to_metadata(error)
            return await context.abort(*status, beside)

        return called

    async def _request(self, context: _Context, call: AdmittedCall, entry: CallRecord) -> bytes:
        """The bytes of the request, within the time that there is for them."""
        async with call.receiving(self._receive_s):
            await call.expect(self._max_message_bytes)
            data = await context.read()
        if isinstance(data, bytes):
            return data
        if not context.peer():
            # gRPC itself has refused a message above the limit, and has forgotten the peer; one
            # that hung up it still knows.
            self._recorder.refused(RequestTooLarge())
            entry.status = grpc.StatusCode.RESOURCE_EXHAUSTED.name
            raise asyncio.CancelledError
        # Whoever has hung up is not to blame: this call is cancelled a moment later.
        await asyncio.sleep(_HANG_UP_S)
        raise WireError("the call ended without a request")


def _deadline_s(context: _Context) -> float | None:
    """When nobody waits for the answer any more, on the monotonic clock; None: never."""
    left_s = context.time_remaining()
    return None if left_s is None else time.monotonic() + left_s


def _parse(data: bytes, kind: type[_M]) -> _M:
    if len(data) > _NAMES_BYTES:
        # gRPC's own words: by them a client knows that it need not try again.
        raise RequestTooLarge(
            f"a {kind.DESCRIPTOR.name} is larger than max ({len(data)} vs. {_NAMES_BYTES})"
        )
    try:
        return kind.FromString(data)
    except DecodeError:  # ours to refuse: gRPC would call it an error of its own
        raise WireError(f"these bytes are no {kind.DESCRIPTOR.name}") from None
