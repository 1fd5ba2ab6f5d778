"""The transport between our own reader and teacher: its offer, its proofs, and its frames.

On request, a teacher offers a connection in its answer to `ModelMetadata` (`TransportOffer`), if
the caller's credentials permit labelling. The reader accepts the offer only if the teacher's gRPC
port is the port that the reader dialled. The connection goes over TCP, with TLS if gRPC uses TLS,
or over a Unix socket on the same host.

First both sides prove that they know the secret of the offer, which is never sent over the
connection: the reader sends MAGIC, the session and a challenge; the teacher sends a challenge and
its proof; the reader sends its proof. Then frames follow. OPEN fixes the model, the inputs and the
outputs of the requests that follow. REQUEST carries the arrays of one batch, or their locations in
shared memory. RESULT or ERROR answers a request. GOAWAY announces that the teacher accepts no more
requests over this connection.

A frame is a header of fixed size, a head, and a payload. The line `header` gives the sizes of its
fields in bytes:

```
header   magic 4, kind 1, flags 1, head bytes 2, rows 4, number 8, payload bytes 8, seconds 8
OPEN     payload: JSON, see `OpenFrame`
REQUEST  head: the dimensions of each input, and with IN_SHARED_MEMORY their locations;
         payload: the inputs
RESULT   head: the dimensions of each output; payload: the outputs; with DESCRIBED, a
         description precedes them
ERROR    payload: JSON with the name of a gRPC status, its details and metadata
GOAWAY   no head and no payload
```

All numbers are little-endian; dimensions are unsigned 8-byte numbers. The reader chooses the number
of a request, and the answer repeats the number. In a REQUEST, `seconds` is the time for
which the reader waits for the answer; in a RESULT it is the time on the device.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np

from ..runtime.errors import EdlError, WireError
from .arena import Array
from .dataclass_json import from_plain, to_plain
from .datatypes import Parameter, dtype_of, element_count, to_bytes

#: Metadata key of `ModelMetadata`: in the call it requests an offer, in the answer it is the offer.
OFFER_KEY: Final = "edl-transport"
OFFER_REQUEST: Final = ((OFFER_KEY, "1"),)
#: The first bytes of a connection; the last byte is the version.
MAGIC: Final = b"EDL\x01"
ID_BYTES: Final = 16
CHALLENGE_BYTES: Final = 16
PROOF_BYTES: Final = hashlib.sha256().digest_size
#: Sizes of the reader's first message and of the teacher's reply.
HELLO_BYTES: Final = len(MAGIC) + ID_BYTES + CHALLENGE_BYTES
REPLY_BYTES: Final = CHALLENGE_BYTES + PROOF_BYTES
_OFFER: Final = re.compile(
    r"(\d{1,5}) (\d{1,5}) (-|[\w-]{1,64}) ([0-9a-f]{32}) ([0-9a-f]{64})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class TransportOffer:
    """The address at which one teacher accepts frames from one caller.

    Attributes:
        grpc_port: the port that the teacher bound for gRPC. A reader that dialled another port is
            behind a port mapping and cannot use the offer.
        port: TCP port of the transport.
        unix_name: name of a Unix socket in the abstract namespace; empty if there is none.
        session: identifies the caller's credentials; not secret.
        secret: known to both sides; never sent over the transport.
    """

    grpc_port: int
    port: int
    unix_name: str
    session: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls, grpc_port: int, port: int, unix_name: str) -> Self:
        """Create an offer with a new session and secret."""
        return cls(
            grpc_port, port, unix_name, secrets.token_bytes(ID_BYTES), secrets.token_bytes(32)
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that carries the offer."""
        name = self.unix_name or "-"
        offer = f"{self.grpc_port} {self.port} {name} {self.session.hex()} {self.secret.hex()}"
        return ((OFFER_KEY, offer),)

    @classmethod
    def from_metadata(cls, metadata: Iterable[Sequence[str | bytes]]) -> Self | None:
        """Return the offer in a call's metadata; None if there is none, or it is malformed."""
        for key, value in metadata:
            if key == OFFER_KEY and isinstance(value, str) and (offer := _OFFER.fullmatch(value)):
                name = "" if offer[3] == "-" else offer[3]
                session, secret = bytes.fromhex(offer[4]), bytes.fromhex(offer[5])
                return cls(int(offer[1]), int(offer[2]), name, session, secret)
        return None

    def teachers_proof(self, reader_challenge: bytes, teacher_challenge: bytes) -> bytes:
        """Return the teacher's answer to the reader's challenge, bound to both challenges."""
        return hmac.digest(self.secret, b"teacher" + reader_challenge + teacher_challenge, "sha256")

    def readers_proof(self, reader_challenge: bytes, teacher_challenge: bytes) -> bytes:
        """Return the reader's answer to the teacher's challenge, bound to both challenges."""
        return hmac.digest(self.secret, b"reader" + reader_challenge + teacher_challenge, "sha256")


