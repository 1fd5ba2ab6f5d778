"""A client of the Open Inference Protocol over gRPC."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc

from ...errors import (
    BadAnswer,
    EdlError,
    RequestRefused,
    RetryableError,
    TeacherLost,
    UsageError,
    WireError,
)
from .. import inference_pb2 as pb
from .. import inference_pb2_grpc as oip
from .. import tensors
from ..datatypes import Buffer, TensorSpec
from ..frames import OFFER_REQUEST, TransportOffer
from ..security import ClientSecurity, open_channel
from ..security.certificates import client_context
from ..shared_buffer import SharedBuffer
from ..status import from_status
from . import MODEL_CONFIGURATION, LabelRequest, LabelResponse, ModelDescription
from .transport import TransportConnection, connect

log = logging.getLogger(__name__)

#: gRPC's words for a peer that answers in anything else.
_NO_HTTP2: Final = "Failed parsing HTTP/2"


def error_from_rpc(error: Any) -> EdlError:
    """The error of ours that a `grpc.RpcError` stands for."""
    if (details := error.details() or "") and _NO_HTTP2 in details:
        return TeacherLost(f"it speaks no gRPC; is it HTTP? Then write http:// ({details})")
    return from_status(error.code(), details, error.trailing_metadata() or ())


CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, closed with the client
    ("grpc.enable_retries", 0),  # who asks decides what is resent, and counts it
]
#: Of each step of opening a connection of the transport.
_CONNECT_S: Final = 1.0
#: Between two attempts to open one: after the first failure, doubled by each further one.
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0
_SERVICE: Final = f"/{pb.DESCRIPTOR.services_by_name['GRPCInferenceService'].full_name}"


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
        self._host, _, self._port = address.rpartition(":")
        self._security = security
        self._channel = open_channel(address, security, CHANNEL_OPTIONS)
        self._stub: Any = oip.GRPCInferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        # Without (de)serializers: our codec has made the bytes.
        self._infer = self._channel.unary_unary(f"{_SERVICE}/ModelInfer", None, None)
        self._failures = 0  # of the transport, since a connection was last opened
        self._retry_s = 0.0  # when it may be tried again

    def probe(self, timeout_s: float) -> ModelDescription:
        name = self._model
        ready = _call(self._stub.ModelReady, pb.ModelReadyRequest(name=name), timeout_s)
        if not ready.ready:
            raise RetryableError(f"model {name!r} is not ready there")
        configured = MODEL_CONFIGURATION in self._extensions(timeout_s)
        most_rows = self._most_rows(timeout_s) if configured else None
        try:
            wanted = pb.ModelMetadataRequest(name=name)
            metadata = _call(self._stub.ModelMetadata, wanted, timeout_s)
        except RequestRefused:  # it is ready, and does not describe itself
            return ModelDescription(most_rows=most_rows)
        return ModelDescription(_specs(metadata.inputs), _specs(metadata.outputs), most_rows)

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        until_s = time.monotonic() + timeout_s
        try:
            message = tensors.encode_request(
                model_name=self._model,
                inputs=request.inputs,
                outputs=request.outputs,
                request_id=request.request_id,
                parameters=request.parameters,
                output_parameters=request.output_parameters,
            )
        except WireError as error:  # what cannot be sent here can be sent nowhere
            raise RequestRefused(f"it cannot be sent: {error}") from None
        request.check()
        try:
            return response_from_bytes(_call(self._infer, message, _left_s(until_s)))
        except WireError as error:
            raise BadAnswer(str(error)) from None

    def connect(self, arena: SharedBuffer | None) -> TransportConnection | None:
        """A connection of the transport, where the server offers one; waits for it.

        Args:
            arena: where batches lie that a server on this host reads in place; None: all travel.

        Returns:
            None where there is none now: requests go by `infer`.
        """
        if time.monotonic() < self._retry_s:
            return None
        if (connection := self._try_connect(arena)) is not None:
            self._failures = 0
            return connection
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._failures, 16), _LONGEST_PAUSE_S)
        self._failures += 1
        self._retry_s = time.monotonic() + pause_s
        return None

    def close(self) -> None:
        self._channel.close()

    def _try_connect(self, arena: SharedBuffer | None) -> TransportConnection | None:
        if (offer := self._fetch_offer()) is None:
            return None
        unix = arena is not None and bool(offer.unix_name)
        for by_unix in (True, False) if unix else (False,):
            try:
                opened = connect(self._host.strip("[]"), offer, self._tls, _CONNECT_S, unix=by_unix)
            except (OSError, UsageError) as error:
                log.info("no frames to port %d of %s: %s", offer.port, self._host, error)
            else:
                return TransportConnection(opened, self._model, arena if by_unix else None)
        return None

    def _fetch_offer(self) -> TransportOffer | None:
        """What the server offers now; None where it offers nothing that can be used."""
        method = partial(self._stub.ModelMetadata.with_call, metadata=OFFER_REQUEST)
        try:
            _, call = _call(method, pb.ModelMetadataRequest(name=self._model), _CONNECT_S)
        except EdlError as error:
            log.debug("no offer of frames from %s: %s", self._host, error)
            return None
        offer = TransportOffer.from_metadata(call.trailing_metadata() or ())
        # Where another port was dialled, something in between maps ports, and knows no others.
        return offer if offer is not None and str(offer.grpc_port) == self._port else None

    @property
    def _tls(self) -> Callable[[socket.socket], socket.socket] | None:
        """What encrypts a connection of the transport, where gRPC's is encrypted."""
        security = self._security
        if security is None or security.tls is None:
            return None
        name = security.server_name or self._host.strip("[]")
        return partial(client_context(security).wrap_socket, server_hostname=name)

    def _extensions(self, timeout_s: float) -> frozenset[str]:
        """Those of the protocol that the server says it has."""
        try:
            wanted = pb.ServerMetadataRequest()
            server = _call(self._stub.ServerMetadata, wanted, timeout_s)
        except (RequestRefused, RetryableError):  # it says nothing of itself
            return frozenset()
        return frozenset(server.extensions)

    def _most_rows(self, timeout_s: float) -> int | None:
        """What the model takes at once; None where it is not said."""
        method = self._channel.unary_unary(
            f"{_SERVICE}/ModelConfig",
            pb.ModelConfigRequest.SerializeToString,
            pb.ModelConfigResponse.FromString,
        )
        try:
            said = _call(method, pb.ModelConfigRequest(name=self._model), timeout_s)
        except (RequestRefused, RetryableError):
            return None
        return said.config.max_batch_size if said.config.max_batch_size > 0 else None


def response_from_bytes(response: Buffer) -> LabelResponse:
    """A serialised `ModelInferResponse` as an answer; raises WireError where it is none."""
    said = tensors.decode_response(response)
    return LabelResponse(said.outputs, said.parameters, said.output_parameters)


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.output_kind)
        for tensor in tensors
    )


def _left_s(until_s: float) -> float:
    return max(until_s - time.monotonic(), 0.0)


def _call(method: Any, request: Any, timeout_s: float) -> Any:
    try:
        return method(request, timeout=timeout_s)
    except ValueError:  # of gRPC, for a channel that was closed
        raise TeacherLost("the connection is closed") from None
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None
