"""Requests for a batch in shared memory, of which each is mostly like the one before.

What differs from one to the next is the request's id, and where its input lies. To find out all
else takes longer than the rest of a small request. So these are cut out of the message: those of
which the same bytes are left are of one *kind*, and say the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from ..errors import WireError
from . import inference_pb2 as pb
from .places import GENERATION, GENERATION_OFFSET, OFFSET
from .wire import bytes_field, read_varint

#: Longer ones are not looked at.
_MOST_BYTES: Final = 1024
_MOST_VARINT_BYTES: Final = 10
_MODEL_NAME, _MODEL_VERSION, _ID = (
    field << 3 | 2
    for field in (
        pb.ModelInferRequest.MODEL_NAME_FIELD_NUMBER,
        pb.ModelInferRequest.MODEL_VERSION_FIELD_NUMBER,
        pb.ModelInferRequest.ID_FIELD_NUMBER,
    )
)
_NUMBER: Final = pb.InferParameter.INT64_PARAM_FIELD_NUMBER << 3
#: What stands before the value in the map entry of each parameter.
_OPENINGS: Final = {
    name: bytes_field(1, len(name)) + name.encode() + bytes([2 << 3 | 2])
    for name in (OFFSET, GENERATION, GENERATION_OFFSET)
}
_ONE_BYTE: Final = 0x80


class Cut(NamedTuple):
    """A request in two.

    Attributes:
        kind: what is equal for requests that differ in nothing else.
        request_id: of this one.
        numbers: where its input lies: the offset, the generation, and the generation's offset,
            None where that is right before the input.
        spans: of the message, from where to where the id and the numbers stand.
    """

    kind: tuple[bytes, ...]
    request_id: str
    numbers: tuple[int, int, int | None]
    spans: tuple[tuple[int, int], ...]


def cut(data: bytes) -> Cut | None:
    """Cut a serialised `ModelInferRequest`; None for one that does not look as ours do.

    What it takes for the id and the numbers need not be that: `is_right` finds out, once for each
    kind.
    """
    if len(data) > _MOST_BYTES:
        return None
    try:
        id_at = _id_span(data)
        request_id = data[slice(*id_at)].decode()
        offset, offset_at = _number(data, OFFSET)
        generation, generation_at = _number(data, GENERATION)
        spans = [id_at, offset_at, generation_at]
        apart = None
        if _OPENINGS[GENERATION_OFFSET] in data:
            apart, apart_at = _number(data, GENERATION_OFFSET)
            spans.append(apart_at)
    except (IndexError, ValueError, WireError):
        return None
    spans.sort()
    kind, done = [], 0
    for begin, end in spans:
        kind.append(data[done:begin])
        done = end
    kind.append(data[done:])
    return Cut(tuple(kind), request_id, (offset, generation, apart), tuple(spans))


def is_right(data: bytes, found: Cut) -> bool:
    """Whether any request of this kind has its id and its numbers where they were found in `data`.

    So it is when one that has others there differs in just these from `data`, and in that way.
    """
    other = bytearray(data)
    begin, end = _id_span(data)
    other[begin:end] = (b"!" if data[begin:end] != b"!" * (end - begin) else b"~") * (end - begin)
    for start, stop in found.spans:
        if (start, stop) != (begin, end):
            other[start] ^= 1
    try:
        said = pb.ModelInferRequest.FromString(data)
        differs = pb.ModelInferRequest.FromString(bytes(other))
    except DecodeError:
        return False
    if len(said.inputs) != 1 or len(differs.inputs) != 1 or said.id != found.request_id:
        return False
    theirs, named = differs.inputs[0].parameters, said.inputs[0].parameters
    for name, number in zip((OFFSET, GENERATION, GENERATION_OFFSET), found.numbers, strict=True):
        if number is not None:
            if name not in theirs or name not in named or named[name].int64_param != number:
                return False
            theirs[name].int64_param ^= 1
    differs.id = said.id
    return differs == said


def _id_span(data: bytes) -> tuple[int, int]:
    """From where to where the id stands, if the fields are in the order of their numbers."""
    at = 0
    for field in (_MODEL_NAME, _MODEL_VERSION, _ID):
        if data[at] == field:
            nbytes = data[at + 1]
            if nbytes >= _ONE_BYTE:
                raise ValueError
            if field == _ID:
                return at + 2, at + 2 + nbytes
            at += 2 + nbytes
    return at, at


def _number(data: bytes, name: str) -> tuple[int, tuple[int, int]]:
    """A number among the parameters, named once, and from where to where it stands."""
    opening = _OPENINGS[name]
    at = data.index(opening) + len(opening)
    begin, end = at + 2, at + 1 + data[at]
    if data[at + 1] != _NUMBER or opening in data[at:]:
        raise ValueError
    number, found_end = read_varint(data, begin, _MOST_VARINT_BYTES)
    if found_end != end:
        raise ValueError
    return number, (begin, end)
