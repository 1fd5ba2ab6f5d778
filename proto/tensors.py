"""The codec of the data plane: `ModelInfer` messages with arrays, of which protobuf copies none.

On the wire they are plain messages of the Open Inference Protocol (inference.proto): any client
and server of it can be the peer. What differs is how they are made and read. The sender joins a
small header, serialised by protobuf, with the tag and length of each raw field and the array's own
memory: one copy. The receiver cuts the raw fields out as views (`wire.take_out`), which become
arrays: no copy; protobuf parses what is left.

A receiver believes nothing. Whatever is wrong with a message, decoding raises `WireError`, and what
it allocates before is bounded by a small multiple of the message's size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..errors import WireError
from . import inference_pb2 as pb
from .datatypes import (
    MAX_MESSAGE_BYTES,
    Array,
    Buffer,
    Input,
    Parameter,
    datatype_of,
    dtype_of,
    from_bytes,
    from_elements,
    nbytes_of,
    pieces_of,
    quoted,
    to_bytes,
)
from .protobuf_fields import bytes_field, split_bytes_field
from .shared_buffer import REGION, BufferRef

__all__ = [
    "Array",
    "InferRequest",
    "InferResponse",
    "SlowToDecode",
    "datatype_of",
    "decode_request",
    "decode_response",
    "dtype_of",
    "encode_request",
    "encode_response",
]

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
#: Parameters of a tensor which change what its message means, so that ignoring them would give
#: wrong arrays; they belong to extensions of the protocol that are not spoken here.
_NOT_SPOKEN = ("classification",)

#: Where the elements of a datatype stand that are sent one by one, as the specification says: by
#: small clients written by hand, and JSON gateways. FP16 and BF16 have no place.
_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

#: What a message may hold besides arrays that become views, to be decoded in a moment, in bytes.
_LIGHT_BYTES = 64 << 10

#: Reads what lies at a place in shared memory.
ReadBuffer = Callable[[BufferRef], memoryview]

_Tensor = pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor
_Described = (
    pb.ModelInferRequest.InferRequestedOutputTensor | pb.ModelInferResponse.InferOutputTensor
)
_M = TypeVar("_M", bound=Message)


class SlowToDecode(Exception):
    """Decoding a message takes more than a moment: do it elsewhere than in an event loop."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded `ModelInferRequest`."""

    model_name: str
    model_version: str = ""
    request_id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # the outputs asked for; empty: every one
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferResponse:
    """A decoded `ModelInferResponse`."""

    model_name: str
    model_version: str = ""
    request_id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: Mapping[str, Array] = field(default_factory=dict)
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)


def encode_request(
    *,
    model_name: str,
    inputs: Mapping[str, Input],
    outputs: Sequence[str] = (),
    model_version: str = "",
    request_id: str = "",
    parameters: Mapping[str, Parameter] = {},
    output_parameters: Mapping[str, Mapping[str, Parameter]] = {},
) -> bytes:
    """A serialised `ModelInferRequest`.

    Args:
        model_name: the model on the server; with our teachers, the service.
        inputs: arrays by input name, of any shape and byte order, contiguous or not, one or several
            that are stacked as they are written; dtypes as in `datatype_of`.
        outputs: names of the outputs wanted; empty asks for every one.
        model_version: empty lets the server choose.
        request_id: comes back in the response.
        parameters: named values beside the tensors; integers from -2^63 to 2^64 - 1.
        output_parameters: the same for single outputs, by their names.

    Raises:
        WireError: a dtype or parameter that the protocol has no place for, or more than 2 GiB.
    """
    try:
        header = pb.ModelInferRequest(
            model_name=model_name,
            model_version=model_version,
            id=request_id,
            parameters=_to_parameters(parameters),
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name=name, datatype=datatype_of(array.dtype), shape=array.shape
                )
                for name, array in inputs.items()
            ],
            outputs=[
                pb.ModelInferRequest.InferRequestedOutputTensor(
                    name=name, parameters=_to_parameters(output_parameters.get(name, {}))
                )
                for name in outputs
            ],
        )
    except ValueError as error:  # protobuf: text that is not Unicode
        raise WireError(f"the request cannot be sent: {error}") from None
    here = (pieces_of(value) for value in inputs.values())
    return _join(header.SerializeToString(), _RAW_INPUTS, here)


