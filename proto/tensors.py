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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..errors import WireError
from . import inference_pb2 as pb
from .contents import from_contents
from .datatypes import Array, datatype_of, dtype_of, from_bytes, shown, to_bytes
from .wire import MAX_MESSAGE_BYTES, Buffer, bytes_field, take_out

__all__ = [
    "Array",
    "InferRequest",
    "InferResponse",
    "Parameter",
    "datatype_of",
    "decode_request",
    "decode_response",
    "dtype_of",
    "encode_request",
    "encode_response",
]

Parameter = bool | int | float | str

_RAW_INPUTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
#: Parameters of a tensor which change what its message means, so that ignoring them would give
#: wrong arrays; they belong to extensions of the protocol that are not spoken here.
_NOT_SPOKEN = ("shared_memory_region", "classification")

_Tensor = pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded `ModelInferRequest`."""

    model_name: str
    model_version: str = ""
    request_id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # the outputs asked for; empty: every one


@dataclass(frozen=True, slots=True)
class InferResponse:
    """A decoded `ModelInferResponse`."""

    model_name: str
    model_version: str = ""
    request_id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)


def encode_request(
    *,
    model_name: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] = (),
    model_version: str = "",
    request_id: str = "",
    parameters: Mapping[str, Parameter] = {},
) -> bytes:
    """A serialised `ModelInferRequest`.

    Args:
        model_name: the model on the server; with our teachers, the service.
        inputs: arrays by input name, of any shape and byte order, contiguous or not; dtypes as in
            `datatype_of`.
        outputs: names of the outputs wanted; empty asks for every one.
        model_version: empty lets the server choose.
        request_id: comes back in the response.
        parameters: named values beside the tensors; integers from -2^63 to 2^64 - 1.

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
                pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs
            ],
        )
    except ValueError as error:  # protobuf: text that is not Unicode
        raise WireError(f"the request cannot be sent: {error}") from None
    return _join(header, _RAW_INPUTS, inputs.values())


def decode_request(data: Buffer) -> InferRequest:
    """What a serialised `ModelInferRequest` says.

    Args:
        data: the message; it lives on as long as the arrays do, and must not be changed meanwhile.

    Returns:
        The request. Arrays are read-only; those of fixed-size datatypes that were sent raw are
        views into `data`, which need not be aligned. Parameters of unknown kinds are left out.

    Raises:
        WireError: malformed, truncated or contradictory, in whatever way.
    """
    rest, raws = take_out(data, _RAW_INPUTS)
    message = _parse(pb.ModelInferRequest, rest)
    for wanted in message.outputs:
        _check_parameters(wanted.name, wanted.parameters)
    return InferRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_from_parameters(message.parameters),
        inputs=_arrays(message.inputs, raws),
        outputs=tuple(wanted.name for wanted in message.outputs),
    )


def encode_response(
    *,
    model_name: str,
    outputs: Mapping[str, Array],
    model_version: str = "",
    request_id: str = "",
    parameters: Mapping[str, Parameter] = {},
) -> bytes:
    """A serialised `ModelInferResponse`; arguments and errors as in `encode_request`."""
    try:
        header = pb.ModelInferResponse(
            model_name=model_name,
            model_version=model_version,
            id=request_id,
            parameters=_to_parameters(parameters),
            outputs=[
                pb.ModelInferResponse.InferOutputTensor(
                    name=name, datatype=datatype_of(array.dtype), shape=array.shape
                )
                for name, array in outputs.items()
            ],
        )
    except ValueError as error:  # protobuf: text that is not Unicode
        raise WireError(f"the response cannot be sent: {error}") from None
    return _join(header, _RAW_OUTPUTS, outputs.values())


def decode_response(data: Buffer) -> InferResponse:
    """What a serialised `ModelInferResponse` says; arrays and errors as in `decode_request`."""
    rest, raws = take_out(data, _RAW_OUTPUTS)
    message = _parse(pb.ModelInferResponse, rest)
    return InferResponse(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_from_parameters(message.parameters),
        outputs=_arrays(message.outputs, raws),
    )


def _join(header: Message, raw_field: int, arrays: Iterable[Array]) -> bytes:
    parts: list[Buffer] = [header.SerializeToString()]
    for array in arrays:
        memory = to_bytes(array)
        parts += (bytes_field(raw_field, len(memory)), memory)
    total = sum(map(len, parts))
    if total > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {total} bytes cannot be sent; split the batch")
    return b"".join(parts)


def _parse(kind: type[_M], data: bytes) -> _M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise WireError(f"not a {kind.DESCRIPTOR.name}: its fields cannot be parsed") from None


def _arrays(tensors: Sequence[_Tensor], raws: Sequence[memoryview]) -> dict[str, Array]:
    if raws and len(raws) != len(tensors):
        raise WireError(f"{len(tensors)} tensors are named, raw contents are given for {len(raws)}")
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(tensors):
        if tensor.name in arrays:
            raise WireError(f"tensor {shown(tensor.name)} is given twice")
        _check_parameters(tensor.name, tensor.parameters)
        try:
            if not raws:
                array = from_contents(tensor.contents, tensor.datatype, tensor.shape)
            elif tensor.HasField("contents"):
                raise WireError("contents and raw contents are both given")
            else:
                array = from_bytes(raws[index], tensor.datatype, tensor.shape)
        except WireError as error:
            raise WireError(f"tensor {shown(tensor.name)}: {error}") from None
        arrays[tensor.name] = array
    return arrays


def _check_parameters(tensor: str, parameters: Mapping[str, pb.InferParameter]) -> None:
    for name in _NOT_SPOKEN:
        if name in parameters:
            raise WireError(f"tensor {shown(tensor)}: the extension {name} is not spoken here")


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
    raise WireError(f"parameter {shown(name)} cannot be sent: {shown(str(value))}")


def _from_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    values: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:  # None: a kind that came with a later version of the protocol
            values[name] = getattr(parameter, choice)
    return values
