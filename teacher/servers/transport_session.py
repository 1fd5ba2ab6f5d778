"""The session of a connection: the settings of its OPEN frames, and answers to its requests."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...proto import frames
from ...proto.arena import Array
from ...proto.datatypes import datatype_of, from_bytes, nbytes_of
from ...proto.frames import FramedTensor, FrameHeader, OpenFrame
from ...proto.shared_buffer import BufferRef
from ...proto.tensors import InferRequest, SlowToDecode
from ...runtime.errors import EdlError, RequestRefused, WireError
from ..predictor_jobs import RequestLabels
from ..request import InputBuffers, deadline_of
from .callers import CallCredentials, CallerIdentity
from .servicer import RequestSpec
from .shared_regions import RegionReader

if TYPE_CHECKING:
    from .transport_listener import TransportListener


log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class OpenedSession:
    """The settings of an OPEN frame, which hold for the requests after it.

    Attributes:
        opened: the frame.
        request: the common part of the requests, with empty arrays as inputs.
        region: name of the region of shared memory; empty if there is none.
        memory_error: why a requested region could not be registered.
        spec: result of the check of `request` for the latest model; None before the first request.
    """

    opened: OpenFrame
    request: InferRequest
    region: str = ""
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
        opened_session: the settings of the latest OPEN frame; None before the first OPEN frame.
        regions: names of regions of shared memory, the latest last; running requests may still use
            earlier regions.
    """

    def __init__(self, listener: TransportListener, credentials: CallCredentials) -> None:
        self._listener = listener
        self._credentials = credentials
        self._protocol = "tcp" if credentials.uid is None else "local"
        # The caller of the latest check, and the revision of the accepted credentials then.
        self._checked: tuple[CallerIdentity, object] | None = None
        self.opened_session: OpenedSession | None = None
        self.regions: list[str] = []
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
            self._register_region(self.opened_session, f"edl-{secrets.token_hex(8)}")
            if self.opened_session.region:
                self.regions.append(self.opened_session.region)
        self._described = ()

    def release_regions(self, *, including_current: bool = False) -> None:
        """Release earlier regions while no request is in work, or all at the connection's end."""
        kept = 0 if including_current else 1
        while len(self.regions) > kept:
            region = self.regions.pop(0)
            try:
                self._listener.servicer.memory.unregister(self._caller(), region)
            except EdlError as error:
                log.debug("cannot release a region now; it is swept later: %s", error)

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
                caller = self._caller()
                with entry.start_timing(entry.received_bytes) as timing:
                    reading = None
                    if buffers is None:
                        region = opened_session.region
                        # `sweep` releases a reader's region after a minute without requests.
                        if region and region not in servicer.memory.status(caller):
                            self._register_region(opened_session, region)
                        reading = RegionReader(servicer.memory, caller)
                        arrays = _in_memory(request.head, opened_session, reading)
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
                        if reading is not None:
                            reading.check()
                        timing.labels_ready(len(arrays[0]), labels.device_seconds)
                        frame = self._result(header.number, spec, labels)
                        entry.sent_bytes = len(frame)
                        return frame
                    finally:
                        labels.release()
        except EdlError as error:
            listener.recorder.refused(error)
            memory_fails = buffers is None and (
                not opened_session.region or isinstance(error, _NotMapped)
            )
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

    def _register_region(self, opened_session: OpenedSession, region: str) -> None:
        """Register the memory of a session as `region`, or record the error."""
        opened = opened_session.opened
        try:
            self._listener.servicer.memory.register(
                self._caller(), region, opened.memory_key, offset=0, nbytes=opened.memory_bytes
            )
            opened_session.region = region
        except EdlError as error:
            opened_session.region, opened_session.memory_error = "", error

    def _caller(self) -> CallerIdentity:
        """Return the caller; check its credentials if the list of tokens has changed."""
        admission = self._listener.admission
        revision = admission.access.revision
        if self._checked is None or self._checked[1] is not revision:
            self._checked = admission.admit(self._credentials, "student"), revision
        return self._checked[0]


class _NotMapped(RequestRefused):
    """The inputs are in memory that cannot be read in place."""


def _check_booleans(tensors: Sequence[FramedTensor], arrays: Sequence[Array]) -> None:
    for tensor, array in zip(tensors, arrays, strict=True):
        if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
            raise WireError(f"input {tensor.name!r} is BOOL and holds other bytes than 0 and 1")


def _in_memory(head: bytes, opened_session: OpenedSession, reading: RegionReader) -> list[Array]:
    """Return the inputs in place, as views of the reader's memory."""
    if opened_session.memory_error is not None:
        raise opened_session.memory_error
    opened = opened_session.opened
    shapes = frames.unpack_shapes(head, opened.inputs)
    shapes_bytes = 8 * sum(map(len, shapes))
    if len(head) != shapes_bytes + frames.BUFFER_LOCATION.size * len(shapes):
        raise WireError("the request in shared memory lacks a location for each input")
    arrays, locations = [], frames.BUFFER_LOCATION.iter_unpack(head[shapes_bytes:])
    for tensor, shape, location in zip(opened.inputs, shapes, locations, strict=True):
        offset, generation, generation_offset = location
        nbytes = nbytes_of(tensor.datatype, shape) or 0
        ref = BufferRef(opened_session.region, offset, nbytes, generation, generation_offset)
        if not ref.is_possible:
            raise WireError(f"input {tensor.name!r} has an invalid location")
        try:
            data = reading.read_in_place(ref)
        except SlowToDecode:
            raise _NotMapped("shared memory that may shrink is not read in place") from None
        arrays.append(from_bytes(data, tensor.datatype, shape))
    return arrays