HEADER: Final = struct.Struct("<4sBBHIQQd")
_FRAME_MAGIC: Final = b"EDLf"
OPEN, REQUEST, RESULT, ERROR, GOAWAY = range(1, 6)
_KINDS: Final = frozenset((OPEN, REQUEST, RESULT, ERROR, GOAWAY))

#: Flags, in this order: the inputs lie in shared memory; the payload begins with a description; the
#: teacher is draining; shared memory failed, so the request may succeed with its arrays inline.
IN_SHARED_MEMORY: Final = 1
DESCRIBED: Final = 2
DRAINING: Final = 4
SHARED_MEMORY_FAILED: Final = 8

#: Maximum number of unanswered requests on a connection; a teacher reads more only after an answer.
REQUESTS_PER_CONNECTION: Final = 8
#: Limits of the JSON in a payload, the number of inputs or outputs, and the dimensions of an array.
MAX_JSON_BYTES: Final = 64 << 10
MAX_ARRAYS: Final = 256
MAX_NDIM: Final = 16
#: A location in shared memory: offset, generation, offset of the generation.
BUFFER_LOCATION: Final = struct.Struct("<QQQ")
_LENGTH: Final = struct.Struct("<I")


class FrameHeader(NamedTuple):
    """The fields of a frame's header after its magic number; see the docstring of the module."""

    kind: int
    flags: int
    head_bytes: int
    rows: int
    number: int
    nbytes: int
    seconds: float

    def pack(self) -> bytes:
        return HEADER.pack(_FRAME_MAGIC, *self)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> FrameHeader:
        """Read the first `HEADER.size` bytes; raises WireError if they are not a header."""
        magic, *fields = HEADER.unpack_from(data)
        header = cls(*fields)
        if magic != _FRAME_MAGIC or header.kind not in _KINDS:
            raise WireError(f"these bytes do not begin a frame: {bytes(data[:8])!r}")
        return header


class FramedTensor(NamedTuple):
    """The properties of one array that an OPEN frame or a description fixes.

    Attributes:
        ndim: number of dimensions; each frame has their sizes.
        parameters: for an output, the parameters of its form.
    """

    name: str
    datatype: str
    ndim: int
    parameters: Mapping[str, Parameter] = MappingProxyType({})


def _check_tensors(tensors: Sequence[FramedTensor]) -> None:
    for tensor in tensors:
        dtype_of(tensor.datatype)
        if not 1 <= tensor.ndim <= MAX_NDIM or tensor.datatype == "BYTES":
            raise WireError(
                f"an array of {tensor.datatype} with {tensor.ndim} dimensions is not sent by frames"
            )


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """The content of an OPEN frame.

    Attributes:
        model: name of the model.
        inputs: in the order of their arrays.
        outputs: names of the requested outputs; empty for all.
        parameters: parameters of each request; they name the teacher's instance.
        output_parameters: parameters by output; they name the forms.
        memory_key: key of the shared memory in which inputs may lie; empty for none.
        memory_bytes: size of that shared memory.
        caller: for logs, in which a request is called CALLER#NUMBER.

    Raises:
        WireError: the content is not valid.
    """

    model: str
    inputs: tuple[FramedTensor, ...]
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)
    memory_key: str = ""
    memory_bytes: int = 0
    caller: str = ""

    def __post_init__(self) -> None:
        _check_tensors(self.inputs)
        names = {tensor.name for tensor in self.inputs}
        if not 1 <= len(self.inputs) <= MAX_ARRAYS or len(names) < len(self.inputs):
            raise WireError(
                f"a request has {len(self.inputs)} inputs (1 to {MAX_ARRAYS} are allowed), or two"
                " inputs of the same name"
            )
        if self.memory_bytes < 0:
            raise WireError("the size of the shared memory is negative")

    def frame(self) -> bytes:
        return _json_frame(OPEN, 0, to_plain(self))

    @classmethod
    def read(cls, payload: bytes) -> OpenFrame:
        """Parse the payload of an OPEN frame; raises WireError."""
        return from_plain(cls, _json(payload))


def pack_shapes(shapes: Sequence[Sequence[int]]) -> bytes:
    """Pack the dimensions of arrays for a head."""
    sizes = [*chain.from_iterable(shapes)]
    return struct.pack(f"<{len(sizes)}Q", *sizes)


