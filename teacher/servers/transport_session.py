"""The session of a connection: what its OPEN frames fix, and the answers to its requests."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ...errors import EdlError, RequestRefused, WireError
from ...proto import frames
from ...proto.arena import Array
from ...proto.datatypes import datatype_of, from_bytes, nbytes_of
from ...proto.frames import FrameHeader, OpenFrame
from ...proto.shared_buffer import BufferRef
from ...proto.tensors import InferRequest, InferResponse, SlowToDecode
from ..request import InputBuffers
from .callers import CallCredentials, CallerIdentity
from .shared_regions import RegionReader

if TYPE_CHECKING:
    from .transport_listener import TransportListener


log = logging.getLogger(__name__)

#: Parameters of an answer that are in the header of its frame.
_OF_EACH_RESULT: Final = ("device_seconds", "draining")


class OpenedSession(NamedTuple):
    """What an OPEN frame has fixed for the following requests.

    Attributes:
        opened: the frame.
        region: of shared memory; empty for none.
        memory_error: why there is no region although one was requested.
    """

    opened: OpenFrame
    region: str
    memory_error: EdlError | None


class FramedRequest(NamedTuple):
    """A request as it came in a frame.

    Attributes:
        header: of its frame.
        head: of its frame.
        fixed: what held when it came.
        record: its inputs; None if they are in the reader's memory.
    """

    header: FrameHeader
    head: bytes
    fixed: OpenedSession
    record: InputBuffers | None = None


class TransportSession:
    """The session of one connection. Lives in the event loop.

    Args:
        listener: that accepted the connection.
        credentials: of the caller; checked for each request.
    """

    def __init__(self, listener: TransportListener, credentials: CallCredentials) -> None:
        self._listener = listener
        self._credentials = credentials
        self._fixed: OpenedSession | None = None
        self._regions: list[str] = []  # the last one is in use; earlier ones may be
        self._described: tuple[object, ...] = ()  # the last description that was sent

    @property
    def fixed(self) -> OpenedSession:
        """What the latest OPEN frame fixed; raises WireError if there was none."""
        if self._fixed is None:
            raise WireError("a request before its session was opened")
        return self._fixed

    def open(self, payload: bytes) -> None:
        """Handle an OPEN frame; raises WireError if it is invalid."""
        opened = OpenFrame.read(payload)
        region, failed = "", None
        if opened.memory_key:
            region = f"edl-{secrets.token_hex(8)}"
            try:
                self._listener.servicer.memory.register(
                    self._caller(), region, opened.memory_key, offset=0, nbytes=opened.memory_bytes
                )
            except EdlError as error:
                region, failed = "", error
            else:
                self._regions.append(region)
        self._fixed = OpenedSession(opened, region, failed)
        self._described = ()

    def release_regions(self, *, including_current: bool = False) -> None:
        """Release shared memory that no request uses; to be called while none is in work."""
        kept = 0 if including_current else 1
        while len(self._regions) > kept:
            region = self._regions.pop(0)
            try:
                self._listener.servicer.memory.unregister(self._caller(), region)
            except EdlError as error:
                log.debug("memory of who may not ask any more is swept later: %s", error)

    async def answer(self, asked: FramedRequest) -> bytes:
        """Answer a request with a RESULT or an ERROR frame."""
        try:
            return await self._label(asked)
        except EdlError as error:
            self._listener.recorder.refused(error)
            in_memory = asked.record is None
            memory_fails = in_memory and (not asked.fixed.region or isinstance(error, _NotMapped))
            return frames.error_frame(asked.header.number, error, memory=memory_fails)

    async def _label(self, asked: FramedRequest) -> bytes:
        header = asked.header
        protocol = "tcp" if self._credentials.uid is None else "local"
        with self._listener.recorder.call(protocol, "Label", self._address) as entry:
            entry.received_bytes = header.nbytes or header.head_bytes
            return await self._listener.servicer.infer(
                partial(_decode, asked),
                partial(self._encode, header.number),
                self._caller(),  # checked again: credentials may have been withdrawn
                time.monotonic() + header.seconds if header.seconds > 0 else None,
                entry,
                entry.received_bytes,
                asked.record,
            )

    async def _encode(
        self, number: int, _: InferRequest, response: InferResponse, __: Collection[str]
    ) -> tuple[bytes, int]:
        pieces = frames.result_frame(
            number,
            response.outputs,
            self._describe(response),
            device_s=float(response.parameters["device_seconds"]),
            draining=bool(response.parameters["draining"]),
        )
        frame = b"".join(pieces)
        return frame, len(frame)

    def _describe(self, response: InferResponse) -> bytes:
        """The description of an answer; empty if the reader has it already."""
        said, told = response.parameters, response.output_parameters
        known = (
            [(name, array.dtype, array.ndim) for name, array in response.outputs.items()],
            told,
            said["content_id"],
            said["numerics_id"],
        )
        if known == self._described:
            return b""
        outputs = tuple(
            frames.FramedTensor(name, datatype_of(array.dtype), array.ndim, told.get(name, {}))
            for name, array in response.outputs.items()
        )
        fixed = {name: value for name, value in said.items() if name not in _OF_EACH_RESULT}
        description = frames.ResultDescription(outputs, fixed).to_bytes()
        self._described = known
        return description

    def _caller(self) -> CallerIdentity:
        return self._listener.admission.admit(self._credentials, "student")

    def _address(self) -> str:
        return self._credentials.caller_identity().address


class _NotMapped(RequestRefused):
    """The inputs are in memory that must be copied."""


async def _decode(asked: FramedRequest, reading: RegionReader) -> InferRequest:
    opened = asked.fixed.opened
    if asked.record is None:
        arrays = _in_memory(asked.head, asked.fixed, reading)
    else:
        arrays = asked.record.arrays
        for tensor, array in zip(opened.inputs, arrays, strict=True):
            if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
                raise WireError(f"input {tensor.name!r} is BOOL and holds other bytes than 0 and 1")
    return InferRequest(
        model_name=opened.model,
        request_id=f"{opened.caller}#{asked.header.number}" if opened.caller else "",
        parameters=opened.parameters,
        inputs={t.name: array for t, array in zip(opened.inputs, arrays, strict=True)},
        outputs=opened.outputs,
        output_parameters=opened.output_parameters,
    )


def _in_memory(head: bytes, fixed: OpenedSession, reading: RegionReader) -> list[Array]:
    """The inputs in place, in the reader's memory."""
    if fixed.memory_error is not None:
        raise fixed.memory_error
    opened = fixed.opened
    shapes = frames.unpack_shapes(head, opened.inputs)
    at = frames.packed_shapes_bytes(opened.inputs)
    if len(head) != at + frames.BUFFER_LOCATION.size * len(shapes):
        raise WireError("a request in shared memory without a place for each input")
    arrays = []
    for tensor, shape in zip(opened.inputs, shapes, strict=True):
        offset, generation, generation_offset = frames.BUFFER_LOCATION.unpack_from(head, at)
        at += frames.BUFFER_LOCATION.size
        nbytes = nbytes_of(tensor.datatype, shape) or 0
        ref = BufferRef(fixed.region, offset, nbytes, generation, generation_offset)
        if not ref.is_possible:
            raise WireError(f"input {tensor.name!r} has an impossible place")
        try:
            data = reading.read_in_place(ref)
        except SlowToDecode:
            raise _NotMapped("shared memory that may shrink is not read in place") from None
        arrays.append(from_bytes(data, tensor.datatype, shape))
    return arrays
