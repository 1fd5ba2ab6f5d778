"""Answers the methods of the Open Inference Protocol, each by a few lines; knows no sockets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

from .. import __version__
from ..errors import EdlError, RequestRefused
from ..proto import inference_pb2 as pb
from ..proto import tensors
from ..proto.datatypes import to_bytes
from ..proto.forms import Form
from ..proto.places import Place
from .identity import Identity
from .model import ModelSpec
from .predictor_session import Answer, Ready
from .shared_memory.regions import SharedMemory
from .shared_memory.visitors import Visitor
from .statistics import Statistics
from .traffic import Traffic
from .validation import MODEL_VERSION, check_model, check_request
from .wanted import Wanted

#: What is spoken beyond the protocol itself, by the names that Triton has for it.
EXTENSIONS: Final = (
    "model_repository",
    "statistics",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
)

Request = tensors.InferRequest
Response = tensors.InferResponse

_T = TypeVar("_T")


class Labeller(Protocol):
    """What labels batches; `Batcher` is the one."""

    @property
    def ready(self) -> bool:
        """Whether it takes batches now."""
        ...

    @property
    def lanes(self) -> int:
        """Batches that are labelled side by side."""
        ...

    @property
    def t_t_s(self) -> float:
        """Device time in seconds per sample of one lane; asked once the model is known."""
        ...

    def require_loaded(self) -> Ready:
        """The model; raises RetryableError while it is not known."""
        ...

    def label(
        self,
        inputs: Mapping[str, tensors.Array],
        outputs: Sequence[Wanted],
        deadline_s: float | None = None,
    ) -> AbstractContextManager[Answer]:
        """Have one batch labelled before `deadline_s`; raises errors of `TeacherError`'s family."""
        ...