def decode_request(
    data: Buffer, read: ReadBuffer | None = None, *, light: bool = False
) -> InferRequest:
    """What a serialised `ModelInferRequest` says.

    Args:
        data: the message; it lives on as long as the arrays do, and must not be changed meanwhile.
        read: reads the inputs that lie in shared memory; None: none may, and no output either.
        light: decode it only if that takes no more than a moment.

    Returns:
        The request. Arrays are read-only; those of fixed-size datatypes that were sent raw are
        views into `data`, which need not be aligned. Parameters of unknown kinds are left out.

    Raises:
        WireError: malformed, truncated or contradictory, in whatever way.
        Heavy: it is `light` that is wanted, and there is more to do than to make views.
    """
    rest, raws = split_bytes_field(data, _RAW_INPUTS)
    if light and len(rest) > _LIGHT_BYTES:
        raise SlowToDecode
    message = _parse(pb.ModelInferRequest, rest)
    if light and len(data) > _LIGHT_BYTES and any(t.datatype == "BYTES" for t in message.inputs):
        raise SlowToDecode
    for wanted in message.outputs:
        _check_parameters(wanted.name, wanted.parameters, read)
    return InferRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_from_parameters(message.parameters),
        inputs=_arrays(message.inputs, raws, read),
        outputs=tuple(wanted.name for wanted in message.outputs),
        output_parameters=_of_tensors(message.outputs),
    )


def encode_response(
    *,
    model_name: str,
    outputs: Mapping[str, Array],
    model_version: str = "",
    request_id: str = "",
    parameters: Mapping[str, Parameter] = {},
    output_parameters: Mapping[str, Mapping[str, Parameter]] = {},
    elsewhere: Collection[str] = (),
) -> bytes:
    """A serialised `ModelInferResponse`; arguments and errors as in `encode_request`.

    Of the outputs named in `elsewhere` only what they are is said: their elements are in shared
    memory already.
    """
    try:
        header = pb.ModelInferResponse(
            model_name=model_name,
            model_version=model_version,
            id=request_id,
            parameters=_to_parameters(parameters),
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(
                    name=name,
                    datatype=datatype_of(array.dtype),
                    shape=array.shape,
                    parameters=_to_parameters(output_parameters.get(name, {})),
                )
                for name, array in outputs.items()
            ],
        )
    except ValueError as error:  # protobuf: text that is not Unicode
        raise WireError(f"the response cannot be sent: {error}") from None
    here = (() if name in elsewhere else (array,) for name, array in outputs.items())
    return _join(header.SerializeToString(), _RAW_OUTPUTS, here)


def decode_response(data: Buffer) -> InferResponse:
    """What a serialised `ModelInferResponse` says; arrays and errors as in `decode_request`."""
    rest, raws = split_bytes_field(data, _RAW_OUTPUTS)
    message = _parse(pb.ModelInferResponse, rest)
    return InferResponse(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_from_parameters(message.parameters),
        outputs=_arrays(message.outputs, raws),
        output_parameters=_of_tensors(message.outputs),
    )


def _join(
    header: bytes,
    raw_field: int,
    tensors: Iterable[Sequence[Array]],
) -> bytes:
    parts: list[Buffer] = [header]
    for pieces in tensors:
        raws = [to_bytes(piece) for piece in pieces]
        parts += (bytes_field(raw_field, sum(map(len, raws))), *raws)
    total = sum(map(len, parts))
    if total > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {total} bytes cannot be sent; split the batch")
    return b"".join(parts)


def _parse(kind: type[_M], data: bytes) -> _M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise WireError(f"not a {kind.DESCRIPTOR.name}: its fields cannot be parsed") from None


