"""Answers of a teacher, spoilt on their way: what a broken or lying server would send.

Each lie but the last can be told from a right answer by looking at that answer alone. Flipped bits
are of the header, as there each either makes the answer wrong in a way that shows or does not
matter; a bit flipped in a label is a label like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from google.protobuf.message import DecodeError

from ...errors import WireError
from ...proto import inference_pb2 as pb
from ...proto.stream_answers import answered
from ...proto.wire import bytes_field, take_out
from .frames import Cutter, Frame
from .replies import ReplyCutter, WebReply, flip, spoil_reply

_RAW = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_RESPONSE = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer, taken apart.

    Attributes:
        header: all but the labels, as it came.
        answer: the same, parsed.
        raw: the labels.
    """

    header: bytes
    answer: pb.ModelInferResponse
    raw: bytearray


Lie = Callable[[Parts, Random], bytes]


class Liar:
    """Spoils the answers that pass through one gate, while it is told to.

    Attributes:
        spoilt: how many answers it has spoilt.
    """

    def __init__(self, seed: int) -> None:
        self.spoilt = 0
        self._rng = Random(seed)
        self._lie: Lie | None = None
        self._lock = threading.Lock()  # connections of one gate have threads of their own

    def tell(self, kind: str | None) -> None:
        """From now on lie in this way (a key of `LIES`); None: hand answers on as they come."""
        self._lie = None if kind is None else LIES[kind]

    def connection(self) -> Callable[[bytes], bytes]:
        """What one connection's answers go through: bytes as they come to bytes to hand on."""
        cutter = Cutter()

        def through(data: bytes) -> bytes:
            return b"".join(self._frame(frame).encode() for frame in cutter.feed(data))

        return through

    def web_connection(self) -> Callable[[bytes], bytes]:
        """The same for a connection of HTTP."""
        cutter = ReplyCutter()

        def through(data: bytes) -> bytes:
            return b"".join(
                one if isinstance(one, bytes) else self._reply(one).encode()
                for one in cutter.feed(data)
            )

        return through

    def _reply(self, reply: WebReply) -> WebReply:
        if (lie := self._lie) is None:
            return reply
        with self._lock:
            if lie is _flip:
                spoilt = flip(reply, self._rng)
            else:
                spoilt = spoil_reply(reply, lambda message: spoil(message, lie, self._rng))
            if spoilt is None:
                return reply
            self.spoilt += 1
        return spoilt

    def _frame(self, frame: Frame) -> Frame:
        lie = self._lie
        message = None if lie is None else frame.message()
        if lie is None or message is None:
            return frame
        with self._lock:
            spoilt = spoil(message, lie, self._rng)
            if spoilt is None:
                return frame
            self.spoilt += 1
        return frame.with_message(spoilt)


def spoil(message: bytes, lie: Lie, rng: Random) -> bytes | None:
    """A serialised answer, of a call or of a stream, spoilt; None where `message` is neither.

    Only answers with one tensor of labels are spoilt.
    """
    try:
        _, responses = take_out(message, _RESPONSE)
        if len(responses) == 1 and (spoilt := _spoil(bytes(responses[0]), lie, rng)) is not None:
            return answered(spoilt)
        return _spoil(message, lie, rng)
    except (WireError, DecodeError):
        return None


def _spoil(message: bytes, lie: Lie, rng: Random) -> bytes | None:
    try:
        header, raws = take_out(message, _RAW)
        answer = pb.ModelInferResponse.FromString(header)
    except (WireError, DecodeError):  # of a call, the field of a stream's answer is a word
        return None
    if len(raws) != 1 or len(answer.outputs) != 1 or not answer.outputs[0].shape:
        return None
    return lie(Parts(header, answer, bytearray(raws[0])), rng)


def _nan(parts: Parts, rng: Random) -> bytes:
    raw = parts.raw
    at = rng.randrange(len(raw) // _FLOAT_BYTES) * _FLOAT_BYTES
    raw[at : at + _FLOAT_BYTES] = np.float32("nan").tobytes()
    return _joined(parts.header, raw)


def _flip(parts: Parts, rng: Random) -> bytes:
    header = bytearray(parts.header)
    bit = rng.randrange(8 * len(header))
    header[bit // 8] ^= 1 << bit % 8
    return _joined(header, parts.raw)


def _shape(parts: Parts, rng: Random) -> bytes:
    shape = parts.answer.outputs[0].shape
    row_bytes = len(parts.raw) // shape[0]
    shape[0] -= 1
    return _joined(parts.answer.SerializeToString(), parts.raw[row_bytes:])


def _instance(parts: Parts, rng: Random) -> bytes:
    told = parts.answer.parameters["incarnation"].string_param
    parts.answer.parameters["incarnation"].string_param = str(int(told or 0) + 1)
    return _joined(parts.answer.SerializeToString(), parts.raw)


def _other(parts: Parts, rng: Random) -> bytes:
    """Right numbers, of other samples: all rows move by one, a single one's labels by one."""
    raw = parts.raw
    row_bytes = len(raw) // parts.answer.outputs[0].shape[0]
    step = row_bytes if len(raw) > row_bytes else _FLOAT_BYTES
    return _joined(parts.header, raw[step:] + raw[:step])


def _joined(header: bytes | bytearray, raw: bytearray) -> bytes:
    return bytes(header + bytes_field(_RAW, len(raw)) + raw)


#: By the kinds of faults that tell them.
LIES: dict[str, Lie] = {
    "answer-nan": _nan,
    "answer-flip": _flip,
    "answer-shape": _shape,
    "answer-instance": _instance,
    "answer-other": _other,
}
