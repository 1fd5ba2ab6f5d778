"""The reader's end of a connection of our own transport (`proto.frames`).

Only `connect` blocks. Answers come in any order; each is received into new memory. An open
connection is used by one thread only.
"""

from __future__ import annotations

import hmac
import math
import secrets
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ...runtime.errors import AccessError, EdlError, InputsOverwritten, RateLimited, WireError
from .. import frames
from ..datatypes import Parameter, datatype_of, from_bytes, pieces_of, to_bytes
from ..frames import FramedTensor, FrameHeader, OpenFrame, ResultDescription, TransportOffer
from ..shared_buffer import BufferLocation, SharedBuffer
from . import OVERWRITTEN, LabelRequest, LabelResponse

_STAGING_BYTES: Final = frames.HEADER.size + (64 << 10)
_TLS_SEND_BYTES: Final = 4 << 20
#: The largest answer for which memory is allocated.
_MAX_ANSWER_BYTES: Final = 1 << 31
#: Maximum number of calls of recv in one `receive`, so that other connections are served, too.
_MAX_RECEIVES: Final = 64
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connect(
    host: str,
    offered: TransportOffer,
    tls: Callable[[socket.socket], socket.socket] | None,
    timeout_s: float,
    *,
    unix: bool,
) -> socket.socket:
    """Open a socket to a teacher; both sides prove that they know the offer.

    Args:
        host: host that gRPC has dialled.
        offered: the teacher's offer.
        tls: wraps a TCP socket in TLS; None for no encryption.
        timeout_s: seconds for each step.
        unix: use the Unix socket of this host.

    Raises:
        OSError: no server answers, or another server than the one that made the offer.
    """
    if unix:
        connection = socket.socket(socket.AF_UNIX)
    else:
        connection = socket.create_connection((host, offered.port), timeout_s)
    try:
        connection.settimeout(timeout_s)
        if unix:
            connection.connect(f"\0{offered.unix_name}")
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if tls is not None:
                connection = tls(connection)
        reader_challenge = secrets.token_bytes(frames.CHALLENGE_BYTES)
        connection.sendall(frames.MAGIC + offered.session + reader_challenge)
        reply = _receive_exactly(connection, frames.REPLY_BYTES)
        teacher_challenge = reply[: frames.CHALLENGE_BYTES]
        expected_proof = offered.teachers_proof(reader_challenge, teacher_challenge)
        if not hmac.compare_digest(reply[frames.CHALLENGE_BYTES :], expected_proof):
            raise ConnectionAbortedError("another server than the one with this offer answers")
        connection.sendall(offered.readers_proof(reader_challenge, teacher_challenge))
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (piece := connection.recv(count - len(data))):
            raise ConnectionResetError(
                "the teacher closed the connection: it does not accept this offer"
            )
        data += piece
    return data


class ConnectionEnded(ConnectionAbortedError):
    """The teacher has ended a connection; `why` is the error that it sent."""

    def __init__(self, why: EdlError) -> None:
        super().__init__(f"the teacher ends the connection: {why}")
        self.why = why


@dataclass(slots=True)
class _PendingRequest:
    """A request without an answer.

    Attributes:
        request: the request.
        in_memory: whether its inputs are in shared memory.
        unchanged: whether its inputs were unchanged after they were sent; None: not all were sent.
    """

    request: LabelRequest
    in_memory: bool
    unchanged: bool | None = None


class RequestOutcome(NamedTuple):
    """The answer or the error of one request.

    Attributes:
        number: number of the request.
        outcome: the answer, or the error.
        without_memory: whether a failed request may succeed if its arrays are sent inline.
    """

    number: int
    outcome: LabelResponse | EdlError
    without_memory: bool = False


class _RequestLayout(NamedTuple):
    """The common properties of requests with inputs of the same shapes.

    Attributes:
        key: requests with equal keys have the same layout.
        fixed: the part of the key that an OPEN frame fixes.
        head: head of each REQUEST frame, without locations in shared memory.
        rows: rows of each request.
    """

    key: tuple[Any, ...]
    fixed: tuple[Any, ...]
    head: bytes
    rows: int


