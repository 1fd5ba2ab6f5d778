"""Implements the methods of the Open Inference Protocol, independent of sockets."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from ... import __version__
from ...proto import inference_pb2 as pb
from ...proto import tensors
from ...proto.arena import Array
from ...proto.clients import LabelResponse
from ...proto.datatypes import Parameter
from ...proto.shared_buffer import BufferRef
from ...proto.tensors import BufferReader, InferRequest, SlowToDecode
from ...runtime.errors import DeadlineExceeded, EdlError
from ..backends import ModelSpec
from ..batcher import Batcher
from ..config import ServerConfig
from ..identity import InstanceIdentity
from ..pool import PredictorPool
from ..predictor_jobs import RequestLabels
from ..recorder import CallRecord, Recorder, RequestTiming
from ..request import (
    MODEL_VERSION,
    BatchRequest,
    InputBuffers,
    RequestedOutput,
    check_inputs,
    check_model,
    check_request,
    deadline_of,
    form_parameters,
)
from .admission import AccessLevel, CallAdmission
from .callers import CallerIdentity
from .shared_regions import SharedMemoryRegions, output_buffers, write_outputs

_T = TypeVar("_T")
_Answer_co = TypeVar("_Answer_co", covariant=True)


async def in_thread(work: Callable[[], _T], executor: Executor | None = None) -> _T:
    """Run `work` in a thread; when cancelled, wait until `work` ends, then raise.

    So the caller may free the memory that `work` uses as soon as this returns or raises.
    """
    doing = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        raise
    finally:
        del doing  # breaks a reference cycle: its exception refers to this frame


#: Supported extensions of the protocol, by Triton's names.
EXTENSIONS: Final = (
    "model_repository",
    "statistics",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
)

#: Larger outputs are encoded in a thread, not in the event loop.
QUICK_BYTES: Final = 1 << 20


class InferCodec(Protocol[_Answer_co]):
    """Decodes one request for labels and encodes its answer; slow steps run in a thread."""

    @property
    def executor(self) -> Executor | None:
        """The executor that decodes slow requests; None for the event loop's default executor."""

    def decode(self, read: BufferReader, *, refuse_slow: bool = False) -> InferRequest:
        """Decode the request; with `refuse_slow`, raise SlowToDecode if that takes long.

        Args:
            read: reads inputs that lie in shared memory.
            refuse_slow: whether the caller is the event loop, which must not block.
        """

    def is_quick_to_encode(self, request: InferRequest, name: str, array: Array) -> bool:
        """Whether this output of the answer is encoded quickly."""

    def encode(
        self, request: InferRequest, response: LabelResponse, in_shared_memory: Collection[str]
    ) -> tuple[_Answer_co, int]:
        """Encode the answer; return it and its size in bytes.

        Outputs in `in_shared_memory` have been written there already. The arrays of `response` are
        valid until this returns.
        """


#: The largest request of the methods that take no tensors.
MAX_SMALL_REQUEST_BYTES: Final = 64 << 10


class ServicerMethod(NamedTuple):
    """A method that is answered in the event loop, without waiting.

    Attributes:
        access: who may call it.
        request: the type of its request.
        answer: returns the response, given the request and the caller.
    """

    access: AccessLevel
    request: type[Message]
    answer: Callable[[Any, CallerIdentity], Message]


