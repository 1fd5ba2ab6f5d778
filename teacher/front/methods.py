"""One call, from its first header to its status: who asks, its request in time, the answer.

Every method is served as a stream of which one message is taken: on the wire that is the same, and
it lets the caller be looked at before its request is read, and its request be awaited in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from ...errors import AccessError, EdlError, RateLimited, RetryableError, WireError
from ...proto import inference_pb2 as pb
from ...proto.security import Gate
from ...proto.status import to_status
from ..config import ServerConfig
from ..metrics import TeacherMetrics
from ..refusals import TOO_LARGE, reason_of
from ..servicer import Servicer
from .calls import Call, CallTable

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
#: From the end of a broken call's messages to its being cancelled.
_HANG_UP_S: Final = 0.1

_Context = grpc.aio.ServicerContext[Any, Any]
_Answer = Callable[[bytes, _Context], Awaitable[bytes]]


class Methods:
    """The methods of the Open Inference Protocol as gRPC calls them; lives in one event loop.

    Args:
        config: the limits.
        servicer: what to answer.
        gate: who may ask.
        metrics: told of every request and every refusal.
        threads: where the model is waited for.
    """

    def __init__(
        self,
        config: ServerConfig,
        servicer: Servicer,
        gate: Gate,
        metrics: TeacherMetrics,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._receive_s = config.receive_s
        self._servicer = servicer
        self._gate = gate
        self._metrics = metrics
        self._threads = threads
        limits = (config.max_calls, config.max_calls_per_peer)
        # Apart, so that requests which fill the one leave room for probes in the other.
        self._infer_calls, self._other_calls = CallTable(*limits), CallTable(*limits)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """By name; without (de)serializers, as malformed bytes are ours to refuse."""
        s = self._servicer
        methods = {
            # These tell nothing but that a teacher is here, and load balancers have no token.
            "ServerLive": self._open(_parsed(s.server_live, pb.ServerLiveRequest)),
            "ServerReady": self._open(_parsed(s.server_ready, pb.ServerReadyRequest)),
            "ModelReady": self._known(_parsed(s.model_ready, pb.ModelReadyRequest)),
            "ServerMetadata": self._known(self._server_metadata),
            "ModelMetadata": self._known(_parsed(s.model_metadata, pb.ModelMetadataRequest)),
            "ModelInfer": self._method(self._model_infer, self._student, self._infer_calls),
        }
        return {name: grpc.stream_unary_rpc_method_handler(m) for name, m in methods.items()}

    def unknown(self) -> None:
        """Somebody has called a method that is not here."""
        self._metrics.refused(reason_of(WireError()))

    async def _model_infer(self, data: bytes, context: _Context) -> bytes:
        with self._metrics.request(len(data)) as request:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._servicer.model_infer, data)
            request.answered(len(answer))
            return answer

    async def _server_metadata(self, data: bytes, context: _Context) -> bytes:
        asked = {name: str(value) for name, value in context.invocation_metadata() or ()}
        context.set_trailing_metadata(self._servicer.proof(asked))
        answer = _parsed(self._servicer.server_metadata, pb.ServerMetadataRequest)
        return await answer(data, context)

    def _open(self, answer: _Answer) -> Callable[..., Any]:
        return self._method(answer, self._anybody, self._other_calls)

    def _known(self, answer: _Answer) -> Callable[..., Any]:
        return self._method(answer, self._name, self._other_calls)

    def _method(
        self, answer: _Answer, peer_of: Callable[[_Context], str], calls: CallTable
    ) -> Callable[..., Any]:
        async def serve(_: object, context: _Context) -> bytes:
            try:
                call = calls.begin(peer_of(context))
                try:
                    data = await self._request(context, call)
                    calls.received(call)
                    return await answer(data, context)
                finally:
                    calls.end(call)
            except EdlError as error:
                self._count(error)
                status = to_status(error)
            return await context.abort(*status)

        return serve

    def _anybody(self, context: _Context) -> str:
        self._gate.called(context.peer())
        return _host(context)

    def _student(self, context: _Context) -> str:
        return self._name(context, "student")

    def _name(self, context: _Context, role: str = "") -> str:
        """Who asks, as limits tell callers apart.

        Raises:
            AccessError: a credential is missing or unknown, or is not that of a `role`.
        """
        identities: Any = context.auth_context()
        caller = self._gate.admit(context.invocation_metadata(), identities, context.peer())
        if role:
            self._gate.require(caller, role)
        return f"{caller.principal} at {_host(context)}"

    async def _request(self, context: _Context, call: Call) -> bytes:
        """The bytes of the request, within the time that there is for them."""
        try:
            async with asyncio.timeout(self._receive_s) as limit:
                call.on_evicted = lambda: _expire(limit)
                data = await context.read()
        except TimeoutError:
            if call.evicted:
                raise RateLimited("a call that sent nothing was ended for another one") from None
            raise RetryableError(
                f"the request did not come within {self._receive_s:g} s of its call"
            ) from None
        if isinstance(data, bytes):
            return data
        if not context.peer():
            # gRPC itself has refused a message above the limit, and has forgotten the peer; one
            # that hung up it still knows.
            self._metrics.refused(TOO_LARGE)
            raise asyncio.CancelledError
        # Whoever has hung up is not to blame: this call is cancelled a moment later.
        await asyncio.sleep(_HANG_UP_S)
        raise WireError("the call ended without a request")

    def _count(self, error: EdlError) -> None:
        reason = reason_of(error)
        if reason and not isinstance(error, AccessError):  # those the gate counts
            self._metrics.refused(reason)


def _expire(limit: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over anyway
        limit.reschedule(0.0)


def _host(context: _Context) -> str:
    """The address of the caller without its port: "ipv4:10.0.0.7"."""
    return str(context.peer()).rpartition(":")[0]


def _parsed(method: Callable[[Any], Message], request: type[Message]) -> _Answer:
    """A method that is answered at once, in the event loop."""

    async def answer(data: bytes, context: _Context) -> bytes:
        try:
            message = request.FromString(data)
        except DecodeError:  # ours to refuse: gRPC would call it an error of its own
            raise WireError(f"these bytes are no {request.DESCRIPTOR.name}") from None
        return method(message).SerializeToString()

    return answer
