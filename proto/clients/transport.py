"""The reader's end of a connection of our own transport (`proto.frames`).

Only `connect` blocks. Answers come in any order; each is received into new memory. One thread uses
a connection once it is open.
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
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from ...runtime.errors import AccessError, EdlError, InputsOverwritten, RateLimited, WireError
from .. import frames
from ..datatypes import Parameter, datatype_of, from_bytes, pieces_of, to_bytes
from ..frames import FramedTensor, FrameHeader, OpenFrame, ResultDescription, TransportOffer
from ..shared_buffer import BufferLocation, SharedBuffer
from . import OVERWRITTEN, LabelRequest, LabelResponse

_STAGING_BYTES: Final = frames.HEADER.size + (64 << 10)
_RECEIVE_BYTES: Final = 4 << 20
#: The largest answer that memory is allocated for.
_MAX_BYTES: Final = 1 << 31
#: The most calls of recv in one `receive`, so that other connections get their turn.
_RECEIVES: Final = 64
_WOULD_WAIT: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
        host: as gRPC dialled it.
        offered: the teacher's offer.
        tls: wraps a TCP socket in TLS; None for no encryption.
        timeout_s: of each step.
        unix: use the Unix socket of this host.

    Raises:
        OSError: nobody answers there, or another server does.
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
        ours = secrets.token_bytes(frames.CHALLENGE_BYTES)
        connection.sendall(frames.MAGIC + offered.session + ours)
        reply = _received(connection, frames.REPLY_BYTES)
        theirs, proof = reply[: frames.CHALLENGE_BYTES], reply[frames.CHALLENGE_BYTES :]
        if not hmac.compare_digest(proof, offered.teachers_proof(ours, theirs)):
            raise ConnectionAbortedError("another server than the one that offered it answers")
        connection.sendall(offered.readers_proof(ours, theirs))
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := connection.recv(count - len(data))):
            raise ConnectionResetError(
                "the teacher closed the connection: it does not accept this offer"
            )
        data += more
    return data


class ConnectionEnded(ConnectionAbortedError):
    """The teacher has ended a connection; `why` is its error."""

    def __init__(self, why: EdlError) -> None:
        super().__init__(f"the teacher ends the connection: {why}")
        self.why = why


@dataclass(slots=True)
class _PendingRequest:
    """A request without an answer; `current`: whether its inputs were unchanged when sent."""

    request: LabelRequest
    in_memory: bool
    current: bool | None = None


class RequestOutcome(NamedTuple):
    """What arrived for one request.

    Attributes:
        number: of the request.
        outcome: the answer, or the error.
        without_memory: the request may succeed if its arrays are sent inline.
    """

    number: int
    outcome: LabelResponse | EdlError
    without_memory: bool = False


class _RequestLayout(NamedTuple):
    """What requests with inputs of the same shapes have in common.

    Attributes:
        key: requests with equal keys have the same layout.
        fixed: the part of the key that an OPEN frame fixes.
        head: of each REQUEST frame, without locations in shared memory.
        rows: of each request.
    """

    key: tuple[Any, ...]
    fixed: tuple[Any, ...]
    head: bytes
    rows: int


class _ResultLayout(NamedTuple):
    """What results with outputs of the same shapes have in common.

    Attributes:
        head: of their frames.
        nbytes: of their arrays.
        arrays: name and datatype, shape, start and end of each array.
        parameters: of outputs that have any.
    """

    head: bytes
    nbytes: int
    arrays: list[tuple[FramedTensor, tuple[int, ...], int, int]]
    parameters: dict[str, Mapping[str, Parameter]]


class TransportConnection:
    """An open connection of the transport.

    Args:
        connection: from `connect`.
        model: the model that is asked.
        arena: memory of batches that the teacher can read in place; None sends all arrays.

    Attributes:
        in_memory: batches are read in place as far as possible.
        leaving: the teacher takes no more requests over this connection.
        unsent: queue of data that the socket has not taken yet, and of functions; each is called
            when the socket has taken all data before it.
    """

    def __init__(self, connection: socket.socket, model: str, arena: SharedBuffer | None) -> None:
        self.in_memory = arena is not None
        self.leaving = False
        self._socket = connection
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self._model = model
        self._arena = arena
        self._layout = _RequestLayout((), (), b"", 0)
        self._fixed: tuple[Any, ...] = ()  # what the latest OPEN frame fixed
        self._shared_memory_works = False
        self._sent: dict[int, _PendingRequest] = {}
        self.unsent: deque[memoryview | Callable[[], None]] = deque()
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = self._end = 0
        self._header: FrameHeader | None = None  # of the frame whose payload is being received
        self._head = b""
        self._payload = memoryview(b"")
        self._filled = 0
        self._description: ResultDescription | None = None
        self._result_layout: _ResultLayout | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_room(self) -> bool:
        """Whether another request may be added."""
        return not self.leaving and len(self._sent) < frames.REQUESTS_PER_CONNECTION

    def put(
        self,
        number: int,
        request: LabelRequest,
        timeout_s: float,
        locations: Mapping[str, BufferLocation],
    ) -> bool:
        """Queue a request for the next `send`.

        Args:
            number: of the request, unique on this connection.
            request: the request.
            timeout_s: seconds that the teacher has for it.
            locations: of the inputs in the arena, if all of them are known.

        Returns:
            False if this transport cannot carry the request.
        """
        inputs = request.inputs
        locations = locations if self.in_memory and len(locations) == len(inputs) else {}
        sent = _PendingRequest(request, in_memory=bool(locations))
        try:
            layout = self._layout_of(request, in_memory=bool(locations))
            head = layout.head
            if locations:
                head += b"".join([frames.BUFFER_LOCATION.pack(*locations[name]) for name in inputs])
                data, flags = [], frames.IN_SHARED_MEMORY
                sent.current = True  # the teacher checks the generations
            else:
                data = [to_bytes(p) for one in inputs.values() for p in pieces_of(one)]
                flags = 0
            nbytes = sum(map(len, data))
            header = FrameHeader(
                frames.REQUEST, flags, len(head), layout.rows, number, nbytes, timeout_s
            )
            first = header.pack() + head
            if layout.fixed != self._fixed:
                self.unsent.append(memoryview(self._opening(layout.fixed)))
                self._fixed = layout.fixed
        except (WireError, struct.error):  # no frame can carry it
            return False
        self.unsent.append(memoryview(first))
        self.unsent += [one for one in data if len(one)]
        if not locations:
            self.unsent.append(partial(_all_sent, sent))
        self._sent[number] = sent
        return True

    def send(self) -> None:
        """Send what is queued, as far as the socket takes it; raises OSError after the end."""
        while self.unsent:
            if not isinstance(first := self.unsent[0], memoryview):
                first()
                self.unsent.popleft()
                continue
            try:
                count = self._send_some()
            except _WOULD_WAIT:
                return
            while count:
                first = self.unsent[0]
                assert isinstance(first, memoryview)
                taken = min(count, len(first))
                count -= taken
                if taken == len(first):
                    self.unsent.popleft()
                else:
                    self.unsent[0] = first[taken:]

    def receive(self) -> list[RequestOutcome]:
        """Receive what has arrived for requests.

        Raises:
            OSError: the connection has ended; everything that arrived before has been returned.
            ConnectionEnded: the teacher has ended it; what arrived just before may be lost.
            WireError: what arrived is not valid; what arrived just before may be lost.
        """
        outcomes: list[RequestOutcome] = []
        receives = 0
        while receives < _RECEIVES or self._has_read_ahead:
            receives += 1
            try:
                count = self._receive()
            except _WOULD_WAIT:
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
                break  # usually nothing is left; if something is, the socket is still readable
        return outcomes

    def unanswered(self) -> list[int]:
        """Numbers of the requests without an answer."""
        return list(self._sent)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.unsent.clear()
        self._socket.close()

    @property
    def _has_read_ahead(self) -> bool:
        """Whether TLS has buffered data that the socket does not announce."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    # --- sending

    def _layout_of(self, request: LabelRequest, *, in_memory: bool) -> _RequestLayout:
        """Return the layout of a request, reused while the key is the same.

        Raises:
            WireError: no frame can carry such requests.
        """
        nbytes = self._arena.size_bytes if in_memory and self._arena is not None else 0
        inputs = [(name, one.dtype, one.shape) for name, one in request.inputs.items()]
        asked = (request.outputs, request.parameters, request.output_parameters, nbytes)
        key = (inputs, request.request_id.rpartition("#")[0], asked)
        if key == self._layout.key:
            return self._layout
        if not 1 <= len(inputs) <= frames.MAX_ARRAYS:
            raise WireError(f"a request with {len(inputs)} inputs")
        for name, dtype, shape in inputs:
            if dtype.hasobject or not 1 <= len(shape) <= frames.MAX_NDIM:
                raise WireError(f"input {name!r} of {dtype} with {len(shape)} dimensions")
        fixed = ([(name, dtype, len(shape)) for name, dtype, shape in inputs], *key[1:])
        head = frames.pack_shapes([shape for _, _, shape in inputs])
        self._layout = _RequestLayout(key, fixed, head, inputs[0][2][0])
        return self._layout

    def _opening(self, fixed: tuple[Any, ...]) -> bytes:
        """Return the OPEN frame for `fixed`; raises WireError if its content is not valid."""
        inputs, caller, (outputs, parameters, output_parameters, nbytes) = fixed
        tensors = tuple(
            FramedTensor(name, datatype_of(dtype), ndim) for name, dtype, ndim in inputs
        )
        key = self._arena.key if nbytes and self._arena is not None else ""
        return OpenFrame(
            self._model, tensors, outputs, parameters, output_parameters, key, nbytes, caller
        ).frame()

    def _send_some(self) -> int:
        if self._encrypted:
            first = self.unsent[0]
            assert isinstance(first, memoryview)
            return self._socket.send(first[:_RECEIVE_BYTES])
        pieces = []
        for one in self.unsent:
            if not isinstance(one, memoryview):
                break
            pieces.append(one)
        return self._socket.sendmsg(pieces[:64])

    # --- receiving

    def _receive(self) -> int:
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
            have = self._end - self._start
            if have < frames.HEADER.size:
                return None
            header = FrameHeader.unpack(self._staging[self._start : self._end])
            self._check(header)  # before memory is allocated for it
            if have < frames.HEADER.size + header.head_bytes:
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
        """Raise WireError for a frame that a teacher must not send now."""
        match header.kind:
            case frames.RESULT:
                if (sent := self._sent.get(header.number)) is None:
                    raise WireError(f"a result of unknown request {header.number}")
                if sent.current is None:
                    raise WireError(
                        f"a result of request {header.number}, which was not sent completely"
                    )
                possible = header.nbytes <= _MAX_BYTES
            case frames.ERROR:
                possible = header.nbytes <= frames.MAX_JSON_BYTES and not header.head_bytes
            case frames.GOAWAY:
                possible = not (header.nbytes or header.head_bytes or self.leaving)
            case _:
                possible = False
        if not possible:
            raise WireError(f"no teacher sends a frame of kind {header.kind} like this")

    def _read(self, header: FrameHeader, payload: memoryview) -> RequestOutcome | None:
        """Process a frame, whose head is in `_head`; return the outcome of a request."""
        if header.kind == frames.GOAWAY:
            self.leaving = True
            return None
        if header.kind == frames.ERROR:
            return self._failed(header, frames.read_error(bytes(payload)))
        answer = self._answer(header, payload)
        sent = self._sent.pop(header.number)
        self._shared_memory_works |= sent.in_memory
        if not sent.current:
            return RequestOutcome(header.number, InputsOverwritten(OVERWRITTEN))
        return RequestOutcome(header.number, answer)

    def _failed(self, header: FrameHeader, error: EdlError) -> RequestOutcome:
        if header.number not in self._sent:  # about the connection: no request on it is answered
            self.leaving = True
            raise ConnectionEnded(error)
        sent = self._sent.pop(header.number)
        if sent.current is False:
            error = InputsOverwritten(OVERWRITTEN)
        # Until shared memory has worked once, it may be the cause of any other error.
        suspected = not self._shared_memory_works and not isinstance(
            error, RateLimited | AccessError
        )
        memory_failed = sent.in_memory and (
            bool(header.flags & frames.SHARED_MEMORY_FAILED) or suspected
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
            raise WireError("a result without a description")
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
    """Locate the arrays of such results; raises WireError if they do not fit the frame."""
    shapes, arrays, begin = frames.unpack_shapes(head, described.outputs), [], 0
    layouts = frames.layouts_of(described.outputs, shapes, nbytes)
    for tensor, (dtype, shape) in zip(described.outputs, layouts, strict=True):
        end = begin + dtype.itemsize * math.prod(shape)
        arrays.append((tensor, shape, begin, end))
        begin = end
    own = {one.name: one.parameters for one in described.outputs if one.parameters}
    return _ResultLayout(head, nbytes, arrays, own)


def _all_sent(sent: _PendingRequest) -> None:
    """Record whether the inputs of a request were still unchanged when it had been sent."""
    sent.current = sent.request.is_current()
