"""The lane of gRPC with our codec: a teacher's socket side with an instant model.

The model answers in the event loop: the way to a real model and back, through the batcher's threads
and another process, is not part of the transport.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from ...proto.arena import Arena, Array, tune_allocator
from ...proto.clients import LabelRequest
from ...proto.clients.oip_grpc import OipGrpcClient
from ...proto.datatypes import FREE, TensorSpec, datatype_of
from ...proto.security import AccessControl, ClientSecurity, ServerSecurity, TlsFiles
from ...teacher.backends import ModelSpec
from ...teacher.config import ServerConfig, http_listen
from ...teacher.jobs import PredictorReady, RequestLabels
from ...teacher.recorder import Recorder
from ...teacher.registration import InstanceIdentity
from ...teacher.request import BatchRequest
from ...teacher.servers.server import TeacherServer
from ...teacher.servers.servicer import InferenceServicer
from . import HOST, IN_FLIGHT, Ask, look_at
from . import reply as make_reply

#: Name of the model and of the service.
MODEL: Final = "model"
TIMEOUT_S: Final = 30.0


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


def serve(batch: Array, tls: TlsFiles | None = None) -> int:
    """See `Lane`."""
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


def client_of(port: int, tls: TlsFiles | None) -> OipGrpcClient:
    """Return a reader's client of the server at `port`, after a successful probe."""
    tune_allocator()
    security = None if tls is None else ClientSecurity(tls=TlsFiles(ca=tls.certificate))
    client = OipGrpcClient(f"{HOST}:{port}", MODEL, security)
    client.probe(TIMEOUT_S)
    return client


def connect(port: int, batch: Array, tls: TlsFiles | None = None) -> Ask:
    """See `Lane`."""
    client = client_of(port, tls)

    def ask(_: int) -> None:
        client.infer(LabelRequest({"x": batch}), TIMEOUT_S)

    return ask
