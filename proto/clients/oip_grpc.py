"""A client of the Open Inference Protocol over gRPC, with the codec that copies no tensor twice.

Batches go over streams that are kept where the server says on them all that a call of its own would
say; else each goes by such a call. To a teacher of ours that offers it those go by HTTP whose
arrays travel, as no copy of them is made on their way.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import grpc

from ...errors import (
    AccessError,
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
from .. import stream_answers, tensors
from ..doors import Invitation
from ..http_offer import HttpOffer
from ..places import Place
from ..security import ClientSecurity, open_channel
from ..specs import TensorSpec
from ..wire import Buffer
from .client import CONFIGURED, Answer, Found, Request
from .door_line import DoorLine
from .grpc_errors import translated
from .grpc_line import GrpcLine
from .http_way import HttpWay, Shut
from .lines import Lines
from .near_line import NearLine

log = logging.getLogger(__name__)

_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, closed with the client
    ("grpc.enable_retries", 0),  # who asks decides what is resent, and counts it
]
#: The protocol's parameter for how long an answer is waited for, 0 for ever; in microseconds.
_TIMEOUT_US: Final = "timeout"
_Lines = Lines[bytes, memoryview]
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
        self._channel = open_channel(address, security, _CHANNEL_OPTIONS)
        self._stub: Any = oip.GRPCInferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        # Without (de)serializers: our codec has made the bytes.
        self._infer = self._channel.unary_unary(f"{_SERVICE}/ModelInfer", None, None)
        stream = self._channel.stream_stream(f"{_SERVICE}/ModelStreamInfer", None, None)
        self._streams: _Lines = Lines(lambda _: GrpcLine(stream), stream_answers.AT_ONCE)
        self._by_stream = False
        self._http: HttpWay | None = None
        self._door: _Lines | None = None
        self._invitation: Invitation | None = None  # to that door
        self._doors: list[_Lines] = []  # those that are shut too: requests may be behind them
        self._closed = False

    def probe(self, timeout_s: float) -> Found:
        until_s = time.monotonic() + timeout_s
        name = self._model
        ready = _asked(self._stub.ModelReady, pb.ModelReadyRequest(name=name), timeout_s)
        if not ready.ready:
            raise RetryableError(f"model {name!r} is not ready there")
        extensions = self._extensions(timeout_s)
        self._by_stream = stream_answers.EXTENSION in extensions
        self._open_http(until_s)
        most_rows = self._most_rows(timeout_s) if CONFIGURED in extensions else None
        try:
            wanted = pb.ModelMetadataRequest(name=name)
            metadata = _asked(self._stub.ModelMetadata, wanted, timeout_s)
        except RequestRefused:  # it is ready, and does not describe itself
            return Found(most_rows=most_rows)
        return Found(_specs(metadata.inputs), _specs(metadata.outputs), most_rows)

    def infer(
        self, request: Request, timeout_s: float, places: Mapping[str, Place] | None = None
    ) -> Answer:
        """As of `Client`; inputs that have one of `places` stay where they are.

        Raises:
            Shut: with `places`, the server cannot be reached by its Unix socket: it takes them by
                no other way.
        """
        until_s = time.monotonic() + timeout_s
        if not places and (http := self._http) is not None:
            with contextlib.suppress(Shut):
                return http.infer(_timed(request, timeout_s), until_s)
        message = self.message(request, _left_s(until_s), places or {})
        try:
            carry = self._carry_near if places else self._carry
            return answer_of(carry(message, until_s))
        except WireError as error:
            raise BadAnswer(str(error)) from None

    def message(self, request: Request, timeout_s: float, places: Mapping[str, Place]) -> bytes:
        """A request, serialised; raises RequestRefused for what can be sent nowhere."""
        if self._by_stream or self._door is not None:  # of which the deadline is no request's
            request = _timed(request, timeout_s)
        try:
            message = tensors.encode_request(
                model_name=self._model,
                inputs=request.inputs,
                outputs=request.outputs,
                request_id=request.request_id,
                parameters=request.parameters,
                output_parameters=request.output_parameters,
                places=places,
            )
        except WireError as error:  # what cannot be sent here can be sent nowhere
            raise RequestRefused(f"it cannot be sent: {error}") from None
        if not places:  # else the server looks whether what lies there is current
            request.check()
        return message

    def near_line(self) -> NearLine | None:
        """A line by the server's door for requests whose inputs stay; None: there is no door."""
        if self._door is None or self._invitation is None:
            return None
        try:
            return NearLine(self._invitation)
        except OSError as error:  # requests that go by the door will find out, too
            log.info("the door of %s is shut: %s", self._model, error)
            return None

    def register_memory(self, region: str, key: str, nbytes: int, timeout_s: float) -> None:
        """Have the server open shared memory; raises what the server answers, in our errors.

        From then on requests that name places in it go by the server's door, if it has one.
        """
        wanted = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=nbytes)
        _, call = _asked(self._stub.SystemSharedMemoryRegister.with_call, wanted, timeout_s)
        self._come_by(call)

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
        self._closed = True
        if (http := self._http) is not None:
            http.close()
        for door in self._doors:
            door.close()
        self._streams.close()
        self._channel.close()

    def _carry_near(self, message: bytes, until_s: float) -> bytes | memoryview:
        """The response to a request with places, by the door."""
        for _ in range(2):
            if (door := self._door) is None:
                break
            try:
                return stream_answers.read(door.call(message, until_s))
            except OSError as error:
                log.info("the door of %s is shut: %s", self._model, error)
                self._door = None
            except AccessError:  # what was shown when it was opened counts no more
                self._door = None
                self._ask_for_door(_left_s(until_s))
                if self._door is None:
                    raise
        raise Shut("there is no Unix socket of the server")

    def _carry(self, message: bytes, until_s: float) -> bytes | memoryview:
        """The response to a request, serialised both."""
        if self._by_stream:
            try:
                return stream_answers.read(self._streams.call(message, until_s))
            except AccessError:  # the same of the stream; a fresh one shows what we have now
                self._streams.renew()
                return stream_answers.read(self._streams.call(message, until_s))
        answer: bytes = _asked(self._infer, message, _left_s(until_s))
        return answer

    def _ask_for_door(self, timeout_s: float) -> None:
        """Have the server invite us anew."""
        wanted = pb.SystemSharedMemoryStatusRequest()
        with contextlib.suppress(EdlError):
            _, call = _asked(self._stub.SystemSharedMemoryStatus.with_call, wanted, timeout_s)
            self._come_by(call)

    def _come_by(self, call: Any) -> None:
        """Use the door that the end of `call` invites to, unless there is one in use."""
        invitation = Invitation.among(call.trailing_metadata() or ())
        if invitation is not None and self._door is None:
            self._invitation = invitation
            self._door = Lines(lambda _: DoorLine(invitation), 1)
            self._doors.append(self._door)

    def _extensions(self, timeout_s: float) -> frozenset[str]:
        """Those of the protocol that the server says it has."""
        try:
            wanted = pb.ServerMetadataRequest()
            server, call = _asked(self._stub.ServerMetadata.with_call, wanted, timeout_s)
        except (RequestRefused, RetryableError):  # it says nothing of itself
            return frozenset()
        self._hear_of_http(call)
        return frozenset(server.extensions)

    def _hear_of_http(self, call: Any) -> None:
        """Take the way by HTTP that the end of `call` offers, unless it is in use."""
        offer, former = HttpOffer.among(call.trailing_metadata() or ()), self._http
        if former is not None and former.offer == offer:
            return
        self._http = None
        # Where another port was dialled somebody is in between, who knows nothing of HTTP's.
        if offer is not None and str(offer.grpc_port) == self._port:
            with contextlib.suppress(UsageError):  # of an address that only gRPC understands
                self._http = HttpWay(self._host, offer, self._model, self._security)
        if former is not None:  # it leads to a teacher that is no more
            former.close()

    def _open_http(self, until_s: float) -> None:
        if (http := self._http) is not None:
            http.open(until_s)
            if self._closed:  # meanwhile
                http.close()

    def _most_rows(self, timeout_s: float) -> int | None:
        """What the model takes at once; None where it is not said."""
        method = self._channel.unary_unary(
            f"{_SERVICE}/ModelConfig",
            pb.ModelConfigRequest.SerializeToString,
            pb.ModelConfigResponse.FromString,
        )
        try:
            said = _asked(method, pb.ModelConfigRequest(name=self._model), timeout_s)
        except (RequestRefused, RetryableError):
            return None
        return said.config.max_batch_size if said.config.max_batch_size > 0 else None


def answer_of(response: Buffer) -> Answer:
    """A serialised `ModelInferResponse` as an answer; raises WireError where it is none."""
    said = tensors.decode_response(response)
    return Answer(said.outputs, said.parameters, said.output_parameters)


def _timed(request: Request, timeout_s: float) -> Request:
    """The same, which says for how long its answer is waited for."""
    timeout_us = max(round(timeout_s * 1e6), 1)
    return request._replace(parameters={**request.parameters, _TIMEOUT_US: timeout_us})


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.output_kind)
        for tensor in tensors
    )


def _left_s(until_s: float) -> float:
    return max(until_s - time.monotonic(), 0.0)


def _asked(method: Any, request: Any, timeout_s: float) -> Any:
    try:
        return method(request, timeout=timeout_s)
    except ValueError:  # of gRPC, for a channel that was closed
        raise TeacherLost("the connection is closed") from None
    except grpc.RpcError as error:
        raise translated(error) from None
