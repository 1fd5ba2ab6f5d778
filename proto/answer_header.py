"""What a `ModelInferResponse` says beside its elements, serialised.

Protobuf makes an object of each parameter, and that takes longer than all else about a small
answer. Answers of one teacher say nearly the same, so the fields are made here, and kept where they
come again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from ..errors import WireError
from . import inference_pb2 as pb
from .datatypes import shown
from .wire import bytes_field, varint

Parameter = bool | int | float | str
#: Name, datatype, shape, parameters.
Tensor = tuple[str, str, tuple[int, ...], Mapping[str, Parameter]]

_Response = pb.ModelInferResponse
_Output = pb.ModelInferResponse.InferOutputTensor
_Kind = pb.InferParameter
#: Of an entry of a map.
_KEY, _VALUE = 1, 2
_FIXED64: Final = 1
_DOUBLE: Final = struct.Struct("<d")
_MOST: Final = 1 << 64


def answer_header(
    *,
    model_name: str,
    model_version: str,
    request_id: str,
    parameters: Mapping[str, Parameter],
    outputs: Iterable[Tensor],
) -> bytes:
    """The fields of a `ModelInferResponse`, all but its raw contents.

    Raises:
        WireError: a parameter that the protocol has no place for.
        ValueError: text that is not Unicode.
    """
    parts = [_about(model_name, model_version), _text(_Response.ID_FIELD_NUMBER, request_id)]
    parts += _entries(_Response.PARAMETERS_FIELD_NUMBER, parameters)
    for name, datatype, shape, named in outputs:
        output = _tensor(name, datatype, shape)
        if named:
            output = b"".join((output, *_entries(_Output.PARAMETERS_FIELD_NUMBER, named)))
        parts += (bytes_field(_Response.OUTPUTS_FIELD_NUMBER, len(output)), output)
    return b"".join(parts)


@lru_cache(maxsize=16)
def _about(model_name: str, model_version: str) -> bytes:
    name = _text(_Response.MODEL_NAME_FIELD_NUMBER, model_name)
    return name + _text(_Response.MODEL_VERSION_FIELD_NUMBER, model_version)


@lru_cache(maxsize=256)
def _tensor(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    sizes = b"".join(map(varint, shape))
    return b"".join(
        (
            _text(_Output.NAME_FIELD_NUMBER, name),
            _text(_Output.DATATYPE_FIELD_NUMBER, datatype),
            bytes_field(_Output.SHAPE_FIELD_NUMBER, len(sizes)),
            sizes,
        )
    )


def _text(field: int, text: str) -> bytes:
    """A field of text; left out where it is empty, as protobuf does."""
    raw = text.encode()
    return bytes_field(field, len(raw)) + raw if raw else b""


def _entries(field: int, parameters: Mapping[str, Parameter]) -> list[bytes]:
    """The entries of the map `field`."""
    return [
        # Of numbers none is kept, as 0.0 is no other key than -0.0.
        _opening(field, name) + _DOUBLE.pack(value)
        if isinstance(value, float)
        else _kept(field, name, value)
        for name, value in parameters.items()
    ]


@lru_cache(maxsize=256)
def _opening(field: int, name: str) -> bytes:
    """All of an entry but its number, which comes last."""
    tag = varint(_Kind.DOUBLE_PARAM_FIELD_NUMBER << 3 | _FIXED64)
    return _entry(field, name, tag + bytes(_DOUBLE.size))[: -_DOUBLE.size]


@lru_cache(maxsize=256, typed=True)
def _kept(field: int, name: str, value: bool | int | str) -> bytes:
    return _entry(field, name, _choice(name, value))


def _entry(field: int, name: str, value: bytes) -> bytes:
    raw = name.encode()
    entry = b"".join((bytes_field(_KEY, len(raw)), raw, bytes_field(_VALUE, len(value)), value))
    return bytes_field(field, len(entry)) + entry


def _choice(name: str, value: Parameter) -> bytes:
    """An `InferParameter`."""
    if isinstance(value, str):
        raw = value.encode()
        return bytes_field(_Kind.STRING_PARAM_FIELD_NUMBER, len(raw)) + raw
    if isinstance(value, bool):  # before int, which a bool also is
        return varint(_Kind.BOOL_PARAM_FIELD_NUMBER << 3) + varint(value)
    if isinstance(value, int) and -_MOST // 2 <= value < _MOST:
        small = value < _MOST // 2
        field = _Kind.INT64_PARAM_FIELD_NUMBER if small else _Kind.UINT64_PARAM_FIELD_NUMBER
        return varint(field << 3) + varint(value % _MOST)
    raise WireError(f"parameter {shown(name)} cannot be sent: {shown(str(value))}")
