"""Results of a teacher, spoilt on their way: what a broken or lying teacher would send.

Each lie but the last can be told from a right answer by looking at that answer alone. Bits are
flipped in all but the labels and the number of the request: nothing tells a flipped bit in those
from a right one.
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
#: Where the number of the request lies in a header.
_NUMBER = range(12, 20)


@dataclass(frozen=True, slots=True)
class Result:
    """A RESULT frame with one output, taken apart.

    Attributes:
        header: as it came.
        shape: of the labels.
        description: that it came with, or that an earlier one came with.
        labels: their bytes.
    """

    header: FrameHeader
    shape: tuple[int, ...]
    description: ResultDescription
    labels: bytes

    def frame(self) -> bytes:
        """The frame, with the description in it."""
        head, described = frames.pack_shapes([self.shape]), self.description.to_bytes()
        header = self.header._replace(
            flags=self.header.flags | frames.DESCRIBED,
            head_bytes=len(head),
            nbytes=len(described) + len(self.labels),
        )
        return header.pack() + head + described + self.labels

    @property
    def row_bytes(self) -> int:
        return len(self.labels) // self.shape[0]


Lie = Callable[[Result, Random], bytes]


class Liar:
    """Spoils the results that pass through one gate, while it is told to.

    Attributes:
        spoilt: how many results it has spoilt.
    """

    def __init__(self, seed: int) -> None:
        self.spoilt = 0
        self._rng = Random(seed)
        self._lie: Lie | None = None
        self._lock = Lock()  # connections of one gate have threads of their own

    def tell(self, kind: str | None) -> None:
        """From now on lie in this way (a key of `LIES`); None: hand results on as they come."""
        self._lie = None if kind is None else LIES[kind]

    def connection(self) -> Callable[[bytes], bytes]:
        """What one connection's bytes go through, from those as they come to those to hand on."""
        return _Answers(self).feed

    def spoil(self, result: Result) -> bytes | None:
        """The result as another frame; None: it is to stay as it is."""
        with self._lock:
            if (lie := self._lie) is None:
                return None
            self.spoilt += 1
            return lie(result, self._rng)


class _Answers:
    """What a teacher sends by one connection: its part of the proof, and frames."""

    def __init__(self, liar: Liar) -> None:
        self._liar = liar
        self._rest = b""
        self._proved = False
        self._description: ResultDescription | None = None
        self._misled = False  # the reader knows another description, or may

    def feed(self, data: bytes) -> bytes:
        self._rest += data
        handed_on = b""
        if not self._proved and len(self._rest) >= REPLY_BYTES:
            self._proved = True
            handed_on = self._take(REPLY_BYTES)
        while self._proved and (frame := self._frame()):
            handed_on += frame
        return handed_on

    def _take(self, count: int) -> bytes:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def _frame(self) -> bytes:
        """What becomes of the next frame; nothing while it is not here as a whole."""
        if len(self._rest) < HEADER.size:
            return b""
        header = FrameHeader.unpack(self._rest)
        whole = HEADER.size + header.head_bytes + header.nbytes
        if len(self._rest) < whole:
            return b""
        frame = self._take(whole)
        return self._result(header, frame) if header.kind == frames.RESULT else frame

    def _result(self, header: FrameHeader, frame: bytes) -> bytes:
        begin = HEADER.size + header.head_bytes
        head, payload = frame[HEADER.size : begin], frame[begin:]
        if header.flags & frames.DESCRIBED:
            self._description, begin = ResultDescription.take(memoryview(payload))
            payload = payload[begin:]
        assert self._description is not None, "the first result has a description"
        (shape,) = frames.unpack_shapes(head, self._description.outputs)
        result = Result(header, shape, self._description, payload)
        spoilt = self._liar.spoil(result)
        if spoilt is None and self._misled:
            self._misled = False
            return result.frame()
        self._misled = spoilt is not None
        return frame if spoilt is None else spoilt


def _nan(result: Result, rng: Random) -> bytes:
    labels = bytearray(result.labels)
    at = rng.randrange(len(labels) // _FLOAT_BYTES) * _FLOAT_BYTES
    labels[at : at + _FLOAT_BYTES] = np.float32("nan").tobytes()
    return replace(result, labels=bytes(labels)).frame()


def _flip(result: Result, rng: Random) -> bytes:
    frame = bytearray(result.frame())
    places = [at for at in range(len(frame) - len(result.labels)) if at not in _NUMBER]
    bit = rng.randrange(8 * len(places))
    frame[places[bit // 8]] ^= 1 << bit % 8
    return bytes(frame)


def _shape(result: Result, rng: Random) -> bytes:
    rows, *others = result.shape
    labels = result.labels[result.row_bytes :]
    return replace(result, shape=(rows - 1, *others), labels=labels).frame()


def _instance(result: Result, rng: Random) -> bytes:
    told = dict(result.description.parameters)
    told["incarnation"] = str(int(told["incarnation"]) + 1)
    return replace(result, description=replace(result.description, parameters=told)).frame()


def _other(result: Result, rng: Random) -> bytes:
    """Right numbers, of other samples: all rows move by one, a single one's labels by one."""
    labels = result.labels
    step = result.row_bytes if len(labels) > result.row_bytes else _FLOAT_BYTES
    return replace(result, labels=labels[step:] + labels[:step]).frame()


#: By the kinds of faults that tell them.
LIES: dict[str, Lie] = {
    "answer-nan": _nan,
    "answer-flip": _flip,
    "answer-shape": _shape,
    "answer-instance": _instance,
    "answer-other": _other,
}
