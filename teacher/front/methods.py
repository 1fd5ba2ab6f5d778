"""One call, from its first header to its status: who asks, its request in time, the answer.

Every method but `ModelStreamInfer` is served as a stream of which one message is taken: on the wire
that is the same, and it lets the caller be looked at before its request is read, and its request be
awaited in vain. gRPC keeps back what nobody reads, so a request that is not read costs its sender's
memory only; one that is read costs ours, up to the limit of all messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...errors import EdlError, WireError
from ...proto import inference_pb2 as pb
from ...proto.status import to_metadata, to_status
from ..callers import CallCredentials, CallerIdentity
from ..calls import Call, CallTable, Right
from ..recorder import CallRecord
from ..request import TooLarge
from ..servicer import Dependencies, Method
from ..transport.listener import TransportListener
from .streams import Streams

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
STREAM: Final = "ModelStreamInfer"
#: From the end of a broken call's messages to its being cancelled.
_HANG_UP_S: Final = 0.1
#: Of a request that holds names only.
_NAMES_BYTES: Final = 64 << 10

_Context = grpc.aio.ServicerContext[Any, Any]
_Metadata = tuple[tuple[str, str], ...]
#: Given the request, whose it is, when its caller has lost interest, and the record of its call.
_Answer = Callable[[bytes, CallerIdentity, float | None, CallRecord], Awaitable[bytes]]
#: Serves a call to its end: its answer, unless it has written that.
_Serve = Callable[[_Context, CallRecord], Awaitable[bytes]]
_Handler = Callable[[object, _Context], Awaitable[bytes]]
_M = TypeVar("_M", bound=Message)


class Methods:
    """The methods of the Open Inference Protocol as gRPC calls them; lives in one event loop.

    Attributes:
        streams: those of `ModelStreamInfer`.
        transport: for batches of our own readers.

    Args:
        given: what it works with.
    """

    def __init__(self, given: Dependencies) -> None:
        config, self._servicer, self._admission, self._recorder = given
        self._receive_s = config.receive_s
        self._max_message_bytes = config.max_message_bytes
        self.streams = Streams(self._admission.infer_calls, config, self._recorder.refused)
        self.transport = TransportListener(given)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """By name; without (de)serializers, as malformed bytes are ours to refuse."""
        methods = {name: self._named(method) for name, method in self._servicer.methods.items()}
        methods |= {
            "ServerMetadata": self._beside(self._proof, methods["ServerMetadata"]),
            "ModelMetadata": self._beside(self._offer, methods["ModelMetadata"]),
            "ModelInfer": self._read(
                "student", self._admission.infer_calls, self._servicer.model_infer
            ),
        }
        unary = {
            name: grpc.stream_unary_rpc_method_handler(self._called(name, serve))
            for name, serve in methods.items()
        }
        stream = grpc.stream_stream_rpc_method_handler(self._called(STREAM, self._stream))
        return {**unary, STREAM: stream}

    def unknown(self) -> None:
        """Somebody has called a method that is not here."""
        self._recorder.refused(WireError())

    async def _stream(self, context: _Context, _: CallRecord) -> Any:
        shown, deadline_s = CallCredentials.by(context), _deadline_s(context)

        async def infer(data: bytes) -> bytes:
            with self._recorder.call(
                "grpc", STREAM, lambda: shown.caller_identity().address
            ) as entry:
                caller = self._admission.admit(
                    shown, "student"
                )  # it may have been locked out meanwhile
                return await self._servicer.model_infer(data, caller, deadline_s, entry)

        await self.streams.serve(self._admission.admit(shown, "student"), context, infer)

    def _proof(self, context: _Context) -> _Metadata:
        """For who wants this instance proved."""
        asked = {name: str(value) for name, value in context.invocation_metadata() or ()}
        return self._servicer.proof(asked)

    def _offer(self, context: _Context) -> _Metadata:
        return self.transport.offer(CallCredentials.by(context))

    def _named(self, method: Method) -> _Serve:
        """A method that is answered at once, in the event loop."""
        fields = method.request.DESCRIPTOR.fields_by_name

        async def unread(context: _Context, _: CallRecord) -> bytes:
            caller = self._admission.admit(CallCredentials.by(context), method.right)
            return method.answer(method.request(), caller).SerializeToString()

        async def parsed(
            data: bytes, caller: CallerIdentity, _: float | None, entry: CallRecord
        ) -> bytes:
            request: Any = _parse(data, method.request)
            if "version" in fields:  # else its name is that of something else
                entry.model = request.name or None
            return method.answer(request, caller).SerializeToString()

        return self._read(method.right, self._admission.named_calls, parsed) if fields else unread

    def _beside(self, metadata: Callable[[_Context], _Metadata], answer: _Serve) -> _Serve:
        """A method whose answer has metadata with it."""

        async def serve(context: _Context, entry: CallRecord) -> bytes:
            answered = await answer(context, entry)
            context.set_trailing_metadata(metadata(context))
            return answered

        return serve

    def _read(self, right: Right, calls: CallTable, answer: _Answer) -> _Serve:
        """A method whose request is read once its caller is known."""

        async def serve(context: _Context, entry: CallRecord) -> bytes:
            caller = self._admission.admit(CallCredentials.by(context), right)
            with calls.begin(caller.owner) as call:
                data = await self._request(context, call, entry)
                call.received(len(data))
                entry.received_bytes = len(data)
                return await answer(data, caller, _deadline_s(context), entry)

        return serve

    def _called(self, name: str, serve: _Serve) -> _Handler:
        """The method `name` as gRPC calls it: our errors end the call; all are logged."""

        async def called(_: object, context: _Context) -> bytes:
            def address() -> str:
                return CallCredentials.by(context).caller_identity().address

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

    async def _request(self, context: _Context, call: Call, entry: CallRecord) -> bytes:
        """The bytes of the request, within the time that there is for them."""
        async with call.receiving(self._receive_s):
            await call.expect(self._max_message_bytes)
            data = await context.read()
        if isinstance(data, bytes):
            return data
        if not context.peer():
            # gRPC itself has refused a message above the limit, and has forgotten the peer; one
            # that hung up it still knows.
            self._recorder.refused(TooLarge())
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
        raise TooLarge(
            f"a {kind.DESCRIPTOR.name} is larger than max ({len(data)} vs. {_NAMES_BYTES})"
        )
    try:
        return kind.FromString(data)
    except DecodeError:  # ours to refuse: gRPC would call it an error of its own
        raise WireError(f"these bytes are no {kind.DESCRIPTOR.name}") from None
