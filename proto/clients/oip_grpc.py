"""Client of the Open Inference Protocol over gRPC; it also opens transport connections."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc

from ...runtime.errors import (
    BadAnswer,
    EdlError,
    RequestRefused,
    RetryableError,
    TeacherLost,
    UsageError,
    WireError,
)
from .. import inference_pb2 as pb
from .. import tensors
from ..datatypes import TensorSpec
from ..frames import OFFER_REQUEST, TransportOffer
from ..security.certificates import Reloaded, client_context
from ..security.client_connections import open_channel, stub_of
from ..security.credentials import ClientSecurity
from ..shared_buffer import SharedBuffer
from ..status import from_status
from . import MODEL_CONFIGURATION, LabelRequest, LabelResponse, ModelDescription
from .transport import TransportConnection, connect

log = logging.getLogger(__name__)

#: Part of gRPC's error text for a peer that does not answer in HTTP/2.
_NO_HTTP2_TEXT: Final = "Failed parsing HTTP/2"


def error_from_rpc(error: Any) -> EdlError:
    """Convert a `grpc.RpcError`, or the ValueError of a closed channel, to one of our errors."""
    if isinstance(error, ValueError):
        return TeacherLost("the connection is closed")
    if (details := error.details() or "") and _NO_HTTP2_TEXT in details:
        return TeacherLost(
            f"the server speaks no gRPC; if it speaks HTTP, write http:// ({details})"
        )
    return from_status(error.code(), details, error.trailing_metadata() or ())


CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a separate connection, closed with the client
    ("grpc.enable_retries", 0),  # the caller resends requests and counts resends
]
#: Timeout in seconds of each step of opening a transport connection (`proto.frames`).
_CONNECT_S: Final = 1.0
#: Seconds from a failed attempt to open a transport connection to the next attempt: the first
#: pause, which doubles after each further failure, and the longest.
_FIRST_CONNECT_PAUSE_S: Final = 5.0
_MAX_CONNECT_PAUSE_S: Final = 300.0
_SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class _Channel:
    """A channel with the methods of the protocol."""

    def __init__(self, address: str, security: ClientSecurity | None) -> None:
        self.channel = open_channel(address, security, CHANNEL_OPTIONS)
        self.stub = stub_of(self.channel, _SERVICE)
        # Without (de)serializers, because `tensors` encodes and decodes.
        self.infer = self.channel.unary_unary(f"/{_SERVICE.full_name}/ModelInfer", None, None)


class OipGrpcClient:
    """A `TeacherClient` of one model.

    Args:
        address: host:port of the server.
        model: name of the model at the server.
        security: credentials for the server; None for neither TLS nor token. When a file of its
            certificates changes, a new channel is opened for the next call.

    Raises:
        UsageError: a file of `security` cannot be used.
    """

    def __init__(self, address: str, model: str, security: ClientSecurity | None = None) -> None:
        self._model = model
        self._host, _, self._port = address.rpartition(":")
        self._security = security
        files = None if security is None else security.tls
        # Channels stay open until `close`, so that their calls continue.
        self._opened: list[_Channel] = []
        self._channels = Reloaded(
            () if files is None else files.paths(), lambda: self._open_channel(address)
        )
        # Failed attempts to open a transport connection, since the last success.
        self._failures = 0
        self._next_attempt_s = 0.0  # monotonic time of the next attempt

    def probe(self, timeout_s: float) -> ModelDescription:
        name, until_s = self._model, time.monotonic() + timeout_s
        ready = _call(
            self._channels.current().stub.ModelReady, pb.ModelReadyRequest(name=name), timeout_s
        )
        if not ready.ready:
            raise RetryableError(f"model {name!r} is not ready there")
        configured = MODEL_CONFIGURATION in self._extensions(_left_s(until_s))
        most_rows = self._most_rows(_left_s(until_s)) if configured else None
        try:
            query = pb.ModelMetadataRequest(name=name)
            metadata = _call(self._channels.current().stub.ModelMetadata, query, _left_s(until_s))
        except RequestRefused:  # the model is ready, but the server does not describe it
            return ModelDescription(most_rows=most_rows)
        return ModelDescription(_specs(metadata.inputs), _specs(metadata.outputs), most_rows)

    def infer(self, request: LabelRequest, timeout_s: float) -> LabelResponse:
        until_s = time.monotonic() + timeout_s
        try:
            message = tensors.encode_request(self._model, request)
        except WireError as error:  # the protocol cannot carry this request
            raise RequestRefused(f"the request cannot be sent: {error}") from None
        request.check()
        try:
            return tensors.decode_response(
                _call(self._channels.current().infer, message, _left_s(until_s))
            )
        except WireError as error:
            raise BadAnswer(str(error)) from None

    def connect(self, arena: SharedBuffer | None) -> TransportConnection | None:
        """Open a transport connection if the server offers one; blocks for some seconds at most.

        Args:
            arena: memory of batches, which a server on this host may read in place; None: send all
                arrays.

        Returns:
            The connection, or None if there is none now; then use `infer` for requests.
        """
        if time.monotonic() < self._next_attempt_s:
            return None
        if (connection := self._try_connect(arena)) is not None:
            self._failures = 0
            return connection
        pause_s = min(_FIRST_CONNECT_PAUSE_S * 2 ** min(self._failures, 16), _MAX_CONNECT_PAUSE_S)
        self._failures += 1
        self._next_attempt_s = time.monotonic() + pause_s
        return None

    def close(self) -> None:
        for opened in self._opened:
            opened.channel.close()

    def _open_channel(self, address: str) -> _Channel:
        self._opened.append(_Channel(address, self._security))
        return self._opened[-1]

    def _try_connect(self, arena: SharedBuffer | None) -> TransportConnection | None:
        if (offer := self._fetch_offer()) is None:
            return None
        try_unix = arena is not None and bool(offer.unix_name)
        for by_unix in (True, False) if try_unix else (False,):
            try:
                opened = connect(self._host.strip("[]"), offer, self._tls, _CONNECT_S, unix=by_unix)
            except (OSError, UsageError) as error:
                log.info(
                    "cannot open a transport connection to port %d of %s: %s",
                    offer.port,
                    self._host,
                    error,
                )
            else:
                return TransportConnection(opened, self._model, arena if by_unix else None)
        return None

    def _fetch_offer(self) -> TransportOffer | None:
        """Ask the server for an offer; return None if there is no usable one."""
        method = partial(
            self._channels.current().stub.ModelMetadata.with_call, metadata=OFFER_REQUEST
        )
        try:
            _, call = _call(method, pb.ModelMetadataRequest(name=self._model), _CONNECT_S)
        except EdlError as error:
            log.debug("%s makes no transport offer: %s", self._host, error)
            return None
        offer = TransportOffer.from_metadata(call.trailing_metadata() or ())
        # If the ports differ, a port mapping lies between, which may lack the transport's port.
        return offer if offer is not None and str(offer.grpc_port) == self._port else None

    @property
    def _tls(self) -> Callable[[socket.socket], socket.socket] | None:
        """Function that wraps a socket of the transport in TLS; None if gRPC uses no TLS."""
        security = self._security
        if security is None or security.tls is None:
            return None
        name = security.server_name or self._host.strip("[]")
        return partial(client_context(security).wrap_socket, server_hostname=name)

    def _extensions(self, timeout_s: float) -> frozenset[str]:
        """Return the extensions of the protocol that the server lists; empty if unknown."""
        try:
            query = pb.ServerMetadataRequest()
            return frozenset(
                _call(self._channels.current().stub.ServerMetadata, query, timeout_s).extensions
            )
        except (RequestRefused, RetryableError):
            return frozenset()

    def _most_rows(self, timeout_s: float) -> int | None:
        """Return the rows of the largest batch that the model accepts; None if unknown."""
        method = self._channels.current().channel.unary_unary(
            f"/{_SERVICE.full_name}/ModelConfig",
            pb.ModelConfigRequest.SerializeToString,
            pb.ModelConfigResponse.FromString,
        )
        try:
            response = _call(method, pb.ModelConfigRequest(name=self._model), timeout_s)
        except (RequestRefused, RetryableError):
            return None
        return response.config.max_batch_size if response.config.max_batch_size > 0 else None


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
    except (grpc.RpcError, ValueError) as error:
        raise error_from_rpc(error) from None
