"""Transports to a teacher's I/O process with an instant model: gRPC, and our own transport.

Our own transport sends a batch as frames over TCP, into the memory that the predictor reads, or
sends only the location of the batch in shared memory. The model answers in the event loop: the way
to a real model and back, through the batcher's threads and another process, is not part of the
transport.
"""

from __future__ import annotations

import itertools
import select
from concurrent.futures import Future
from typing import Any, Final

from ...proto.arena import Arena, Array, tune_allocator
from ...proto.clients import LabelRequest
from ...proto.clients.oip_grpc import OipGrpcClient
from ...proto.clients.transport import TransportConnection
from ...proto.datatypes import FREE, TensorSpec, datatype_of
from ...proto.security.access_control import AccessControl
from ...proto.security.credentials import ClientSecurity, ServerSecurity, TlsFiles
from ...proto.shared_buffer import GENERATION_BYTES, BufferLocation, SharedBuffer
from ...runtime.errors import EdlError, ProcessFailed
from ...teacher.backends import ModelSpec
from ...teacher.config import ServerConfig, http_listen
from ...teacher.identity import InstanceIdentity
from ...teacher.predictor_jobs import PredictorReady, RequestLabels
from ...teacher.recorder import Recorder
from ...teacher.request import BatchRequest
from ...teacher.servers.server import TeacherServer
from ...teacher.servers.servicer import InferenceServicer
from . import HOST, IN_FLIGHT, SendRequest, Transport, read_pages
from . import reply as make_reply

#: Name of the model and of the service.
MODEL: Final = "model"
_TIMEOUT_S: Final = 30.0


class _Instant:
    """A predictor pool and a batcher that labels batches immediately."""

    ready = True

    def __init__(self, batch: Array) -> None:
        self.inputs = Arena.create()
        spec = ModelSpec(
            platform="none",
            inputs=(TensorSpec("x", datatype_of(batch.dtype), (FREE, *batch.shape[1:])),),
            outputs=(TensorSpec("y", "FP32", (FREE, make_reply().shape[1])),),
            content_id="",
            numerics=("none",),
        )
        self._loaded = PredictorReady(spec, 0.0, micro_batch=batch.shape[0])
        self._reply = make_reply()

    def require_loaded(self) -> PredictorReady:
        return self._loaded

    def submit(self, request: BatchRequest) -> Future[RequestLabels]:
        read_pages(request.inputs["x"])
        labels = Future[RequestLabels]()
        labels.set_result(RequestLabels({"y": self._reply[: request.samples]}, 0.0))
        return labels


def _serve(batch: Array, tls: TlsFiles | None) -> int:
    tune_allocator()
    recorder = Recorder()
    instant: Any = _Instant(batch)
    servicer = InferenceServicer(InstanceIdentity(MODEL, "", 1), instant, instant, recorder)
    security = None if tls is None else ServerSecurity(tls=tls)
    config = ServerConfig(slots=IN_FLIGHT, http=http_listen(None, HOST), security=security)
    server = TeacherServer(
        config, servicer, AccessControl(security, recorder.count_refusal), recorder
    )
    server.start()
    return server.port


def _client_of(port: int, tls: TlsFiles | None) -> OipGrpcClient:
    """Return a reader's client of the server at `port`, after a successful probe."""
    tune_allocator()
    security = None if tls is None else ClientSecurity(tls=TlsFiles(ca=tls.certificate))
    client = OipGrpcClient(f"{HOST}:{port}", MODEL, security)
    client.probe(_TIMEOUT_S)
    return client


def _connect_grpc(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    client = _client_of(port, tls)

    def send_request(_: int) -> None:
        client.infer(LabelRequest({"x": batch}), _TIMEOUT_S)

    return send_request


def _connect(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    return _sender(_client_of(port, tls), batch, None)


def _connect_sharing(port: int, batch: Array, tls: TlsFiles | None) -> SendRequest:
    return _sender(_client_of(port, tls), batch, SharedBuffer.create())


GRPC: Final = Transport(_serve, _connect_grpc)
OWN: Final = Transport(_serve, _connect)
SHARED: Final = Transport(_serve, _connect_sharing)


def _sender(client: OipGrpcClient, batch: Array, buffer: SharedBuffer | None) -> SendRequest:
    """Return a function that sends `batch`, over one connection for each thread.

    Args:
        client: client of the server.
        batch: the batch to send.
        buffer: shared memory for the batch, so that only its location is sent; None: send bytes.

    Raises:
        ProcessFailed: the server does not offer our transport.
    """
    locations = {}
    if buffer is not None:
        ref = buffer.put([batch]).arrays[0]
        batch = buffer.get(ref)
        generation, generation_at = buffer.generation(ref.offset), ref.offset - GENERATION_BYTES
        locations = {"x": BufferLocation(ref.offset, generation, generation_at)}
    request = LabelRequest({"x": batch})
    connections = []
    for _ in range(IN_FLIGHT):
        if (connection := client.connect(buffer)) is None:
            raise ProcessFailed("the teacher does not offer our transport")
        connections.append((connection, select.poll(), itertools.count()))

    def send_request(number: int) -> None:
        connection, poll, requests = connections[number]
        connection.put(next(requests), request, _TIMEOUT_S, locations)
        _wait(connection, poll)

    return send_request


def _wait(connection: TransportConnection, poll: select.poll) -> None:
    while True:
        connection.send()
        events = select.POLLIN | (select.POLLOUT if connection.unsent else 0)
        poll.register(connection.fileno(), events)
        poll.poll()
        for answer in connection.receive():
            if isinstance(answer.outcome, EdlError):
                raise answer.outcome
            return