class Servicer:
    """The protocol's methods over one model. Every method raises errors of `errors` only.

    Attributes:
        memory: regions of shared memory that callers have registered.
    """

    def __init__(
        self,
        identity: Identity,
        labeller: Labeller,
        traffic: Traffic,
        memory: SharedMemory | None = None,
    ) -> None:
        self.memory = memory or SharedMemory()
        self._identity = identity
        self._labeller = labeller
        self._traffic = traffic
        self._statistics = Statistics()

    def server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._labeller.ready)

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        check_model(request.name, request.version, self._identity.service)
        return pb.ModelReadyResponse(ready=self._labeller.ready)

    def server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name="edl-teacher", version=__version__, extensions=EXTENSIONS
        )

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

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        name = self._identity.service
        check_model(request.name or name, request.version, name)
        return pb.ModelStatisticsResponse(
            model_stats=[self._statistics.message(name, MODEL_VERSION)]
        )

    def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        state, reason = self._state()
        if request.repository_name or (request.ready and state != "READY"):
            return pb.RepositoryIndexResponse()
        model = pb.RepositoryIndexResponse.ModelIndex(
            name=self._identity.service, version=MODEL_VERSION, state=state, reason=reason
        )
        return pb.RepositoryIndexResponse(models=[model])

    def shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest, visitor: Visitor
    ) -> pb.SystemSharedMemoryStatusResponse:
        answer = pb.SystemSharedMemoryStatusResponse()
        for name, segment in self.memory.status(visitor, request.name).items():
            region = answer.regions[name]
            region.name, region.key = name, segment.key
            region.offset, region.byte_size = segment.offset, segment.nbytes
        return answer

    def shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, visitor: Visitor
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self.memory.register(
            visitor, request.name, request.key, offset=request.offset, nbytes=request.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    def shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, visitor: Visitor
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self.memory.unregister(visitor, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def model_infer(self, data: bytes, visitor: Visitor, deadline_s: float | None = None) -> bytes:
        """Label one batch: `ModelInferRequest` to `ModelInferResponse`, both serialised."""
        return self.infer(partial(tensors.decode_request, data), _encode, visitor, deadline_s)

    def infer(
        self,
        decode: Callable[[tensors.Read], Request],
        encode: Callable[[Request, Response, Collection[str]], _T],
        visitor: Visitor,
        deadline_s: float | None = None,
    ) -> _T:
        """Label one batch.

        Args:
            decode: gives the request, told how to read what lies in shared memory.
            encode: makes the answer of the request, the response whose arrays are valid until it
                returns, and the names of the outputs that lie in shared memory by now.
            visitor: whose request it is.
            deadline_s: on the monotonic clock: it is not computed after that; None: at any time.
        """
        with self._traffic.request(), self._statistics.request() as stages:
            request = decode(partial(self.memory.read, visitor))
            self._identity.check(request.parameters)
            check_model(request.model_name, request.model_version, self._identity.service)
            spec = self._labeller.require_loaded().spec
            wanted = check_request(request, spec)
            places = _places(request)
            stages.read()
            with self._labeller.label(request.inputs, wanted, deadline_s) as answer:
                samples = len(next(iter(request.inputs.values())))
                stages.labelled(samples, answer.device_seconds)
                self._traffic.count_answer(samples, answer.device_seconds)
                said = self._put(answer.outputs, places, visitor)
                response = Response(
                    model_name=self._identity.service,
                    model_version=MODEL_VERSION,
                    request_id=request.request_id,
                    outputs=dict(answer.outputs),
                    output_parameters=_told(wanted, spec, said),
                    parameters={
                        "teacher_id": self._identity.teacher_id,
                        "incarnation": str(self._identity.incarnation),
                        "content_id": spec.content_id,
                        "numerics_id": spec.numerics_id,
                        "device_seconds": answer.device_seconds,
                        "draining": self._identity.draining,
                    },
                )
                return encode(request, response, said)

    def _put(
        self, outputs: Mapping[str, tensors.Array], places: Mapping[str, Place], visitor: Visitor
    ) -> dict[str, dict[str, tensors.Parameter]]:
        """Write outputs to where the caller wants them; what the answer says of each place."""
        said = {}
        for name, place in places.items():
            data = to_bytes(outputs[name])
            self.memory.write(visitor, place, data)
            said[name] = replace(place, nbytes=len(data)).parameters()
        return said

    def _state(self) -> tuple[str, str]:
        """Whether the model takes requests, in the protocol's word, and why it does not."""
        if self._labeller.ready:
            return "READY", ""
        try:
            self._labeller.require_loaded()
        except EdlError as error:
            return "LOADING", str(error)
        return "UNAVAILABLE", "the predictor is restarting"


def _encode(_: Request, response: Response, elsewhere: Collection[str]) -> bytes:
    return tensors.encode_response(
        model_name=response.model_name,
        model_version=response.model_version,
        request_id=response.request_id,
        outputs=response.outputs,
        parameters=response.parameters,
        output_parameters=response.output_parameters,
        elsewhere=elsewhere,
    )


def _places(request: Request) -> dict[str, Place]:
    """Where outputs are wanted that are not to travel.

    Raises:
        WireError: a place is impossible.
        RequestRefused: an output that has several parts cannot lie in one place.
    """
    places = {}
    for name, parameters in request.output_parameters.items():
        if (place := Place.named_by(parameters)) is None:
            continue
        form = Form.named_by(parameters, request.parameters)
        if form is not None and form.k:
            raise RequestRefused(
                f"output {name!r} is asked for as {form}, in several parts, which cannot lie in "
                "one place of shared memory: ask for it without"
            )
        places[name] = place
    return places


def _told(
    wanted: Sequence[Wanted],
    spec: ModelSpec,
    places: Mapping[str, dict[str, tensors.Parameter]],
) -> dict[str, dict[str, tensors.Parameter]]:
    """What an answer says of its outputs: their forms, and where they lie."""
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    told = {
        part: form for one in wanted for part, form in one.parameters(outputs[one.name]).items()
    }
    for name, place in places.items():
        told[name] = {**told.get(name, {}), **place}
    return told
