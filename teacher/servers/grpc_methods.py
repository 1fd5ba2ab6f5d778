"""The methods of the Open Inference Protocol over gRPC, unary and streaming.

Unary methods are served as streams of one request. The bytes on the wire are the same, but the
caller can be checked before its request is read, and the request has a timeout. If a method's
request type has no fields, the request is never read. Of an unread request, gRPC receives only the
first 4 MiB (`server._WINDOW_BYTES`); the rest stays in its sender's memory. A request that is read
costs the teacher's memory, which has a limit.

`ModelStreamInfer` carries many requests over one call, answered in order. A stream that waits for
its next request can be evicted, like a unary call without a request; a stream with requests in work
cannot. An error of one request goes into the `error_message` of its answer, and the stream
continues. Up to two requests of a stream are in work, so that one can travel while the model runs
the other. A stream keeps memory reserved for its requests in work, and for a next request of the
largest size. If memory for this next request is lacking, the stream reads it only after a request
in work is answered, which frees memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...proto import inference_pb2 as pb
from ...proto.protobuf_fields import bytes_field_header, split_bytes_field
from ...proto.status import to_metadata, to_status
from ...runtime.errors import EdlError, RateLimited, TeacherLost, WireError
from ..recorder import CallRecord
from ..request import RequestTooLarge
from .admission import EVICTED, AccessLevel, AdmittedCall, CallTable
from .callers import CallCredentials, CallerIdentity
from .servicer import MAX_SMALL_REQUEST_BYTES, ServerContext, ServicerMethod
from .transport_listener import TransportListener

#: Requests of one stream in work at a time.
REQUESTS_PER_STREAM: Final = 2
_RAW_INPUTS: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_Context = grpc.aio.ServicerContext[Any, Any]
#: Answers a serialised `ModelInferRequest` with a serialised response; raises EdlErrors.
Infer = Callable[[bytes], Awaitable[bytes]]


class _InferStream:
    """One stream with its workers; each reads a request, has it answered, and writes the answer."""

    def __init__(
        self,
        context: _Context,
        call: AdmittedCall,
        infer: Infer,
        max_message_bytes: int,
        on_refused: Callable[[EdlError], None],
    ) -> None:
        self._context = context
        self._call = call
        self._infer = infer
        self._max_message_bytes = max_message_bytes
        self._on_refused = on_refused
        self._read_lock = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None  # the worker that waits for a request
        #: Done when the latest request is answered.
        self._last_answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_answered.set_result(None)
        self._in_work = 0  # requests that are read and not answered
        self._ended = False
        call.on_evicted = self.stop_reading

    def stop_reading(self) -> None:
        """Read no more requests."""
        self._ended = True
        if self._reader is not None:
            self._reader.cancel()

    async def serve(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(REQUESTS_PER_STREAM)]
        try:
            await asyncio.gather(*workers)
        finally:
            # A worker's exception refers to this frame: emptying the list breaks the cycle,
            # so that requests are freed without the garbage collector.
            while workers:
                workers.pop().cancel()
        if self._call.evicted:
            raise RateLimited(EVICTED)

    async def _work(self) -> None:
        while True:
            async with self._read_lock:
                data = await self._read()
                if data is None:
                    return
                previous_answered = self._last_answered
                answered = self._last_answered = asyncio.get_running_loop().create_future()
            nbytes = len(data)
            answer = await self._answer(data)
            del data  # free the memory early
            self._call.answer_ready(nbytes, len(answer))
            nbytes = len(answer)
            await previous_answered  # so that only one worker writes, and in order
            await self._context.write(answer)
            del answer  # free it before the next answer
            answered.set_result(None)
            self._in_work -= 1
            self._call.bytes_in_work -= nbytes
            self._call.keep_reserved(self._max_message_bytes)
            if not self._in_work:
                self._call.mark_idle()

    async def _read(self) -> bytes | None:
        """Return the next request; None if there are no more."""
        if self._ended:
            return None
        self._reader = asyncio.current_task()
        try:
            await self._call.wait_and_reserve(self._max_message_bytes)
            data = await self._context.read()
        except asyncio.CancelledError:
            if not self._ended:
                raise
            return None
        finally:
            self._reader = None
        if isinstance(data, bytes):
            self._call.request_received()
            self._in_work += 1
            self._call.bytes_in_work += len(data)
            return data
        self._ended = True
        if data is not None and not self._context.peer():
            # gRPC refused a message above the limit, and cleared the peer to say so.
            self._on_refused(RequestTooLarge("a request of a stream is larger than max"))
            raise asyncio.CancelledError
        return None

    async def _answer(self, data: bytes) -> bytes:
        """Return a serialised `ModelStreamInferResponse`; it holds the request's error, if any."""
        try:
            response = await self._infer(data)
        except EdlError as error:
            self._on_refused(error)
            return _error_response(error, data)
        return bytes_field_header(_RESPONSE, len(response)) + response