def _arrays(
    tensors: Sequence[_Tensor], raws: Sequence[memoryview], read: ReadBuffer | None = None
) -> dict[str, Array]:
    for tensor in tensors:
        _check_parameters(tensor.name, tensor.parameters, read)
    here = [tensor for tensor in tensors if REGION not in tensor.parameters]
    if raws and len(raws) != len(here):
        raise WireError(f"{len(here)} tensors are named, raw contents are given for {len(raws)}")
    left = iter(raws)
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        if tensor.name in arrays:
            raise WireError(f"tensor {quoted(tensor.name)} is given twice")
        try:
            if read is not None and REGION in tensor.parameters:
                array = _read(tensor, read)
            elif not raws:
                array = _one_by_one(tensor)
            elif tensor.contents.ByteSize():  # MLServer sends an empty one beside raw contents
                raise WireError("contents and raw contents are both given")
            else:
                array = from_bytes(next(left), tensor.datatype, tensor.shape)
        except WireError as error:
            raise WireError(f"tensor {quoted(tensor.name)}: {error}") from None
        arrays[tensor.name] = array
    return arrays


def _read(tensor: _Tensor, read: ReadBuffer) -> Array:
    if tensor.HasField("contents"):
        raise WireError("contents and a place in shared memory are both given")
    ref = BufferRef.from_parameters(_from_parameters(tensor.parameters))
    assert ref is not None
    return array_in_buffer(ref, tensor.datatype, tensor.shape, read)


def array_in_buffer(ref: BufferRef, datatype: str, shape: Sequence[int], read: ReadBuffer) -> Array:
    """The array at a place in shared memory, which must be just as large.

    Raises:
        WireError: it is not, or there is no such array; and what `read` raises.
    """
    expected = nbytes_of(datatype, shape)
    if expected not in (None, ref.nbytes):  # before anything of that size is allocated
        raise WireError(
            f"{datatype} of shape {list(shape)} needs {expected} bytes, its place has {ref.nbytes}"
        )
    return from_bytes(read(ref), datatype, shape)


def _one_by_one(tensor: _Tensor) -> Array:
    """The elements in `contents`, in the one field that their datatype has there."""
    field = _FIELDS.get(tensor.datatype, "")
    used = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    if used not in ([], [field]):
        raise WireError(
            f"elements of {quoted(tensor.datatype)} belong in {field or 'raw bytes'}, not in {used}"
        )
    elements = getattr(tensor.contents, field) if used else ()
    return from_elements(elements, tensor.datatype, tensor.shape)


def _check_parameters(
    tensor: str, parameters: Mapping[str, pb.InferParameter], read: ReadBuffer | None = None
) -> None:
    for name in _NOT_SPOKEN if read is not None else (*_NOT_SPOKEN, REGION):
        if name in parameters:
            raise WireError(f"tensor {quoted(tensor)}: the extension {name} is not spoken here")


def _to_parameters(parameters: Mapping[str, Parameter]) -> dict[str, pb.InferParameter]:
    return {name: _to_parameter(name, value) for name, value in parameters.items()}


def _to_parameter(name: str, value: Parameter) -> pb.InferParameter:
    if isinstance(value, bool):  # before int, which a bool also is
        return pb.InferParameter(bool_param=value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        if value < 1 << 63:
            return pb.InferParameter(int64_param=value)
        return pb.InferParameter(uint64_param=value)
    if isinstance(value, float):
        return pb.InferParameter(double_param=value)
    if isinstance(value, str):
        return pb.InferParameter(string_param=value)
    raise WireError(f"parameter {quoted(name)} cannot be sent: {quoted(str(value))}")


def _of_tensors(tensors: Iterable[_Described]) -> dict[str, dict[str, Parameter]]:
    """The parameters of those tensors that have any, by name."""
    return {t.name: _from_parameters(t.parameters) for t in tensors if t.parameters}


def _from_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    values: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:  # None: a kind that came with a later version of the protocol
            values[name] = getattr(parameter, choice)
    return values
