"""Encodes and decodes `ModelInfer` messages of protobuf without copying their arrays needlessly.

The messages are plain messages of the Open Inference Protocol (inference.proto), so any client or
server of it can be the peer. The sender joins a small header, serialised by protobuf, with the tag
and length of each raw field and the memory of the arrays: one copy. The receiver cuts the raw
fields out as views (`protobuf_fields.split_bytes_field`), which become arrays without a copy;
protobuf parses the rest.

A receiver trusts nothing. Every malformed message raises `WireError`, and until then at most a
small multiple of the size of the message is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..runtime.errors import WireError
from . import inference_pb2 as pb
from .arena import Array
from .clients import LabelRequest, LabelResponse
from .datatypes import (
    MAX_MESSAGE_BYTES,
    Buffer,
    Parameter,
    datatype_of,
    from_bytes,
    from_elements,
    nbytes_of,
    pieces_of,
    quoted,
    to_bytes,
)
from .protobuf_fields import bytes_field_header, split_bytes_field
from .shared_buffer import REGION, BufferRef

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
#: Parameters of unsupported protocol extensions that change the meaning of a tensor. Ignoring them
#: would give wrong arrays, so they are refused.
_REFUSED_EXTENSIONS = ("classification",)

#: The field of `contents` for each datatype. Small clients and JSON gateways send elements one by
#: one there. FP16 and BF16 have no field.
_CONTENTS_FIELDS = {
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

#: A message decodes quickly if it has at most this many bytes besides arrays that become views.
_QUICK_BYTES = 64 << 10

#: Returns the bytes at a location in shared memory.
BufferReader = Callable[[BufferRef], memoryview]

_Tensor = pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor
_Described = (
    pb.ModelInferRequest.InferRequestedOutputTensor | pb.ModelInferResponse.InferOutputTensor
)
_AnyMessage = TypeVar("_AnyMessage", bound=Message)


class SlowToDecode(Exception):
    """Decoding this message takes long: do it outside the event loop."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded `ModelInferRequest`; `outputs` are the requested ones, empty for all."""

    model_name: str
    model_version: str = ""
    request_id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    output_parameters: Mapping[str, Mapping[str, Parameter]] = field(default_factory=dict)


def encode_request(model_name: str, request: LabelRequest) -> bytes:
    """Serialise a `ModelInferRequest`; the server chooses the version of the model.

    Args:
        model_name: the model on the server; with our teachers, the service.
        request: arrays of any shape, byte order and layout; the pieces of an array are joined in
            the message. `datatype_of` accepts the dtypes that can be sent. Integers in parameters
            are from -2^63 to 2^64 - 1.

    Raises:
        WireError: a dtype or parameter cannot be sent, or the message exceeds 2 GiB.
    """
    inputs, output_parameters = request.inputs, request.output_parameters
    try:
        header = pb.ModelInferRequest(
            model_name=model_name,
            id=request.request_id,
            parameters=_to_parameters(request.parameters),
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
                for name in request.outputs
            ],
        )
    except ValueError as error:  # from protobuf
        raise WireError(f"a name or parameter is not Unicode: {error}") from None
    arrays = (pieces_of(value) for value in inputs.values())
    return _join(header.SerializeToString(), _RAW_INPUTS, arrays)


def decode_request(
    data: Buffer, read: BufferReader | None = None, *, refuse_slow: bool = False
) -> InferRequest:
    """Decode a serialised `ModelInferRequest`.

    Args:
        data: the message. The arrays refer to it, so it must not be changed while they live.
        read: reads inputs that lie in shared memory; None refuses shared memory for inputs and
            outputs.
        refuse_slow: raise SlowToDecode instead of decoding a message that takes long.

    Returns:
        The request. Arrays are read-only. Raw arrays of fixed-size datatypes are views into `data`
        and need not be aligned. Parameters of unknown types are left out.

    Raises:
        WireError: the message is malformed, truncated or contradictory.
        SlowToDecode: `refuse_slow` is set, and the message without raw arrays is large, or a large
            message holds an input of BYTES.
    """
    rest, raws = split_bytes_field(data, _RAW_INPUTS)
    if refuse_slow and len(rest) > _QUICK_BYTES:
        raise SlowToDecode
    message = _parse(pb.ModelInferRequest, rest)
    if (
        refuse_slow
        and len(data) > _QUICK_BYTES
        and any(t.datatype == "BYTES" for t in message.inputs)
    ):
        raise SlowToDecode
    for output in message.outputs:
        check_parameters(output.name, output.parameters, read)
    return InferRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_from_parameters(message.parameters),
        inputs=_arrays(message.inputs, raws, read),
        outputs=tuple(output.name for output in message.outputs),
        output_parameters=_parameters_by_tensor(message.outputs),
    )