def unpack_shapes(
    head: memoryview | bytes, tensors: Sequence[FramedTensor]
) -> list[tuple[int, ...]]:
    """Return the shapes at the start of a head; raises WireError if it is too short."""
    shapes, at = [], 0
    for tensor in tensors:
        end = at + 8 * tensor.ndim
        if end > len(head):
            raise WireError("the head of a frame is shorter than the dimensions of its arrays")
        shapes.append(struct.unpack_from(f"<{tensor.ndim}Q", head, at))
        at = end
    return shapes


def layouts_of(
    tensors: Sequence[FramedTensor], shapes: Sequence[tuple[int, ...]], nbytes: int
) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return dtypes and shapes of arrays; check that the arrays take `nbytes` in all.

    Raises:
        WireError: the arrays take another number of bytes, or a shape is impossible.
    """
    layouts, total_bytes = [], 0
    for tensor, shape in zip(tensors, shapes, strict=True):
        dtype = dtype_of(tensor.datatype)
        total_bytes += element_count(shape, dtype.itemsize) * dtype.itemsize
        layouts.append((dtype, shape))
    if total_bytes != nbytes:
        raise WireError(f"arrays of {total_bytes} bytes are announced as {nbytes}")
    return layouts


# --- results


@dataclass(frozen=True, slots=True)
class ResultDescription:
    """The common properties of results; sent with the first result after each change.

    Attributes:
        outputs: in the order of their arrays.
        parameters: parameters of the answer.
    """

    outputs: tuple[FramedTensor, ...]
    parameters: Mapping[str, Parameter]

    def to_bytes(self) -> bytes:
        """Serialise the description, preceded by its length."""
        data = json.dumps(to_plain(self)).encode()
        if len(data) > MAX_JSON_BYTES - _LENGTH.size:
            raise WireError(f"the outputs have a description of {len(data)} bytes: request fewer")
        return _LENGTH.pack(len(data)) + data

    @classmethod
    def take(cls, payload: memoryview) -> tuple[ResultDescription, int]:
        """Read the description at the start of a payload; return it and its size in bytes.

        Raises:
            WireError: there is no valid description.
        """
        if len(payload) < _LENGTH.size:
            raise WireError("a result is too short for its description")
        end = _LENGTH.size + int(_LENGTH.unpack_from(payload)[0])
        if end > min(len(payload), MAX_JSON_BYTES):
            raise WireError("the description of a result is too long")
        described = from_plain(cls, _json(bytes(payload[_LENGTH.size : end])))
        _check_tensors(described.outputs)
        return described, end


def result_frame(
    number: int, outputs: Mapping[str, Array], described: bytes, *, device_s: float, draining: bool
) -> list[bytes | memoryview]:
    """Encode a RESULT frame, in pieces.

    Args:
        number: number of the request.
        outputs: at least one array, by name, with the rows of the batch along axis 0.
        described: a serialised description; empty if it has not changed since the last result.
        device_s: seconds on the device.
        draining: the teacher is about to leave.
    """
    arrays = outputs.values()
    head = pack_shapes([array.shape for array in arrays])
    data = [*map(to_bytes, arrays)]
    nbytes = sum(map(len, data), len(described))
    flags = (DESCRIBED if described else 0) | (DRAINING if draining else 0)
    rows = len(next(iter(arrays)))
    header = FrameHeader(RESULT, flags, len(head), rows, number, nbytes, device_s)
    return [header.pack() + head + described, *data]


def error_frame(number: int, error: EdlError, *, shared_memory_failed: bool = False) -> bytes:
    """Encode an ERROR frame."""
    from .status import to_metadata, to_status

    code, details = to_status(error)
    body = {"status": code.name, "details": details, "metadata": to_metadata(error)}
    return _json_frame(ERROR, number, body, SHARED_MEMORY_FAILED if shared_memory_failed else 0)


def read_error(payload: bytes) -> EdlError:
    """Return the error in the payload of an ERROR frame; raises WireError if there is none."""
    import grpc

    from .status import from_status

    body = _json(payload)
    try:
        code, metadata = grpc.StatusCode[body["status"]], [tuple(pair) for pair in body["metadata"]]
        if not all(isinstance(name, str) and isinstance(value, str) for name, value in metadata):
            raise TypeError("metadata")
        return from_status(code, str(body["details"]), metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"an ERROR frame is invalid: {error!r}") from None


def goaway_frame() -> bytes:
    return FrameHeader(GOAWAY, 0, 0, 0, 0, 0, 0.0).pack()


def _json_frame(kind: int, number: int, body: Mapping[str, Any], flags: int = 0) -> bytes:
    payload = json.dumps(body).encode()
    if len(payload) > MAX_JSON_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes of JSON is larger than {MAX_JSON_BYTES}")
    return FrameHeader(kind, flags, 0, 0, number, len(payload), 0.0).pack() + payload


def _json(payload: bytes) -> dict[str, Any]:
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise WireError(f"no JSON object: {payload[:80]!r}")
    return body
