"""Implements the methods of the Open Inference Protocol, independent of sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from google.protobuf.message import Message

from ... import __version__
from ...errors import EdlError, RetryableError
from ...proto import inference_pb2 as pb
from ...proto import tensors
from ...proto.arena import Arena
from ...proto.datatypes import Parameter
from ...proto.tensors import InferRequest, InferResponse
from ..batcher import Labeller
from ..config import ServerConfig
from ..jobs import RequestLabels
from ..recorder import CallRecord, Recorder
from ..registration import InstanceIdentity
from ..request import (
    MODEL_VERSION,
    BatchRequest,
    InputBuffers,
    check_model,
    check_request,
    deadline_of,
    form_parameters,
)
from .admission import AccessLevel, CallAdmission
from .callers import CallerIdentity
from .shared_regions import RegionReader, SharedMemoryRegions, output_buffers, write_outputs

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run `work` in a thread. A cancelled caller still waits for its end.

    So the memory that `work` uses can be freed after this returns or raises.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        raise
    finally:
        del doing  # its exception refers to this frame: breaks the reference cycle


#: Supported extensions of the protocol, by Triton's names.
EXTENSIONS: Final = (
    "model_repository",
    "statistics",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
)

#: Larger outputs are not copied in the event loop.
_LIGHT_BYTES: Final = 1 << 20


class ServicerMethod(NamedTuple):
    """A method that is answered at once.

    Attributes:
        right: who may call it.
        request: the type of its request.
        answer: returns the response for a caller.
    """

    right: AccessLevel
    request: type[Message]
    answer: Callable[[Any, CallerIdentity], Message]


class ServerContext(NamedTuple):
    """What the protocols of one server share.

    Attributes:
        config: the limits.
        servicer: answers requests.
        admission: authenticates callers and limits calls.
        recorder: records every call.
    """

    config: ServerConfig
    servicer: InferenceServicer
    admission: CallAdmission
    recorder: Recorder


class InferenceServicer:
    """The protocol's methods for one model. All methods raise errors of `errors` only.

    Attributes:
        memory: regions of shared memory that callers have registered.
        methods: all methods by name, but `model_infer`.
    """

    def __init__(
        self,
        identity: InstanceIdentity,
        labeller: Labeller,
        recorder: Recorder,
        memory: SharedMemoryRegions | None = None,
    ) -> None:
        self.memory = memory or SharedMemoryRegions()
        self._identity = identity
        self._labeller = labeller
        self._recorder = recorder
        self.methods = {
            "ServerLive": ServicerMethod("anybody", pb.ServerLiveRequest, self._server_live),
            "ServerReady": ServicerMethod("anybody", pb.ServerReadyRequest, self._server_ready),
            "ServerMetadata": ServicerMethod(
                "known", pb.ServerMetadataRequest, self._server_metadata
            ),
            "ModelReady": ServicerMethod("known", pb.ModelReadyRequest, self._model_ready),
            "ModelMetadata": ServicerMethod("known", pb.ModelMetadataRequest, self._model_metadata),
            "ModelStatistics": ServicerMethod(
                "known", pb.ModelStatisticsRequest, self._model_statistics
            ),
            "RepositoryIndex": ServicerMethod(
                "known", pb.RepositoryIndexRequest, self._repository_index
            ),
            "SystemSharedMemoryStatus": ServicerMethod(
                "student", pb.SystemSharedMemoryStatusRequest, self._shared_memory_status
            ),
            "SystemSharedMemoryRegister": ServicerMethod(
                "student", pb.SystemSharedMemoryRegisterRequest, self._shared_memory_register
            ),
            "SystemSharedMemoryUnregister": ServicerMethod(
                "student", pb.SystemSharedMemoryUnregisterRequest, self._shared_memory_unregister
            ),
        }

    def _server_live(self, _: pb.ServerLiveRequest, __: CallerIdentity) -> Message:
        return pb.ServerLiveResponse(live=True)

    def _server_ready(self, _: pb.ServerReadyRequest, __: CallerIdentity) -> Message:
        return pb.ServerReadyResponse(ready=self._labeller.ready)

    def _model_ready(self, request: pb.ModelReadyRequest, _: CallerIdentity) -> Message:
        check_model(request.name, request.version, self._identity.service)
        return pb.ModelReadyResponse(ready=self._labeller.ready)

    def _server_metadata(self, _: pb.ServerMetadataRequest, __: CallerIdentity) -> Message:
        return pb.ServerMetadataResponse(
            name="edl-teacher", version=__version__, extensions=EXTENSIONS
        )

    def proof(self, metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Trailing metadata of `ServerMetadata`, which proves this instance."""
        return self._identity.proof(metadata)

    def _model_metadata(self, request: pb.ModelMetadataRequest, _: CallerIdentity) -> Message:
        check_model(request.name, request.version, self._identity.service)
        spec = self._labeller.require_loaded().spec
        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=self._identity.service,
            versions=[MODEL_VERSION],
            platform=spec.platform,
            inputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in spec.inputs],
            outputs=[
                tensor(name=t.name, datatype=t.datatype, shape=t.shape, output_kind=t.kind or None)
                for t in spec.outputs
            ],
        )

    def _model_statistics(self, request: pb.ModelStatisticsRequest, _: CallerIdentity) -> Message:
        name = self._identity.service
        check_model(request.name or name, request.version, name)
        return pb.ModelStatisticsResponse(
            model_stats=[self._recorder.statistics(name, MODEL_VERSION)]
        )

    def _repository_index(self, request: pb.RepositoryIndexRequest, _: CallerIdentity) -> Message:
        state, reason = self._state()
        if request.repository_name or (request.ready and state != "READY"):
            return pb.RepositoryIndexResponse()
        model = pb.RepositoryIndexResponse.ModelIndex(
            name=self._identity.service, version=MODEL_VERSION, state=state, reason=reason
        )
        return pb.RepositoryIndexResponse(models=[model])

    def _shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest, caller: CallerIdentity
    ) -> Message:
        answer = pb.SystemSharedMemoryStatusResponse()
        for name, segment in self.memory.status(caller, request.name).items():
            region = answer.regions[name]
            region.name, region.key = name, segment.key
            region.offset, region.byte_size = segment.offset, segment.nbytes
        return answer

    def _shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, caller: CallerIdentity
    ) -> Message:
        self.memory.register(
            caller, request.name, request.key, offset=request.offset, nbytes=request.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    def _shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, caller: CallerIdentity
    ) -> Message:
        self.memory.unregister(caller, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def model_infer(
        self, data: bytes, caller: CallerIdentity, deadline_s: float | None, entry: CallRecord
    ) -> bytes:
        """Answer a serialised `ModelInferRequest` with a serialised `ModelInferResponse`.

        Args:
            data: the request.
            caller: as of `infer`.
            deadline_s: as of `infer`.
            entry: as of `infer`.
        """

        async def decode(reading: RegionReader) -> InferRequest:
            try:
                return tensors.decode_request(data, reading.read_in_place, light=True)
            except tensors.SlowToDecode:
                return await in_thread(tensors.decode_request, data, reading.read)

        return await self.infer(decode, _encode, caller, deadline_s, entry, len(data))

    async def infer(
        self,
        decode: Callable[[RegionReader], Awaitable[InferRequest]],
        encode: Callable[[InferRequest, InferResponse, Collection[str]], Awaitable[tuple[_T, int]]],
        caller: CallerIdentity,
        deadline_s: float | None,
        entry: CallRecord,
        nbytes: int,
        record: InputBuffers | None = None,
    ) -> _T:
        """Label one batch without blocking the event loop.

        Args:
            decode: returns the request, given a reader of shared memory.
            encode: encodes the answer and returns it with its size, given the request, the
                response, and the names of outputs in shared memory. The response's arrays are valid
                until it returns.
            caller: who sent the request.
            deadline_s: of the call, on the monotonic clock; None for none. The request may have an
                earlier one.
            entry: the record of the call.
            nbytes: size of the request.
            record: the inputs in `memory_of_inputs`; None if they are elsewhere.
        """
        with entry.timing(nbytes) as timing, _as_edl_errors():
            reading = RegionReader(self.memory, caller)
            request = await decode(reading)
            entry.model, entry.request_id = request.model_name, request.request_id
            self._identity.check(request.parameters)
            check_model(request.model_name, request.model_version, self._identity.service)
            spec = self._labeller.require_loaded().spec
            wanted = check_request(request, spec)
            output_refs = output_buffers(request)
            deadline_s = deadline_of(request, deadline_s, time.monotonic())
            timing.read()
            refs = None if record is None else record.refs
            batch = BatchRequest(request.inputs, wanted, deadline_s, refs)
            labels = self._labeller.submit(batch)
            if record is not None:
                record.submitted(labels)
            answer = await _taken(labels)
            try:
                reading.check()
                timing.labelled(batch.samples, answer.device_seconds)
                said = {}
                if output_refs:
                    said = await in_thread(
                        write_outputs, self.memory, caller, answer.outputs, output_refs
                    )
                response = InferResponse(
                    model_name=self._identity.service,
                    model_version=MODEL_VERSION,
                    request_id=request.request_id,
                    outputs=answer.outputs,
                    output_parameters=_with_places(form_parameters(wanted, spec), said),
                    parameters={
                        "teacher_id": self._identity.teacher_id,
                        "incarnation": str(self._identity.incarnation),
                        "content_id": spec.content_id,
                        "numerics_id": spec.numerics_id,
                        "device_seconds": answer.device_seconds,
                        "draining": self._identity.draining,
                    },
                )
                encoded, entry.sent_bytes = await encode(request, response, said)
                return encoded
            finally:
                answer.release()

    @property
    def memory_of_inputs(self) -> Arena:
        """The memory from which the predictors read inputs."""
        return self._labeller.memory

    def _state(self) -> tuple[str, str]:
        """Whether the model accepts requests, in the protocol's word, and the reason if not."""
        if self._labeller.ready:
            return "READY", ""
        try:
            self._labeller.require_loaded()
        except EdlError as error:
            return "LOADING", str(error)
        return "UNAVAILABLE", "the predictor is restarting"


@contextmanager
def _as_edl_errors() -> Iterator[None]:
    """Convert an unexpected error to RetryableError, for all protocols alike."""
    try:
        yield
    except EdlError:
        raise
    except Exception as error:
        log.exception("a request could not be answered")
        raise RetryableError(f"{type(error).__name__}: {error}") from error


async def _taken(labels: Future[RequestLabels]) -> RequestLabels:
    """Wait for the labels; if the caller is cancelled, they are released."""
    try:
        return labels.result() if labels.done() else await asyncio.wrap_future(labels)
    except asyncio.CancelledError:
        labels.add_done_callback(_give_back)
        raise
    finally:
        # An exception refers to this frame, and the future to the exception. Breaking the cycle
        # frees the request without the garbage collector.
        del labels


def _give_back(labels: Future[RequestLabels]) -> None:
    if not labels.cancelled() and labels.exception() is None:
        labels.result().release()


async def _encode(
    _: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[bytes, int]:
    outputs = response.outputs.values()
    if any(array.dtype.hasobject or array.nbytes > _LIGHT_BYTES for array in outputs):
        return await in_thread(_encoded, response, elsewhere)
    return _encoded(response, elsewhere)


def _encoded(response: InferResponse, elsewhere: Collection[str]) -> tuple[bytes, int]:
    data = tensors.encode_response(
        model_name=response.model_name,
        model_version=response.model_version,
        request_id=response.request_id,
        outputs=response.outputs,
        parameters=response.parameters,
        output_parameters=response.output_parameters,
        elsewhere=elsewhere,
    )
    return data, len(data)


def _with_places(
    told: Mapping[str, dict[str, Parameter]], output_refs: Mapping[str, dict[str, Parameter]]
) -> dict[str, dict[str, Parameter]]:
    """Parameters of the outputs in an answer: their forms and locations."""
    return {**told, **{name: {**told.get(name, {}), **ref} for name, ref in output_refs.items()}}
