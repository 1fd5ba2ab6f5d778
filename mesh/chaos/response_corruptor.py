"""Corrupts a teacher's responses on the wire, as a faulty or lying teacher would send them.

Every corruption except "answer-other" can be detected from the response alone. "answer-flip"
changes neither the labels nor the request number: no check could detect a flipped bit there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from threading import Lock

import numpy as np

from ...proto import frames
from ...proto.frames import HEADER, REPLY_BYTES, FrameHeader, ResultDescription

_FLOAT_BYTES = 4
#: Offsets of the request number in a header.
_REQUEST_NUMBER = range(12, 20)


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """A parsed RESULT frame with one output.

    Attributes:
        header: header as received.
        shape: shape of the labels.
        description: description from this frame, or from an earlier one of the connection.
        labels: bytes of the labels.
    """

    header: FrameHeader
    shape: tuple[int, ...]
    description: ResultDescription
    labels: bytes

    def to_bytes(self) -> bytes:
        """Serialize the frame, including the description."""
        head, description = frames.pack_shapes([self.shape]), self.description.to_bytes()
        header = self.header._replace(
            flags=self.header.flags | frames.DESCRIBED,
            head_bytes=len(head),
            nbytes=len(description) + len(self.labels),
        )
        return header.pack() + head + description + self.labels

    @property
    def row_bytes(self) -> int:
        return len(self.labels) // self.shape[0]


Corruption = Callable[[ResultFrame, Random], bytes]


class ResponseCorruptor:
    """Corrupts the results that pass through one proxy while a corruption is set. Thread-safe.

    Attributes:
        effects: number of corrupted results.
    """

    def __init__(self, seed: int) -> None:
        self.effects = 0
        self._rng = Random(seed)
        self._corruption: Corruption | None = None
        self._lock = Lock()  # each connection of the proxy has its own thread

    def use(self, kind: str) -> None:
        """Set the corruption, a key of `CORRUPTIONS`."""
        self._corruption = CORRUPTIONS[kind]

    def heal(self) -> None:
        """Forward results unchanged."""
        self._corruption = None

    def new_filter(self) -> Callable[[bytes], bytes]:
        """Make the stream filter of one connection."""
        return _ResponseStream(self).feed

    def corrupt(self, result: ResultFrame) -> bytes | None:
        """Return the frame to send instead; None: send it unchanged."""
        with self._lock:
            if (corruption := self._corruption) is None:
                return None
            self.effects += 1
            return corruption(result, self._rng)


class _ResponseStream:
    """Parses a teacher's bytes of one connection: the handshake reply, then frames."""

    def __init__(self, corruptor: ResponseCorruptor) -> None:
        self._corruptor = corruptor
        self._buffered = b""
        self._handshake_done = False
        self._description: ResultDescription | None = None
        self._description_corrupted = False  # the reader may have a wrong description

    def feed(self, data: bytes) -> bytes:
        self._buffered += data
        forwarded = b""
        while piece := self._next_piece():
            forwarded += piece
        return forwarded

    def _take(self, count: int) -> bytes:
        """Remove and return `count` bytes of the buffer; empty: the buffer has fewer."""
        if len(self._buffered) < count:
            return b""
        taken, self._buffered = self._buffered[:count], self._buffered[count:]
        return taken

    def _next_piece(self) -> bytes:
        """Return the bytes to send for the handshake or the next frame; empty: none is complete."""
        if not self._handshake_done:
            reply = self._take(REPLY_BYTES)
            self._handshake_done = bool(reply)
            return reply
        if len(self._buffered) < HEADER.size:
            return b""
        header = FrameHeader.unpack(self._buffered)
        frame = self._take(HEADER.size + header.head_bytes + header.nbytes)
        is_result = bool(frame) and header.kind == frames.RESULT
        return self._filter_result(header, frame) if is_result else frame

    def _filter_result(self, header: FrameHeader, frame: bytes) -> bytes:
        head_end = HEADER.size + header.head_bytes
        head, payload = frame[HEADER.size : head_end], frame[head_end:]
        if header.flags & frames.DESCRIBED:
            self._description, labels_start = ResultDescription.take(memoryview(payload))
            payload = payload[labels_start:]
        assert self._description is not None, "the first result has a description"
        (shape,) = frames.unpack_shapes(head, self._description.outputs)
        result = ResultFrame(header, shape, self._description, payload)
        corrupted = self._corruptor.corrupt(result)
        if corrupted is None and self._description_corrupted:
            self._description_corrupted = False
            return result.to_bytes()
        self._description_corrupted = corrupted is not None
        return frame if corrupted is None else corrupted


def _set_nan(result: ResultFrame, rng: Random) -> bytes:
    labels = bytearray(result.labels)
    at = rng.randrange(len(labels) // _FLOAT_BYTES) * _FLOAT_BYTES
    labels[at : at + _FLOAT_BYTES] = np.float32("nan").tobytes()
    return replace(result, labels=bytes(labels)).to_bytes()


def _flip_bit(result: ResultFrame, rng: Random) -> bytes:
    frame = bytearray(result.to_bytes())
    offsets = [at for at in range(len(frame) - len(result.labels)) if at not in _REQUEST_NUMBER]
    bit = rng.randrange(8 * len(offsets))
    frame[offsets[bit // 8]] ^= 1 << bit % 8
    return bytes(frame)


def _drop_row(result: ResultFrame, rng: Random) -> bytes:
    rows, *others = result.shape
    labels = result.labels[result.row_bytes :]
    return replace(result, shape=(rows - 1, *others), labels=labels).to_bytes()


def _change_incarnation(result: ResultFrame, rng: Random) -> bytes:
    parameters = dict(result.description.parameters)
    parameters["incarnation"] = str(int(parameters["incarnation"]) + 1)
    description = replace(result.description, parameters=parameters)
    return replace(result, description=description).to_bytes()


def _rotate_labels(result: ResultFrame, rng: Random) -> bytes:
    """Rotate the labels by one row; labels of a single row by one class."""
    labels = result.labels
    step = result.row_bytes if len(labels) > result.row_bytes else _FLOAT_BYTES
    return replace(result, labels=labels[step:] + labels[:step]).to_bytes()


#: Corruptions by the name of the fault kind.
CORRUPTIONS: dict[str, Corruption] = {
    "answer-nan": _set_nan,
    "answer-flip": _flip_bit,
    "answer-shape": _drop_row,
    "answer-instance": _change_incarnation,
    "answer-other": _rotate_labels,
}
