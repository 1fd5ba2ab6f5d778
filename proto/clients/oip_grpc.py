"""A client of the Open Inference Protocol over gRPC, with the codec that copies no tensor twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc

from ...errors import BadAnswer, EdlError, RequestRefused, RetryableError, TeacherLost, WireError
from .. import inference_pb2 as pb
from .. import inference_pb2_grpc as oip
from .. import tensors
from ..places import Place
from ..security import ClientSecurity, open_channel
from ..specs import TensorSpec
from ..status import from_status
from .client import Answer, Found, Request

_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, closed with the client
    ("grpc.enable_retries", 0),  # who asks decides what is resent, and counts it
]
#: gRPC's words for a peer that answers in anything else.
_NO_HTTP2: Final = "Failed parsing HTTP/2"


class OipGrpcClient:
    """A `Client` of one model.

    Args:
        address: host:port.
        model: its name there.
        security: how to prove who calls; None: neither TLS nor token.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    def __init__(self, address: str, model: str, security: ClientSecurity | None = None) -> None:
        self._model = model
        self._channel = open_channel(address, security, _CHANNEL_OPTIONS)
        self._stub: Any = oip.GRPCInferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=None,  # bytes as they are: our codec has made them
            response_deserializer=None,
        )

    def probe(self, timeout_s: float) -> Found:
        name = self._model
        ready = _asked(self._stub.ModelReady, pb.ModelReadyRequest(name=name), timeout_s)
        if not ready.ready:
            raise RetryableError(f"model {name!r} is not ready there")
        try:
            wanted = pb.ModelMetadataRequest(name=name)
            metadata = _asked(self._stub.ModelMetadata, wanted, timeout_s)
        except RequestRefused:  # it is ready, and does not describe itself
            return Found()
        return Found(_specs(metadata.inputs), _specs(metadata.outputs))

    def infer(
        self, request: Request, timeout_s: float, places: Mapping[str, Place] | None = None
    ) -> Answer:
        """As of `Client`; inputs that have one of `places` stay where they are."""
        try:
            message = tensors.encode_request(
                model_name=self._model,
                inputs=request.inputs,
                outputs=request.outputs,
                request_id=request.request_id,
                parameters=request.parameters,
                output_parameters=request.output_parameters,
                places=places or {},
            )
        except WireError as error:  # what cannot be sent here can be sent nowhere
            raise RequestRefused(f"it cannot be sent: {error}") from None
        reply = _asked(self._infer, message, timeout_s)
        try:
            said = tensors.decode_response(reply)
        except WireError as error:
            raise BadAnswer(str(error)) from None
        return Answer(said.outputs, said.parameters, said.output_parameters)

    def register_memory(self, region: str, key: str, nbytes: int, timeout_s: float) -> None:
        """Have the server open shared memory; raises what the server answers, in our errors."""
        wanted = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=nbytes)
        _asked(self._stub.SystemSharedMemoryRegister, wanted, timeout_s)

    def knows_memory(self, region: str, timeout_s: float) -> bool:
        """Whether the server has it open still; errors as of `register_memory`."""
        status = _asked(
            self._stub.SystemSharedMemoryStatus, pb.SystemSharedMemoryStatusRequest(), timeout_s
        )
        return region in status.regions

    def unregister_memory(self, region: str, timeout_s: float) -> None:
        """Have the server let go of it; errors as of `register_memory`."""
        wanted = pb.SystemSharedMemoryUnregisterRequest(name=region)
        _asked(self._stub.SystemSharedMemoryUnregister, wanted, timeout_s)

    def close(self) -> None:
        self._channel.close()


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors
    )


def _asked(method: Any, request: Any, timeout_s: float) -> Any:
    try:
        return method(request, timeout=timeout_s)
    except ValueError:  # of gRPC, for a channel that was closed
        raise TeacherLost("the connection is closed") from None
    except grpc.RpcError as error:
        raise _translated(error) from None


def _translated(error: Any) -> EdlError:
    if (details := error.details() or "") and _NO_HTTP2 in details:
        return TeacherLost(f"it speaks no gRPC; is it HTTP? Then write http:// ({details})")
    return from_status(error.code(), error.details() or "", error.trailing_metadata() or ())