class _ResultLayout(NamedTuple):
    """The common properties of results with outputs of the same shapes.

    Attributes:
        head: head of their frames.
        nbytes: bytes of their arrays.
        arrays: name and datatype, shape, start and end of each array.
        parameters: parameters of the outputs that have any, by name.
    """

    head: bytes
    nbytes: int
    arrays: list[tuple[FramedTensor, tuple[int, ...], int, int]]
    parameters: dict[str, Mapping[str, Parameter]]


class TransportConnection:
    """An open connection of the transport.

    Args:
        connection: from `connect`.
        model: the model of all requests.
        arena: memory of batches, which the teacher can read in place; None: send all arrays.

    Attributes:
        in_memory: whether the teacher reads batches in place, if their locations are known.
        leaving: whether the teacher accepts no more requests over this connection.
        unsent: queue of data that the socket has not accepted yet. After the data of a request
            comes its `_PendingRequest`, unless the inputs are in shared memory.
    """

    def __init__(self, connection: socket.socket, model: str, arena: SharedBuffer | None) -> None:
        self.in_memory = arena is not None
        self.leaving = False
        self._socket = connection
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self._model = model
        self._arena = arena
        self._layout = _RequestLayout((), (), b"", 0)
        self._opened_for: tuple[Any, ...] = ()  # the `fixed` of the latest OPEN frame
        self._shared_memory_works = False
        self._pending: dict[int, _PendingRequest] = {}
        self.unsent: deque[memoryview | _PendingRequest] = deque()
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = self._end = 0  # of the data in `_staging` that was not processed yet
        self._header: FrameHeader | None = None  # of the frame whose payload is being received
        self._head = b""  # of the same frame
        self._payload = memoryview(b"")
        self._filled = 0  # received bytes of `_payload`
        self._description: ResultDescription | None = None
        self._result_layout: _ResultLayout | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_room(self) -> bool:
        """Whether another request may be added."""
        return not self.leaving and len(self._pending) < frames.REQUESTS_PER_CONNECTION

    def put(
        self,
        number: int,
        request: LabelRequest,
        timeout_s: float,
        locations: Mapping[str, BufferLocation],
    ) -> bool:
        """Queue a request for the next `send`.

        Args:
            number: number of the request, unique on this connection.
            request: the request.
            timeout_s: seconds that the teacher has for the answer.
            locations: locations of the inputs in the arena, by input; used only if there is one for
                each input.

        Returns:
            False if this transport cannot carry the request.
        """
        inputs = request.inputs
        locations = locations if self.in_memory and len(locations) == len(inputs) else {}
        pending = _PendingRequest(request, in_memory=bool(locations))
        try:
            layout = self._layout_of(request, in_memory=bool(locations))
            head = layout.head
            if locations:
                head += b"".join([frames.BUFFER_LOCATION.pack(*locations[name]) for name in inputs])
                data, flags = [], frames.IN_SHARED_MEMORY
                pending.unchanged = True  # the teacher checks the generations
            else:
                data = [to_bytes(part) for value in inputs.values() for part in pieces_of(value)]
                flags = 0
            nbytes = sum(map(len, data))
            header = FrameHeader(
                frames.REQUEST, flags, len(head), layout.rows, number, nbytes, timeout_s
            )
            header_and_head = header.pack() + head
            if layout.fixed != self._opened_for:
                self.unsent.append(memoryview(self._open_frame(layout.fixed)))
                self._opened_for = layout.fixed
        except (WireError, struct.error):  # no frame can carry the request
            return False
        self.unsent.append(memoryview(header_and_head))
        self.unsent += [piece for piece in data if len(piece)]
        if not locations:
            self.unsent.append(pending)
        self._pending[number] = pending
        return True

    def send(self) -> None:
        """Send queued data until the socket would block; raises OSError if the connection ended."""
        while self.unsent:
            if not isinstance(first := self.unsent[0], memoryview):
                first.unchanged = first.request.is_current()
                self.unsent.popleft()
                continue
            pieces = []
            for piece in self.unsent:
                if not isinstance(piece, memoryview):
                    break
                pieces.append(piece)
            try:
                if self._encrypted:
                    count = self._socket.send(first[:_TLS_SEND_BYTES])
                else:
                    count = self._socket.sendmsg(pieces[:64])
            except _WOULD_BLOCK:
                return
            while count:
                first = self.unsent[0]
                assert isinstance(first, memoryview)
                accepted = min(count, len(first))
                count -= accepted
                if accepted == len(first):
                    self.unsent.popleft()
                else:
                    self.unsent[0] = first[accepted:]

    def receive(self) -> list[RequestOutcome]:
        """Receive available data; return the answers and errors of requests in it.

        Raises:
            OSError: the connection has ended; everything that arrived before has been returned.
            ConnectionEnded: the teacher has ended the connection; answers that arrived just before
                may be lost.
            WireError: the data is not valid; answers that arrived just before may be lost.
        """
        outcomes: list[RequestOutcome] = []
        receives = 0
        while receives < _MAX_RECEIVES or self._has_read_ahead:
            receives += 1
            try:
                count = self._receive_some()
            except _WOULD_BLOCK:
                break
            except OSError:
                if outcomes:
                    break  # the next call raises it again
                raise
            if not count:
                if outcomes:
                    break
                raise ConnectionResetError("the teacher has closed the connection")
            while (frame := self._next_frame()) is not None:
                if (outcome := self._read(*frame)) is not None:
                    outcomes.append(outcome)
            if not self._encrypted and not self._header and self._start == self._end:
                break  # usually there is no more data; if there is, the socket stays readable
        return outcomes

    def unanswered(self) -> list[int]:
        """Return the numbers of the requests without an answer."""
        return list(self._pending)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.unsent.clear()
        self._socket.close()

    @property
    def _has_read_ahead(self) -> bool:
        """Whether TLS has buffered data; `poll` does not report the socket as readable then."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    # --- sending

    def _layout_of(self, request: LabelRequest, *, in_memory: bool) -> _RequestLayout:
        """Return the layout of a request, reused while the key is the same.

        Raises:
            WireError: no frame can carry such requests.
        """
        nbytes = self._arena.size_bytes if in_memory and self._arena is not None else 0
        inputs = [(name, value.dtype, value.shape) for name, value in request.inputs.items()]
        options = (request.outputs, request.parameters, request.output_parameters, nbytes)
        key = (inputs, request.request_id.rpartition("#")[0], options)
        if key == self._layout.key:
            return self._layout
        if not 1 <= len(inputs) <= frames.MAX_ARRAYS:
            raise WireError(f"a request has {len(inputs)} inputs")
        for name, dtype, shape in inputs:
            if dtype.hasobject or not 1 <= len(shape) <= frames.MAX_NDIM:
                raise WireError(f"input {name!r} is {dtype} with {len(shape)} dimensions")
        fixed = ([(name, dtype, len(shape)) for name, dtype, shape in inputs], *key[1:])
        head = frames.pack_shapes([shape for _, _, shape in inputs])
        self._layout = _RequestLayout(key, fixed, head, inputs[0][2][0])
        return self._layout

    def _open_frame(self, fixed: tuple[Any, ...]) -> bytes:
        """Return the OPEN frame for `fixed`; raises WireError if its content is not valid."""
        inputs, caller, (outputs, parameters, output_parameters, nbytes) = fixed
        tensors = tuple(
            FramedTensor(name, datatype_of(dtype), ndim) for name, dtype, ndim in inputs
        )
        key = self._arena.key if nbytes and self._arena is not None else ""
        return OpenFrame(
            self._model, tensors, outputs, parameters, output_parameters, key, nbytes, caller
        ).frame()

    # --- receiving

    def _receive_some(self) -> int:
        if self._header is not None and self._filled < len(self._payload):
            count = self._socket.recv_into(self._payload[self._filled :])
            self._filled += count
            return count
        if self._start:
            rest = self._end - self._start
            self._staging[:rest] = bytes(self._staging[self._start : self._end])
            self._start, self._end = 0, rest
        count = self._socket.recv_into(self._staging[self._end :])
        self._end += count
        return count

    def _next_frame(self) -> tuple[FrameHeader, memoryview] | None:
        """Return the header and the payload of the next frame; None if it is not complete."""
        if self._header is None:
            available = self._end - self._start
            if available < frames.HEADER.size:
                return None
            header = FrameHeader.unpack(self._staging[self._start : self._end])
            self._check(header)  # before memory is allocated for it
            if available < frames.HEADER.size + header.head_bytes:
                return None
            self._start += frames.HEADER.size
            self._head = bytes(self._staging[self._start : self._start + header.head_bytes])
            self._start += header.head_bytes
            self._header = header
            self._payload = np.empty(header.nbytes, np.uint8).data
            self._filled = min(header.nbytes, self._end - self._start)
            self._payload[: self._filled] = self._staging[self._start : self._start + self._filled]
            self._start += self._filled
        if self._filled < len(self._payload):
            return None
        header, payload = self._header, self._payload.toreadonly()
        self._header, self._payload = None, memoryview(b"")
        return header, payload

    def _check(self, header: FrameHeader) -> None:
        """Raise WireError if a teacher must not send a frame with this header now."""
        match header.kind:
            case frames.RESULT:
                if (pending := self._pending.get(header.number)) is None:
                    raise WireError(f"there is a result for the unknown request {header.number}")
                if pending.unchanged is None:
                    raise WireError(
                        f"there is a result for request {header.number}, which was not sent"
                        " completely"
                    )
                is_valid = header.nbytes <= _MAX_ANSWER_BYTES
            case frames.ERROR:
                is_valid = header.nbytes <= frames.MAX_JSON_BYTES and not header.head_bytes
            case frames.GOAWAY:
                is_valid = not (header.nbytes or header.head_bytes or self.leaving)
            case _:
                is_valid = False
        if not is_valid:
            raise WireError(f"a teacher must not send this frame of kind {header.kind} now")

    def _read(self, header: FrameHeader, payload: memoryview) -> RequestOutcome | None:
        """Process a frame, whose head is in `_head`; return the outcome of its request, if any."""
        if header.kind == frames.GOAWAY:
            self.leaving = True
            return None
        if header.kind == frames.ERROR:
            return self._failed(header, frames.read_error(bytes(payload)))
        answer = self._answer(header, payload)
        pending = self._pending.pop(header.number)
        self._shared_memory_works |= pending.in_memory
        if not pending.unchanged:
            return RequestOutcome(header.number, InputsOverwritten(OVERWRITTEN))
        return RequestOutcome(header.number, answer)

    def _failed(self, header: FrameHeader, error: EdlError) -> RequestOutcome:
        if header.number not in self._pending:  # an error of the connection: no request is answered
            self.leaving = True
            raise ConnectionEnded(error)
        pending = self._pending.pop(header.number)
        if pending.unchanged is False:
            error = InputsOverwritten(OVERWRITTEN)
        # Until shared memory has worked once, it may be the cause of all errors but these.
        may_be_memory = not self._shared_memory_works and not isinstance(
            error, RateLimited | AccessError
        )
        memory_failed = pending.in_memory and (
            bool(header.flags & frames.SHARED_MEMORY_FAILED) or may_be_memory
        )
        if memory_failed:
            self.in_memory = False
        return RequestOutcome(header.number, error, without_memory=memory_failed)

    def _answer(self, header: FrameHeader, payload: memoryview) -> LabelResponse:
        if header.flags & frames.DESCRIBED:
            self._description, begin = ResultDescription.take(payload)
            self._result_layout = None
            payload = payload[begin:]
        if (described := self._description) is None:
            raise WireError("the first result has no description")
        layout = self._result_layout
        if layout is None or layout[:2] != (self._head, len(payload)):
            layout = self._result_layout = _result_layout(described, self._head, len(payload))
        outputs = {
            tensor.name: from_bytes(payload[begin:end], tensor.datatype, shape)
            for tensor, shape, begin, end in layout.arrays
        }
        parameters = {
            **described.parameters,
            "device_seconds": header.seconds,
            "draining": bool(header.flags & frames.DRAINING),
        }
        return LabelResponse(outputs, parameters, layout.parameters)


def _result_layout(described: ResultDescription, head: bytes, nbytes: int) -> _ResultLayout:
    """Locate the arrays in results with this head; raises WireError if `nbytes` is wrong."""
    shapes, arrays, begin = frames.unpack_shapes(head, described.outputs), [], 0
    layouts = frames.layouts_of(described.outputs, shapes, nbytes)
    for tensor, (dtype, shape) in zip(described.outputs, layouts, strict=True):
        end = begin + dtype.itemsize * math.prod(shape)
        arrays.append((tensor, shape, begin, end))
        begin = end
    parameters = {
        tensor.name: tensor.parameters for tensor in described.outputs if tensor.parameters
    }
    return _ResultLayout(head, nbytes, arrays, parameters)
