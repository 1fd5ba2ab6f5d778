"""Lanes to a teacher's socket side with an instant model: by gRPC, and by our own transport.

Our own transport sends frames over TCP, received where the predictor reads them, or only the
location of a batch in shared memory. The model answers in the event loop: the way to a real model
and back, through the batcher's threads and another process, is not part of the transport.
"""

from __future__ import annotations

import itertools
import select
from concurrent.futures import Future
from typing import Final

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
from ...teacher.jobs import PredictorReady, RequestLabels
from ...teacher.recorder import Recorder
from ...teacher.registration import InstanceIdentity
from ...teacher.request import BatchRequest
from ...teacher.servers.server import TeacherServer
from ...teacher.servers.servicer import InferenceServicer
from . import HOST, IN_FLIGHT, Ask, Lane, look_at
from . import reply as make_reply

#: Name of the model and of the service.
MODEL: Final = "model"
_TIMEOUT_S: Final = 30.0


class _Instant:
    """A predictor pool that labels batches immediately."""

    ready = True

    def __init__(self, batch: Array) -> None:
        self.memory = Arena.create()
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
        look_at(request.inputs["x"])
        labels = Future[RequestLabels]()
        labels.set_result(RequestLabels({"y": self._reply[: request.samples]}, 0.0))
        return labels


def _serve(batch: Array, tls: TlsFiles | None) -> int:
    tune_allocator()
    recorder = Recorder()
    servicer = InferenceServicer(InstanceIdentity(MODEL, "", 1), _Instant(batch), recorder)
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


def _connect_grpc(port: int, batch: Array, tls: TlsFiles | None) -> Ask:
    client = _client_of(port, tls)

    def ask(_: int) -> None:
        client.infer(LabelRequest({"x": batch}), _TIMEOUT_S)

    return ask


def _connect(port: int, batch: Array, tls: TlsFiles | None) -> Ask:
    return _asking(_client_of(port, tls), batch, None)


def _connect_sharing(port: int, batch: Array, tls: TlsFiles | None) -> Ask:
    return _asking(_client_of(port, tls), batch, SharedBuffer.create())


GRPC: Final = Lane(_serve, _connect_grpc)
OWN: Final = Lane(_serve, _connect)
SHARED: Final = Lane(_serve, _connect_sharing)


def _asking(client: OipGrpcClient, batch: Array, arena: SharedBuffer | None) -> Ask:
    """Return a function that sends `batch`, over one connection for each thread.

    Args:
        client: client of the server.
        batch: the batch to send.
        arena: shared memory for the batch, so that only its location is sent; None: send bytes.

    Raises:
        ProcessFailed: the server does not offer our transport.
    """
    locations = {}
    if arena is not None:
        ref = arena.put([batch]).arrays[0]
        batch = arena.get(ref)
        generation, generation_at = arena.generation(ref.offset), ref.offset - GENERATION_BYTES
        locations = {"x": BufferLocation(ref.offset, generation, generation_at)}
    request = LabelRequest({"x": batch})
    connections = []
    for _ in range(IN_FLIGHT):
        if (connection := client.connect(arena)) is None:
            raise ProcessFailed("the teacher offers no connection")
        connections.append((connection, select.poll(), itertools.count()))

    def ask(number: int) -> None:
        connection, poll, requests = connections[number]
        connection.put(next(requests), request, _TIMEOUT_S, locations)
        _wait(connection, poll)

    return ask


def _wait(connection: TransportConnection, poll: select.poll) -> None:
    while True:
        connection.send()
        wanted = select.POLLIN | (select.POLLOUT if connection.unsent else 0)
        poll.register(connection.fileno(), wanted)
        poll.poll()
        for heard in connection.receive():
            if isinstance(heard.outcome, EdlError):
                raise heard.outcome
            return
