"""The session of a connection: the settings of its OPEN frames, and answers to its requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...proto import frames
from ...proto.arena import Array
from ...proto.datatypes import datatype_of, from_bytes, nbytes_of
from ...proto.frames import FramedTensor, FrameHeader, OpenFrame
from ...proto.shared_buffer import BufferLocation
from ...proto.tensors import InferRequest
from ...runtime.errors import EdlError, WireError
from ..predictor_jobs import RequestLabels
from ..request import InputBuffers, RequestTooLarge, deadline_of
from .callers import CallCredentials
from .reader_memory import ReaderMemory
from .servicer import RequestSpec

if TYPE_CHECKING:
    from .transport_listener import TransportListener


@dataclass(slots=True, eq=False)
class OpenedSession:
    """The settings of an OPEN frame, which hold for the requests after it.

    Attributes:
        opened: the frame.
        request: the common part of the requests, with empty arrays as inputs.
        memory: the memory of the reader; None without one.
        memory_error: why the memory that the frame names cannot be read.
        spec: result of the check of `request` for the latest model; None before the first request.
    """

    opened: OpenFrame
    request: InferRequest
    memory: ReaderMemory | None = None
    memory_error: EdlError | None = None
    spec: RequestSpec | None = None


@dataclass(slots=True, eq=False)
class FramedRequest:
    """A request as it came in a frame.

    Attributes:
        header: header of its frame.
        head: shapes of the inputs, and their locations in shared memory.
        opened_session: the settings of the latest OPEN frame before the request.
        buffers: its inputs; None if they are in the reader's memory.
        missing: the parts of `buffers` that have not been received yet.
    """

    header: FrameHeader
    head: bytes
    opened_session: OpenedSession
    buffers: InputBuffers | None = None
    missing: list[memoryview] = field(default_factory=list)

    def received(self, count: int) -> None:
        """Record that `count` bytes have been received into the first missing part."""
        rest = self.missing[0][count:]
        self.missing[:1] = [rest] if len(rest) else []


class TransportSession:
    """The session of one connection. Used only in the event loop.

    Args:
        listener: the listener that accepted the connection.
        credentials: of the caller; checked for each request.

    Attributes:
        opened_session: the settings of the latest OPEN frame; None before the first one, and when
            the connection is lost.
    """

    def __init__(self, listener: TransportListener, credentials: CallCredentials) -> None:
        self._listener = listener
        self._credentials = credentials
        self._protocol = "tcp" if credentials.uid is None else "local"
        # `AccessControl.revision` at the latest check of the credentials; at first, none has it.
        self._checked_revision = object()
        self.opened_session: OpenedSession | None = None
        self._described: tuple[object, ...] = ()  # content of the last description that was sent

    def open(self, payload: bytes) -> None:
        """Handle an OPEN frame; raises WireError if it is invalid."""
        opened = OpenFrame.read(payload)
        request = InferRequest(
            model_name=opened.model,
            parameters=opened.parameters,
            inputs=dict.fromkeys([tensor.name for tensor in opened.inputs], np.empty(0)),
            outputs=opened.outputs,
            output_parameters=opened.output_parameters,
        )
        self.opened_session = OpenedSession(opened, request)
        if opened.memory_key:
            try:
                self.opened_session.memory = ReaderMemory(
                    opened.memory_key, opened.memory_bytes, self._credentials.uid
                )
            except EdlError as error:
                self.opened_session.memory_error = error
        self._described = ()

    async def answer(self, request: FramedRequest) -> bytes:
        """Answer a request with a RESULT or an ERROR frame."""
        listener, header, opened_session = self._listener, request.header, request.opened_session
        servicer, buffers = listener.servicer, request.buffers
        try:
            with listener.recorder.call(
                self._protocol, "Label", self._credentials.address
            ) as entry:
                entry.received_bytes = header.nbytes or header.head_bytes
                entry.model, caller_id = opened_session.opened.model, opened_session.opened.caller
                entry.request_id = f"{caller_id}#{header.number}" if caller_id else ""
                self._check_credentials()
                with entry.start_timing(entry.received_bytes) as timing:
                    memory, locations = opened_session.memory, list[BufferLocation]()
                    if buffers is None:
                        if memory is None:
                            raise opened_session.memory_error or WireError("no memory was opened")
                        max_bytes = listener.config.max_message_bytes
                        arrays, locations = _in_memory(
                            memory, request.head, opened_session.opened, max_bytes
                        )
                    else:
                        arrays = buffers.arrays
                        _check_booleans(opened_session.opened.inputs, arrays)
                    model = servicer.pool.require_loaded().spec
                    spec = opened_session.spec
                    if spec is None or spec.model is not model:
                        spec = opened_session.spec = servicer.spec_of(opened_session.request)
                    now = time.monotonic()
                    call_deadline_s = now + header.seconds if header.seconds > 0 else None
                    deadline_s = deadline_of(opened_session.request, call_deadline_s, now)
                    inputs = dict(zip(opened_session.request.inputs, arrays, strict=True))
                    labels = await servicer.label(spec, inputs, deadline_s, timing, buffers)
                    try:
                        if memory is not None:
                            memory.check(locations)
                        timing.labels_ready(len(arrays[0]), labels.device_seconds)
                        frame = self._result(header.number, spec, labels)
                        entry.sent_bytes = len(frame)
                        return frame
                    finally:
                        labels.release()
        except EdlError as error:
            listener.recorder.refused(error)
            memory_fails = buffers is None and opened_session.memory is None
            return frames.error_frame(header.number, error, shared_memory_failed=memory_fails)

    def _result(self, number: int, spec: RequestSpec, labels: RequestLabels) -> bytes:
        outputs, description = labels.outputs, b""
        described = (spec, [(name, array.dtype, array.ndim) for name, array in outputs.items()])
        if described != self._described:  # else the reader has the description already
            tensors = tuple(
                FramedTensor(
                    name,
                    datatype_of(array.dtype),
                    array.ndim,
                    spec.output_parameters.get(name, {}),
                )
                for name, array in outputs.items()
            )
            description = frames.ResultDescription(tensors, spec.parameters).to_bytes()
        pieces = frames.result_frame(
            number,
            outputs,
            description,
            device_s=labels.device_seconds,
            draining=self._listener.servicer.identity.draining,
        )
        self._described = described  # not earlier: `result_frame` may refuse a large answer
        return b"".join(pieces)

    def _check_credentials(self) -> None:
        """Check the reader's credentials again if the list of tokens has changed."""
        admission = self._listener.admission
        if self._checked_revision is not (revision := admission.access.revision):
            admission.admit(self._credentials, "student")
            self._checked_revision = revision


