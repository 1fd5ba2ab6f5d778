"""Answers the methods of the Open Inference Protocol, each by a few lines; knows no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from .. import __version__
from ..proto import inference_pb2 as pb
from ..proto import tensors
from .identity import Identity
from .predictor_session import Answer, Ready
from .traffic import Traffic
from .validation import MODEL_VERSION, check_model, check_request


class Labeller(Protocol):
    """What labels batches; `PredictorClient` is the one."""

    @property
    def ready(self) -> bool:
        """Whether it takes batches now."""
        ...

    def require_loaded(self) -> Ready:
        """The model; raises RetryableError while it is not known."""
        ...

    def label(
        self, inputs: Mapping[str, tensors.Array], outputs: Sequence[str]
    ) -> AbstractContextManager[Answer]:
        """Have one batch labelled; raises errors of `TeacherError`'s family."""
        ...


class Servicer:
    """The protocol's methods over one model. Every method raises errors of `errors` only."""

    def __init__(self, identity: Identity, labeller: Labeller, traffic: Traffic) -> None:
        self._identity = identity
        self._labeller = labeller
        self._traffic = traffic

    def server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._labeller.ready)

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        check_model(request.name, request.version, self._identity.service)
        return pb.ModelReadyResponse(ready=self._labeller.ready)

    def server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="edl-teacher", version=__version__)

    def proof(self, metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Metadata beside `server_metadata`, for who wants this instance proved."""
        return self._identity.proof(metadata)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        check_model(request.name, request.version, self._identity.service)
        spec = self._labeller.require_loaded().spec
        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=self._identity.service,
            versions=[MODEL_VERSION],
            platform=spec.platform,
            inputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in spec.inputs],
            outputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in spec.outputs],
        )

    def model_infer(self, data: bytes) -> bytes:
        """Label one batch: `ModelInferRequest` to `ModelInferResponse`, both serialised."""
        with self._traffic.request():
            return self._infer(data)

    def _infer(self, data: bytes) -> bytes:
        request = tensors.decode_request(data)
        self._identity.check(request.parameters)
        check_model(request.model_name, request.model_version, self._identity.service)
        spec = self._labeller.require_loaded().spec
        wanted = check_request(request, spec)
        with self._labeller.label(request.inputs, wanted) as answer:
            samples = len(next(iter(request.inputs.values())))
            self._traffic.count_answer(samples, answer.device_seconds)
            return tensors.encode_response(
                model_name=self._identity.service,
                model_version=MODEL_VERSION,
                request_id=request.request_id,
                outputs=answer.outputs,
                parameters={
                    "teacher_id": self._identity.teacher_id,
                    "incarnation": str(self._identity.incarnation),
                    "content_id": spec.content_id,
                    "numerics_id": spec.numerics_id,
                    "device_seconds": answer.device_seconds,
                    "draining": self._identity.draining,
                },
            )