def encode_response(response: LabelResponse, in_shared_memory: Collection[str] = ()) -> bytes:
    """Serialise a `ModelInferResponse`; raises the errors of `encode_request`.

    Outputs named in `in_shared_memory` are described without their elements.
    """
    outputs, output_parameters = response.outputs, response.output_parameters
    try:
        header = pb.ModelInferResponse(
            model_name=response.model_name,
            model_version=response.model_version,
            id=response.request_id,
            parameters=_to_parameters(response.parameters),
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
    except ValueError as error:  # from protobuf
        raise WireError(f"a name or parameter is not Unicode: {error}") from None
    arrays = (() if name in in_shared_memory else (array,) for name, array in outputs.items())
    return _join(header.SerializeToString(), _RAW_OUTPUTS, arrays)


def decode_response(data: Buffer) -> LabelResponse:
    """Decode a serialised `ModelInferResponse`; arrays and errors are as for `decode_request`."""
    rest, raws = split_bytes_field(data, _RAW_OUTPUTS)
    message = _parse(pb.ModelInferResponse, rest)
    return LabelResponse(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_from_parameters(message.parameters),
        outputs=_arrays(message.outputs, raws),
        output_parameters=_parameters_by_tensor(message.outputs),
    )


def _join(header: bytes, raw_field: int, tensors: Iterable[Sequence[Array]]) -> bytes:
    parts: list[Buffer] = [header]
    for pieces in tensors:
        raws = [to_bytes(piece) for piece in pieces]
        parts += (bytes_field_header(raw_field, sum(map(len, raws))), *raws)
    total = sum(map(len, parts))
    if total > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {total} bytes cannot be sent; split the batch")
    return b"".join(parts)


def _parse(kind: type[_AnyMessage], data: bytes) -> _AnyMessage:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise WireError(f"not a {kind.DESCRIPTOR.name}: its fields cannot be parsed") from None


def _arrays(
    tensors: Sequence[_Tensor], raws: Sequence[memoryview], read: BufferReader | None = None
) -> dict[str, Array]:
    for tensor in tensors:
        check_parameters(tensor.name, tensor.parameters, read)
    inline = [tensor for tensor in tensors if REGION not in tensor.parameters]
    if raws and len(raws) != len(inline):
        raise WireError(f"{len(inline)} tensors are named, but there are {len(raws)} raw contents")
    remaining = iter(raws)
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        if tensor.name in arrays:
            raise WireError(f"tensor {quoted(tensor.name)} is given twice")
        try:
            if read is not None and REGION in tensor.parameters:
                array = _read(tensor, read)
            elif not raws:
                array = _from_contents(tensor)
            elif tensor.contents.ByteSize():  # MLServer sends empty contents together with raw ones
                raise WireError("contents and raw contents are both given")
            else:
                array = from_bytes(next(remaining), tensor.datatype, tensor.shape)
        except WireError as error:
            raise WireError(f"tensor {quoted(tensor.name)}: {error}") from None
        arrays[tensor.name] = array
    return arrays


def _read(tensor: _Tensor, read: BufferReader) -> Array:
    if tensor.HasField("contents"):
        raise WireError("contents and a location in shared memory are both given")
    ref = BufferRef.from_parameters(_from_parameters(tensor.parameters))
    assert ref is not None
    return array_in_buffer(ref, tensor.datatype, tensor.shape, read)


def array_in_buffer(
    ref: BufferRef, datatype: str, shape: Sequence[int], read: BufferReader
) -> Array:
    """Read an array from shared memory; the location must have exactly the size of the array.

    Raises:
        WireError: the size differs, or the datatype or shape is impossible. `read` may raise other
            errors.
    """
    expected = nbytes_of(datatype, shape)
    if expected not in (None, ref.nbytes):  # checked before memory is allocated
        raise WireError(
            f"{datatype} of shape {list(shape)} needs {expected} bytes, its location in shared "
            f"memory has {ref.nbytes}"
        )
    return from_bytes(read(ref), datatype, shape)


def _from_contents(tensor: _Tensor) -> Array:
    """Decode the elements in `contents`; only the field of their datatype may be used."""
    field = _CONTENTS_FIELDS.get(tensor.datatype, "")
    used = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    if used not in ([], [field]):
        raise WireError(
            f"elements of {quoted(tensor.datatype)} belong in {field or 'raw bytes'}, not in {used}"
        )
    elements = getattr(tensor.contents, field) if used else ()
    return from_elements(elements, tensor.datatype, tensor.shape)


def check_parameters(
    tensor: str, parameters: Container[str], read: BufferReader | None = None
) -> None:
    """Raise WireError for a parameter of an extension that is not supported."""
    for name in _REFUSED_EXTENSIONS if read is not None else (*_REFUSED_EXTENSIONS, REGION):
        if name in parameters:
            raise WireError(f"tensor {quoted(tensor)}: the extension {name} is not supported")


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


def _parameters_by_tensor(tensors: Iterable[_Described]) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of each tensor that has any, by tensor name."""
    return {t.name: _from_parameters(t.parameters) for t in tensors if t.parameters}


def _from_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    values: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:  # None: a type that a later version of the protocol added
            values[name] = getattr(parameter, choice)
    return values
