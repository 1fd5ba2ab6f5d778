"""Answers of one teacher, of which each is mostly like the one before.

What an answer says beside its elements is the same for all batches of one size, but for the
request's id and the seconds of the device; and to find out what it says takes longer than all else
about it. So what is the same, its *head*, is kept of an answer that was decoded. One that has the
very same bytes there says the same; any other is decoded as ever.
"""

from __future__ import annotations

import struct
from typing import Final, Self

import numpy as np

from ..errors import EdlError
from . import inference_pb2 as pb
from .datatypes import Array, datatype_of
from .stream_answers import read
from .tensors import InferResponse, decode_response
from .wire import Buffer, bytes_field

#: The parameter that differs from answer to answer.
SECONDS: Final = "device_seconds"

_DOUBLE: Final = struct.Struct("<d")
_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
_ID: Final = pb.ModelInferResponse.ID_FIELD_NUMBER
#: What stands before the number in the map entry of that parameter.
_SECONDS_TAG: Final = (
    bytes_field(1, len(SECONDS))
    + SECONDS.encode()
    + bytes_field(2, 1 + _DOUBLE.size)
    + bytes([pb.InferParameter.DOUBLE_PARAM_FIELD_NUMBER << 3 | 1])
)
#: What a head is tried with, before it is believed: no answer has these.
_OTHER_ID, _OTHER_SECONDS = "edl-alike", 1.0e-9


class Head:
    """What answers of one output have in common, by `of`.

    Args:
        parts: bytes before the id, from there to the seconds, from there to the elements.
        like: the output of one of them.
    """

    def __init__(self, parts: tuple[bytes, bytes, bytes], like: Array) -> None:
        self._before, self._between, self._behind = parts
        self._dtype, self._shape, self._nbytes = like.dtype, like.shape, like.nbytes
        self._openings: dict[int, bytes] = {}  # by the length of the id

    @classmethod
    def of(cls, answer: Buffer) -> Self | None:
        """The head of an answer, as it came over a stream; None: it is like no other.

        Raises:
            EdlError: as of `stream_answers.read` and `tensors.decode_response`.
        """
        response = read(answer)
        said = decode_response(response)
        if len(said.outputs) != 1:
            return None
        (like,) = said.outputs.values()
        if datatype_of(like.dtype) in ("BYTES", "BOOL"):  # of which each element is looked at
            return None
        told = said.request_id.encode()
        text = bytes(response[: len(response) - like.nbytes])
        before, id_field, rest = text.partition(bytes_field(_ID, len(told)) + told)
        between, tag, rest = rest.partition(_SECONDS_TAG)
        if not (id_field and tag):
            return None
        head = cls((before, between + tag, rest[_DOUBLE.size :]), like)
        return head if head._is_right(said) else None

    def read(self, answer: memoryview, request_id: str) -> tuple[float, Array] | None:
        """The seconds of the device and the output, in the answer's own memory.

        Args:
            answer: as of `of`.
            request_id: what was asked under; an answer to anything else is not like this.

        Returns:
            None for an answer that has another head.
        """
        opening = self._opening(request_id.encode())
        seconds_at = len(opening)
        behind_at = seconds_at + _DOUBLE.size
        elements_at = behind_at + len(self._behind)
        if (
            len(answer) != elements_at + self._nbytes
            or bytes(answer[:seconds_at]) != opening
            or bytes(answer[behind_at:elements_at]) != self._behind
        ):
            return None
        (seconds,) = _DOUBLE.unpack_from(answer, seconds_at)
        return seconds, np.frombuffer(answer[elements_at:], self._dtype).reshape(self._shape)

    def _opening(self, told: bytes) -> bytes:
        """All that stands before the seconds in an answer to a request of this id."""
        nbytes = len(told)
        if (opening := self._openings.get(nbytes)) is None:
            own = self._before + bytes_field(_ID, nbytes)
            behind = len(self._between) + _DOUBLE.size + len(self._behind) + self._nbytes
            opening = bytes_field(_RESPONSE, len(own) + nbytes + behind) + own
            self._openings[nbytes] = opening
        return opening + told + self._between

    def _is_right(self, said: InferResponse) -> bool:
        """Whether an answer of this head, but of another id and other seconds, says just that."""
        made = self._opening(_OTHER_ID.encode()) + _DOUBLE.pack(_OTHER_SECONDS) + self._behind
        try:
            found = decode_response(read(made + bytes(self._nbytes)))
        except EdlError:
            return False
        ((name, array),) = found.outputs.items()
        return (
            found.request_id == _OTHER_ID
            and found.model_name == said.model_name
            and found.model_version == said.model_version
            and found.parameters == {**said.parameters, SECONDS: _OTHER_SECONDS}
            and found.output_parameters == said.output_parameters
            and (name, array.dtype, array.shape) == (*said.outputs, self._dtype, self._shape)
        )
