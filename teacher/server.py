"""The socket side: a gRPC server whose threads stay free to answer while the model runs.

`ModelInfer` takes and gives bytes, untouched by protobuf, and has its own threads: one for each
slot and a few to turn others away at once. Every other method is answered by separate threads, so
that a probe of liveness does not wait for the model.

A thread is held from the beginning of a call, not from its last byte. So a peer that opens many
calls and never sends a message can starve everybody: keep the port to a network that you trust.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ..coordinator.config import join_address
from ..errors import AddressInUse, EdlError, UsageError, WireError
from ..proto import inference_pb2 as pb
from ..proto.status import to_status
from .config import ServerConfig
from .predictor_client import Overloaded
from .servicer import Servicer

_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
#: Threads beyond the slots that receive requests only to refuse them.
_SPARE_THREADS = 16
_CONTROL_THREADS = 4

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Server:
    """Binds on creation and answers after `start`.

    Args:
        config: where, and how much at once.
        servicer: what to answer.

    Raises:
        AddressInUse: another process listens there.
        UsageError: this machine does not have the address.
    """

    def __init__(self, config: ServerConfig, servicer: Servicer) -> None:
        _check_bindable(config.host, config.port)
        self._infer_threads = ThreadPoolExecutor(config.slots + _SPARE_THREADS, "infer")
        self._control_threads = ThreadPoolExecutor(_CONTROL_THREADS, "control")
        self._server = grpc.server(
            self._control_threads,
            handlers=[_handlers(servicer, self._infer_threads)],
            options=[
                ("grpc.so_reuseport", 0),  # else two servers share a port, and nobody is told
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.max_send_message_length", config.max_message_bytes),
            ],
        )
        try:
            address = join_address(config.host, config.port)
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError:  # somebody has taken it since the check
            self.stop(0)
            raise _in_use(config.host, config.port) from None

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Take nothing new, wait up to `grace_s` for what is being answered, close.

        A thread that the model holds longer ends with the model, and is not waited for.
        """
        self._server.stop(grace_s).wait()
        self._infer_threads.shutdown(wait=False)
        self._control_threads.shutdown(wait=False)


class _OnThreads:
    """A method that gRPC runs on threads of its own instead of the server's.

    gRPC looks for this attribute; a version that does not would only share the threads.
    """

    def __init__(self, method: Callable[..., Any], threads: ThreadPoolExecutor) -> None:
        self._method = method
        self.experimental_thread_pool = threads

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._method(request, context)


def _handlers(
    servicer: Servicer, infer_threads: ThreadPoolExecutor
) -> grpc.GenericRpcHandler[Any, Any]:
    infer = _OnThreads(_guarded(servicer.model_infer), infer_threads)
    methods = {
        "ServerLive": _parsed(servicer.server_live, pb.ServerLiveRequest),
        "ServerReady": _parsed(servicer.server_ready, pb.ServerReadyRequest),
        "ModelReady": _parsed(servicer.model_ready, pb.ModelReadyRequest),
        "ServerMetadata": _parsed(servicer.server_metadata, pb.ServerMetadataRequest),
        "ModelMetadata": _parsed(servicer.model_metadata, pb.ModelMetadataRequest),
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
    }
    return grpc.method_handlers_generic_handler(_SERVICE, methods)


def _parsed(method: Callable[[Any], Message], request: type[Message]) -> Any:
    def answer(data: bytes) -> bytes:
        try:
            message = request.FromString(data)
        except DecodeError:  # ours to refuse: gRPC would call it an error of its own
            raise WireError(f"these bytes are no {request.DESCRIPTOR.name}") from None
        return method(message).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(_guarded(answer))


def _guarded(method: Callable[[_In], _Out]) -> Callable[[_In, grpc.ServicerContext], _Out]:
    """`method`, its errors answered as gRPC statuses."""

    def answer(request: _In, context: grpc.ServicerContext) -> _Out:
        try:
            return method(request)
        except Overloaded as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except EdlError as error:
            context.abort(*to_status(error))

    return answer


def _check_bindable(host: str, port: int) -> None:
    """Ask a plain socket: gRPC does not say why it cannot bind, and prints lines of its own."""
    bare = host.strip("[]")
    try:
        family, kind, number, _, at = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(at)
            probe.listen()
    except PermissionError:
        raise UsageError(
            f"port {port} may not be bound by this user: choose one from 1024"
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(host, port) from None
        raise UsageError(f"{host!r} is not an address of this machine ({error.strerror})") from None


def _in_use(host: str, port: int) -> AddressInUse:
    address = join_address(host, port)
    return AddressInUse(f"{address} is in use by another process: choose another port, or 0")