def _error_response(error: EdlError, data: bytes) -> bytes:
    try:
        request_id = pb.ModelInferRequest.FromString(split_bytes_field(data, _RAW_INPUTS)[0]).id
    except (WireError, DecodeError):  # the request may be malformed in any way
        request_id = ""
    code, details = to_status(error)
    return pb.ModelStreamInferResponse(
        error_message=details or code.name, infer_response=pb.ModelInferResponse(id=request_id)
    ).SerializeToString()


SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
STREAM: Final = "ModelStreamInfer"
#: Seconds to wait for gRPC to cancel a call that ended without a request.
_HANG_UP_S: Final = 0.1

_Metadata = tuple[tuple[str, str], ...]
#: Answers a request, given its caller, its deadline and the record of its call.
_Answer = Callable[[bytes, CallerIdentity, float | None, CallRecord], Awaitable[bytes]]
#: Serves a call; returns its answer. A stream writes its answers itself and returns None.
_Serve = Callable[[_Context, CallRecord], Awaitable[bytes]]
_Handler = Callable[[object, _Context], Awaitable[bytes]]
_M = TypeVar("_M", bound=Message)


class GrpcMethods:
    """The handlers of all methods. Used only in one event loop.

    Args:
        context: shared objects of the server.

    Attributes:
        transport: listener for batches of our own readers.
    """

    def __init__(self, context: ServerContext) -> None:
        config, self._servicer, self._admission, self._recorder = context
        self._receive_s = config.receive_s
        self._max_message_bytes = config.max_message_bytes
        self._streams: set[_InferStream] = set()
        self._leaving = False
        self.transport = TransportListener(context)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return handlers by method. They parse bytes themselves, to refuse malformed messages."""
        methods = {
            name: self._simple_method(method) for name, method in self._servicer.methods.items()
        }
        methods |= {
            "ServerMetadata": self._with_trailing_metadata(self._proof, methods["ServerMetadata"]),
            "ModelMetadata": self._with_trailing_metadata(self._offer, methods["ModelMetadata"]),
            "ModelInfer": self._with_request(
                "student", self._admission.infer_calls, self._servicer.model_infer
            ),
        }
        unary = {
            name: grpc.stream_unary_rpc_method_handler(self._grpc_handler(name, serve))
            for name, serve in methods.items()
        }
        stream = grpc.stream_stream_rpc_method_handler(self._grpc_handler(STREAM, self._stream))
        return {**unary, STREAM: stream}

    def leave(self) -> None:
        """End each stream after the requests that have been read are answered."""
        self._leaving = True
        for stream in self._streams:
            stream.stop_reading()

    async def _stream(self, context: _Context, _: CallRecord) -> Any:
        """Answer the requests of one stream until the caller ends it, or this teacher leaves."""
        credentials, deadline_s = CallCredentials.from_context(context), _deadline_s(context)

        async def infer(data: bytes) -> bytes:
            with self._recorder.call("grpc", STREAM, credentials.address) as entry:
                # Again for each request: the credentials may have been withdrawn.
                caller = self._admission.admit(credentials, "student")
                return await self._servicer.model_infer(data, caller, deadline_s, entry)

        caller = self._admission.admit(credentials, "student")
        with self._admission.infer_calls.begin(caller.owner, is_stream=True) as call:
            stream = _InferStream(
                context, call, infer, self._max_message_bytes, self._recorder.refused
            )
            self._streams.add(stream)
            try:
                if not self._leaving:
                    async with call.request_timeout(self._receive_s):
                        await call.wait_and_reserve(self._max_message_bytes)
                    await stream.serve()
            finally:
                self._streams.discard(stream)
        if self._leaving:
            raise TeacherLost("this teacher is draining: send the next request to another one")

    def _proof(self, context: _Context) -> _Metadata:
        """Answer the caller's challenge, if any: trailing metadata that proves this instance."""
        metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        return self._servicer.identity.proof(metadata)

    def _offer(self, context: _Context) -> _Metadata:
        return self.transport.offer(CallCredentials.from_context(context))

    def _simple_method(self, method: ServicerMethod) -> _Serve:
        """Return a method that is answered in the event loop, without waiting."""
        fields = method.request.DESCRIPTOR.fields_by_name

        async def answer_unread(context: _Context, _: CallRecord) -> bytes:
            caller = self._admission.admit(CallCredentials.from_context(context), method.access)
            return method.answer(method.request(), caller).SerializeToString()

        async def answer_parsed(
            data: bytes, caller: CallerIdentity, _: float | None, entry: CallRecord
        ) -> bytes:
            request: Any = _parse(data, method.request)
            if "version" in fields:  # else `name` does not name a model
                entry.model = request.name or None
            return method.answer(request, caller).SerializeToString()

        if not fields:
            return answer_unread
        return self._with_request(method.access, self._admission.small_calls, answer_parsed)

    def _with_trailing_metadata(
        self, metadata: Callable[[_Context], _Metadata], answer: _Serve
    ) -> _Serve:
        """Add trailing metadata to a method."""

        async def serve(context: _Context, entry: CallRecord) -> bytes:
            response = await answer(context, entry)
            context.set_trailing_metadata(metadata(context))
            return response

        return serve

    def _with_request(self, access: AccessLevel, calls: CallTable, answer: _Answer) -> _Serve:
        """Return a method that reads its request after its caller has been checked."""

        async def serve(context: _Context, entry: CallRecord) -> bytes:
            caller = self._admission.admit(CallCredentials.from_context(context), access)
            with ExitStack() as ending:
                call = ending.enter_context(calls.begin(caller.owner))
                data = await self._receive(context, call, entry)
                call.request_received(len(data))
                entry.received_bytes = len(data)
                response = await answer(data, caller, _deadline_s(context), entry)
                call.answer_ready(len(data), len(response))
                sent = ending.pop_all()
                # The stubs demand a subclass of their class.
                context.add_done_callback(lambda _: sent.close())  # type: ignore[arg-type]
                return response

        return serve

    def _grpc_handler(self, name: str, serve: _Serve) -> _Handler:
        """Return a method for gRPC: EdlErrors become statuses, and each call is recorded."""

        async def called(_: object, context: _Context) -> bytes:
            try:
                with self._recorder.call(
                    "grpc", name, lambda: CallCredentials.from_context(context).address()
                ) as entry:
                    answer = await serve(context, entry)
                    entry.sent_bytes = len(answer or b"")
                    return answer
            except EdlError as error:
                self._recorder.refused(error)
                status, metadata = to_status(error), to_metadata(error)
            return await context.abort(*status, metadata)

        return called

    async def _receive(self, context: _Context, call: AdmittedCall, entry: CallRecord) -> bytes:
        """Receive a request within its time limit."""
        async with call.request_timeout(self._receive_s):
            await call.wait_and_reserve(self._max_message_bytes)
            data = await context.read()
        if isinstance(data, bytes):
            return data
        if not context.peer():
            # gRPC refused a message above the limit and cleared the peer. After a hang-up the peer
            # would still be set.
            self._recorder.refused(RequestTooLarge())
            entry.status = grpc.StatusCode.RESOURCE_EXHAUSTED.name
            raise asyncio.CancelledError
        # If the caller has hung up, this call is cancelled now, which is no error.
        await asyncio.sleep(_HANG_UP_S)
        raise WireError("the call ended without a request")


def _deadline_s(context: _Context) -> float | None:
    """Return the deadline of a call on the monotonic clock; None for none."""
    left_s = context.time_remaining()
    return None if left_s is None else time.monotonic() + left_s


def _parse(data: bytes, message_class: type[_M]) -> _M:
    if len(data) > MAX_SMALL_REQUEST_BYTES:
        # The words of gRPC's own error, by which clients know not to retry.
        raise RequestTooLarge(
            f"a {message_class.DESCRIPTOR.name} is larger than max "
            f"({len(data)} vs. {MAX_SMALL_REQUEST_BYTES})"
        )
    try:
        return message_class.FromString(data)
    except DecodeError:  # gRPC would report an internal error
        raise WireError(f"these bytes are no {message_class.DESCRIPTOR.name}") from None