def _check_booleans(tensors: Sequence[FramedTensor], arrays: Sequence[Array]) -> None:
    for tensor, array in zip(tensors, arrays, strict=True):
        if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
            raise WireError(f"input {tensor.name!r} is BOOL and holds other bytes than 0 and 1")


def _in_memory(
    memory: ReaderMemory, head: bytes, opened: OpenFrame, max_bytes: int
) -> tuple[list[Array], list[BufferLocation]]:
    """Return the inputs as views of the reader's memory, and their locations."""
    shapes = frames.unpack_shapes(head, opened.inputs)
    shapes_bytes = 8 * sum(map(len, shapes))
    if len(head) != shapes_bytes + frames.BUFFER_LOCATION.size * len(shapes):
        raise WireError("the request in shared memory lacks a location for each input")
    packed = frames.BUFFER_LOCATION.iter_unpack(head[shapes_bytes:])
    arrays, locations = [], list(map(BufferLocation._make, packed))
    for tensor, shape, location in zip(opened.inputs, shapes, locations, strict=True):
        nbytes = nbytes_of(tensor.datatype, shape) or 0
        if nbytes > max_bytes:
            raise RequestTooLarge(
                f"input {tensor.name!r} is larger than max ({nbytes} bytes vs. {max_bytes})"
            )
        arrays.append(from_bytes(memory.read(location, nbytes), tensor.datatype, shape))
    return arrays, locations