class ServerContext(NamedTuple):
    """Objects that the protocols of one server share.

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


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """The result of checking a request, but not its arrays, against the model.

    It is valid for all requests with the same parameters and the same names of inputs and outputs.

    Attributes:
        model: the model that it was checked against.
        outputs: the requested outputs, in their order.
        parameters: parameters of each answer.
        output_parameters: parameters of each array in an answer, by the array's name. A top-k
            output is sent as three arrays: NAME.values, NAME.indices and NAME.tail.
    """

    model: ModelSpec
    outputs: tuple[RequestedOutput, ...]
    parameters: Mapping[str, Parameter]
    output_parameters: Mapping[str, dict[str, Parameter]]


class InferenceServicer:
    """The protocol's methods for one model. They raise only EdlErrors.

    Attributes:
        identity: identity of this teacher.
        memory: regions of shared memory that callers have registered.
        pool: the predictors of the model.
        methods: all methods by name, except ModelInfer and ModelStreamInfer.
    """

    def __init__(
        self,
        identity: InstanceIdentity,
        pool: PredictorPool,
        batcher: Batcher,
        recorder: Recorder,
        memory: SharedMemoryRegions | None = None,
    ) -> None:
        self.memory = memory or SharedMemoryRegions()
        self.identity = identity
        self.pool = pool
        self._batcher = batcher
        self._recorder = recorder
        methods: dict[str, tuple[AccessLevel, Callable[[Any, CallerIdentity], Message]]] = {
            "ServerLive": ("anybody", self._server_live),
            "ServerReady": ("anybody", self._server_ready),
            "ServerMetadata": ("authenticated", self._server_metadata),
            "ModelReady": ("authenticated", self._model_ready),
            "ModelMetadata": ("authenticated", self._model_metadata),
            "ModelStatistics": ("authenticated", self._model_statistics),
            "RepositoryIndex": ("authenticated", self._repository_index),
            "SystemSharedMemoryStatus": ("student", self._shared_memory_status),
            "SystemSharedMemoryRegister": ("student", self._shared_memory_register),
            "SystemSharedMemoryUnregister": ("student", self._shared_memory_unregister),
        }
        self.methods = {
            name: ServicerMethod(access, getattr(pb, f"{name}Request"), answer)
            for name, (access, answer) in methods.items()
        }

    def _server_live(self, _: pb.ServerLiveRequest, __: CallerIdentity) -> Message:
        return pb.ServerLiveResponse(live=True)

    def _server_ready(self, _: pb.ServerReadyRequest, __: CallerIdentity) -> Message:
        return pb.ServerReadyResponse(ready=self.pool.ready)

    def _model_ready(self, request: pb.ModelReadyRequest, _: CallerIdentity) -> Message:
        check_model(request.name, request.version, self.identity.service)
        return pb.ModelReadyResponse(ready=self.pool.ready)

    def _server_metadata(self, _: pb.ServerMetadataRequest, __: CallerIdentity) -> Message:
        return pb.ServerMetadataResponse(
            name="edl-teacher", version=__version__, extensions=EXTENSIONS
        )

    def _model_metadata(self, request: pb.ModelMetadataRequest, _: CallerIdentity) -> Message:
        check_model(request.name, request.version, self.identity.service)
        spec = self.pool.require_loaded().spec
        tensor = pb.ModelMetadataResponse.TensorMetadata
        return pb.ModelMetadataResponse(
            name=self.identity.service,
            versions=[MODEL_VERSION],
            platform=spec.platform,
            inputs=[tensor(name=t.name, datatype=t.datatype, shape=t.shape) for t in spec.inputs],
            outputs=[
                tensor(name=t.name, datatype=t.datatype, shape=t.shape, output_kind=t.kind or None)
                for t in spec.outputs
            ],
        )

    def _model_statistics(self, request: pb.ModelStatisticsRequest, _: CallerIdentity) -> Message:
        name = self.identity.service
        check_model(request.name or name, request.version, name)
        return pb.ModelStatisticsResponse(
            model_stats=[self._recorder.statistics(name, MODEL_VERSION)]
        )

    def _repository_index(self, request: pb.RepositoryIndexRequest, _: CallerIdentity) -> Message:
        state, reason = self._state()
        if request.repository_name or (request.ready and state != "READY"):
            return pb.RepositoryIndexResponse()
        model = pb.RepositoryIndexResponse.ModelIndex(
            name=self.identity.service, version=MODEL_VERSION, state=state, reason=reason
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

        The other arguments are those of `infer`.
        """
        return await self.infer(_ProtobufCodec(data), caller, deadline_s, entry, len(data))

    async def infer(
        self,
        codec: InferCodec[_T],
        caller: CallerIdentity,
        deadline_s: float | None,
        entry: CallRecord,
        nbytes: int,
    ) -> _T:
        """Label one batch without blocking the event loop.

        Args:
            codec: decodes the request, and encodes the answer.
            caller: who sent the request.
            deadline_s: deadline of the call on the monotonic clock; None for none. The request may
                have an earlier one.
            entry: the record of the call.
            nbytes: size of the request.
        """
        arrived_s = time.monotonic()
        with entry.start_timing(nbytes) as timing:
            try:
                request = codec.decode(_refuse_to_read, refuse_slow=True)
            except SlowToDecode:
                read = partial(self.memory.read, caller)
                request = await in_thread(partial(codec.decode, read), codec.executor)
            entry.model, entry.request_id = request.model_name, request.request_id
            spec = self.spec_of(request)
            output_refs = output_buffers(request)
            deadline_s = deadline_of(request, deadline_s, arrived_s)
            labels = await self.label(spec, request.inputs, deadline_s, timing)
            try:
                samples = len(next(iter(request.inputs.values())))
                timing.labels_ready(samples, labels.device_seconds)
                refs: dict[str, dict[str, Parameter]] = {}
                if output_refs:
                    refs = await in_thread(
                        partial(write_outputs, self.memory, caller, labels.outputs, output_refs)
                    )
                spec_parameters = spec.output_parameters
                response = LabelResponse(
                    model_name=self.identity.service,
                    model_version=MODEL_VERSION,
                    request_id=request.request_id,
                    outputs=labels.outputs,
                    output_parameters={
                        **spec_parameters,
                        **{
                            name: {**spec_parameters.get(name, {}), **ref}
                            for name, ref in refs.items()
                        },
                    },
                    parameters={
                        **spec.parameters,
                        "device_seconds": labels.device_seconds,
                        "draining": self.identity.draining,
                    },
                )
                encode = partial(codec.encode, request, response, refs)
                is_quick = all(
                    name in refs or codec.is_quick_to_encode(request, name, array)
                    for name, array in response.outputs.items()
                )
                answer, entry.sent_bytes = encode() if is_quick else await in_thread(encode)
                return answer
            finally:
                labels.release()

    def spec_of(self, request: InferRequest) -> RequestSpec:
        """Check everything in a request except its arrays and deadline.

        Raises:
            WrongInstance: it is for another teacher.
            RequestRefused: it does not fit the model.
            RetryableError: the model is loading.
        """
        self.identity.check(request.parameters)
        check_model(request.model_name, request.model_version, self.identity.service)
        model = self.pool.require_loaded().spec
        outputs = check_request(request, model)
        parameters: dict[str, Parameter] = {
            "teacher_id": self.identity.teacher_id,
            "incarnation": str(self.identity.incarnation),
            "content_id": model.content_id,
            "numerics_id": model.numerics_id,
        }
        return RequestSpec(model, outputs, parameters, form_parameters(outputs, model))

    async def label(
        self,
        spec: RequestSpec,
        inputs: Mapping[str, Array],
        deadline_s: float,
        timing: RequestTiming,
        buffers: InputBuffers | None = None,
    ) -> RequestLabels:
        """Label one batch; if the caller is cancelled or late, the labels are released.

        Args:
            spec: the result of `spec_of`.
            inputs: arrays by name, with the names of the checked request.
            deadline_s: on the monotonic clock.
            timing: of the request.
            buffers: the inputs, if they are in the memory of `pool`; else None.

        Returns:
            The labels, which the caller must release.

        Raises:
            DeadlineExceeded: the deadline passed before the model answered.
        """
        check_inputs(inputs, spec.model)
        timing.inputs_read()
        refs = None if buffers is None else buffers.refs
        labels = self._batcher.submit(BatchRequest(inputs, spec.outputs, deadline_s, refs))
        if buffers is not None:
            buffers.free_after(labels)
        left_s = None if deadline_s == math.inf else deadline_s - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                return labels.result() if labels.done() else await asyncio.wrap_future(labels)
        except (asyncio.CancelledError, TimeoutError) as error:
            labels.add_done_callback(_release_labels)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded("the deadline passed before the model answered") from None
            raise
        finally:
            # An exception refers to this frame, and the future to the exception. Breaking the
            # cycle frees the request without the garbage collector.
            del labels

    def _state(self) -> tuple[str, str]:
        """Return the state of the model in the protocol's words, and why it is not READY."""
        if self.pool.ready:
            return "READY", ""
        try:
            self.pool.require_loaded()
        except EdlError as error:
            return "LOADING", str(error)
        return "UNAVAILABLE", "the predictor is restarting"


def _refuse_to_read(_: BufferRef) -> memoryview:
    """Refuse to copy an input from shared memory in the event loop."""
    raise SlowToDecode


def _release_labels(labels: Future[RequestLabels]) -> None:
    if not labels.cancelled() and labels.exception() is None:
        labels.result().release()


class _ProtobufCodec(NamedTuple):
    """A serialised `ModelInferRequest`, to be answered with a serialised `ModelInferResponse`."""

    data: bytes
    executor: None = None

    def decode(self, read: BufferReader, *, refuse_slow: bool = False) -> InferRequest:
        return tensors.decode_request(self.data, read, refuse_slow=refuse_slow)

    def is_quick_to_encode(self, _: InferRequest, __: str, array: Array) -> bool:
        return array.nbytes <= QUICK_BYTES and not array.dtype.hasobject

    def encode(
        self, _: InferRequest, response: LabelResponse, in_shared_memory: Collection[str]
    ) -> tuple[bytes, int]:
        data = tensors.encode_response(response, in_shared_memory)
        return data, len(data)
