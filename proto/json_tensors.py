"""Encodes and decodes the bodies of `ModelInfer` over HTTP: JSON, with tensors in or behind it.

With the binary extension, the body is the JSON object followed by the raw elements of each tensor
that has the parameter `binary_data_size`, in the order of the tensors. A header of the HTTP message
gives the length of the JSON object. Without the extension, all elements are in the JSON object, as
flat or nested lists of numbers, or of strings for BYTES. Both ways keep every bit of a finite
array; JSON has no NaN and no infinity.

As in `tensors`, a receiver trusts nothing. Responses come from many kinds of servers, so parameters
of a response that are not plain values are ignored.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from ..runtime.errors import RequestRefused, WireError
from .arena import Array
from .clients import LabelRequest, LabelResponse
from .datatypes import (
    MAX_DIMENSIONS,
    Input,
    Parameter,
    as_one_array,
    datatype_of,
    dtype_of,
    from_bytes,
    from_elements,
    pieces_of,
    quoted,
    to_bytes,
)
from .shared_buffer import BufferRef
from .tensors import BufferReader, InferRequest, SlowToDecode, array_in_buffer, check_parameters

JsonObject = Mapping[str, Any]

#: The deepest nesting of a message; an array needs at most `MAX_DIMENSIONS` levels of it.
_MAX_NESTING: Final = 80
_ALL_BUT_BRACKETS_AND_QUOTES: Final = bytes(set(range(256)) - set(b'[]{}"'))
#: The JSON types that are allowed as elements of an array, by the kind of its dtype.
_ALLOWED: Final[Mapping[str, set[type]]] = {
    "O": {str},
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "V": {int, float},
}
_STRING: Final = re.compile(rb'"[^"]*"')


def parse_object(data: memoryview) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        WireError: it is not an object, is nested too deeply, or has numbers that JSON does not
            allow.
    """
    body = bytes(data)
    _check_nesting(body)
    try:
        message = json.loads(str(body, "utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise WireError(f"the body is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("the body is JSON, but no object")
    return message


def _check_nesting(body: bytes) -> None:
    """Raise WireError for nesting that could overflow the parser's stack and abort Python."""
    if body.count(b"[") + body.count(b"{") <= _MAX_NESTING:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _STRING.sub(b"", unescaped.translate(None, _ALL_BUT_BRACKETS_AND_QUOTES))
    codes = np.frombuffer(brackets, np.uint8)
    opened = (codes == ord("[")) | (codes == ord("{"))
    closed = (codes == ord("]")) | (codes == ord("}"))
    depth = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int64)
    if depth.max(initial=0) > _MAX_NESTING:
        raise WireError(f"the body is nested more than {_MAX_NESTING} deep")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def shape_of(tensor: JsonObject) -> list[int]:
    """Return the dimensions of a tensor, which may be negative; raises WireError."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or set(map(type, shape)) - {int}:
        raise WireError("'shape' is no list of integers")
    return shape


def objects_in(message: JsonObject, key: str) -> list[JsonObject]:
    """Return the list of objects under `key`, empty if it is missing; raises WireError."""
    objects = message.get(key, [])
    if not isinstance(objects, list) or set(map(type, objects)) - {dict}:
        raise WireError(f"{key!r} is no list of objects")
    return objects


def text_in(message: JsonObject, key: str) -> str:
    """Return the string under `key`, empty if it is missing; raises WireError."""
    text = message.get(key, "")
    if not isinstance(text, str):
        raise WireError(f"{key!r} is no string")
    return text


def parameters_of(message: JsonObject) -> dict[str, Parameter]:
    """Return the parameters of a message or tensor; raises WireError."""
    value = message.get("parameters", {})
    if not isinstance(value, dict) or set(map(type, value.values())) - {bool, int, float, str}:
        raise WireError(
            f"'parameters' is no object of numbers, strings, true and false: {value!r:.80}"
        )
    return value


def array_from_json(data: object, datatype: str, shape: list[int]) -> Array:
    """Build a read-only array from JSON elements.

    Raises:
        WireError: `data` is not a list, or has the wrong number of elements, the wrong type of
            element, or uneven nesting.
    """
    flat, kind = _flat(data), dtype_of(datatype).kind
    if wrong := set(map(type, flat)) - _ALLOWED[kind]:
        name = min(json_type.__name__ for json_type in wrong)
        raise WireError(f"an element of {datatype} is {name} in JSON")
    if datatype == "BYTES":
        flat = [text.encode("utf-8", "surrogatepass") for text in flat]
    array = from_elements(flat, datatype, shape)
    if kind in "fV" and not np.isfinite(array).all():
        raise WireError(f"an element is beyond the range of {datatype}")
    return array


def _flat(data: object) -> list[Any]:
    """Return the elements of a list that may be nested; raises WireError."""
    if not isinstance(data, list):
        raise WireError("'data' is no list")
    for _ in range(MAX_DIMENSIONS):
        lists = sum(type(element) is list for element in data)
        if not lists:
            return data
        if lists < len(data):
            raise WireError("'data' has lists and elements side by side")
        if len({len(inner) for inner in data}) > 1:
            raise WireError("the lists in 'data' are not equally long")
        data = list(itertools.chain.from_iterable(data))
    raise WireError(f"'data' is nested more than {MAX_DIMENSIONS} deep")


def array_to_json(array: Array) -> list[Any]:
    """Return the elements of `array` as a flat list; JSON's doubles hold all floats exactly.

    Raises:
        UnicodeDecodeError: a BYTES element is not text.
    """
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind not in "OS":
        return flat
    return [bytes(element).decode() for element in flat]


#: The HTTP header with the length of the JSON object, if bytes follow it.
HEAD_LENGTH: Final = "Inference-Header-Content-Length"
#: Parameter of a tensor: the number of bytes behind the JSON object that hold its elements.
BINARY_SIZE: Final = "binary_data_size"
#: Parameter of a requested output: whether the server sends its elements as bytes.
BINARY: Final = "binary_data"
#: Parameter of a request: the same for all outputs that do not have `BINARY`.
BINARY_DEFAULT: Final = "binary_data_output"

#: Types of the parameters of a response that are kept.
_PLAIN: Final = (bool, int, float, str)
#: BYTES inputs decode quickly if at most this many bytes follow the JSON object.
_QUICK_BYTES: Final = 64 << 10


def decode_request(
    head: memoryview,
    raw: memoryview,
    read: BufferReader,
    *,
    model_name: str,
    model_version: str = "",
    refuse_slow: bool = False,
) -> InferRequest:
    """Decode the body of an inference request.

    Args:
        head: the JSON object.
        raw: the bytes behind it. The arrays refer to them, so they must not be changed while the
            arrays live.
        read: reads inputs that lie in shared memory.
        model_name: from the request's path.
        model_version: from the path; empty lets the server choose.
        refuse_slow: raise SlowToDecode instead of decoding a body that takes long.

    Returns:
        The request. Its arrays are read-only, except for views of `raw` if that is writable.

    Raises:
        WireError: the body is malformed, truncated or contradictory. `read` may raise other errors.
        SlowToDecode: `refuse_slow` is set, and `raw` is large and holds an input of BYTES. Callers
            have to check the size of `head` themselves.
    """
    message = parse_object(head)
    if refuse_slow and len(raw) > _QUICK_BYTES:
        kinds = [text_in(tensor, "datatype") for tensor in objects_in(message, "inputs")]
        if "BYTES" in kinds:
            raise SlowToDecode
    inputs = _read_arrays(message, "inputs", raw, read)
    outputs = {
        text_in(output, "name"): parameters_of(output) for output in objects_in(message, "outputs")
    }
    for tensor in (*objects_in(message, "inputs"), *objects_in(message, "outputs")):
        check_parameters(text_in(tensor, "name"), parameters_of(tensor), read)
    if len(outputs) < len(objects_in(message, "outputs")):
        raise WireError("an output is asked for twice")
    return InferRequest(
        model_name=model_name,
        model_version=model_version,
        request_id=text_in(message, "id"),
        parameters=parameters_of(message),
        inputs=inputs,
        outputs=tuple(outputs),
        output_parameters=outputs,
    )


def encode_response(
    request: InferRequest, response: LabelResponse, in_shared_memory: Collection[str]
) -> tuple[bytes, list[memoryview]]:
    """Encode an answer as its JSON object and the buffers that follow it.

    Args:
        request: the answered request; its parameters determine which outputs are sent as bytes.
        response: the answer.
        in_shared_memory: names of outputs whose elements are in shared memory.

    Raises:
        RequestRefused: JSON cannot hold an output that was not requested as bytes.
        ValueError: an output that was not requested as bytes, or a parameter, is NaN or infinite.
    """
    described: list[dict[str, Any]] = []
    raws: list[memoryview] = []
    for name, array in response.outputs.items():
        parameters = response.output_parameters.get(name, {})
        if name in in_shared_memory:
            described.append(_describe(name, array, parameters))
        else:
            raw_buffers = raws if is_binary(request, name) else None
            described.append(_tensor(name, array, raw_buffers, parameters))
    message = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        **({"id": response.request_id} if response.request_id else {}),
        "parameters": response.parameters,
        "outputs": described,
    }
    return _to_json(message), raws


def encode_request(request: LabelRequest, *, binary: bool) -> tuple[bytes, list[memoryview]]:
    """Encode a request as its JSON object and the buffers that follow it.

    Args:
        request: the request.
        binary: send tensors as bytes behind the JSON object, and request outputs as bytes; if
            False, everything is JSON.

    Raises:
        WireError: the protocol has no datatype for a dtype.
        RequestRefused: JSON cannot hold an element.
        ValueError: a parameter, or an element in JSON, is NaN or infinite.
    """
    inputs, output_parameters = request.inputs, request.output_parameters
    raws: list[memoryview] = []
    tensors = [_tensor(name, value, raws if binary else None) for name, value in inputs.items()]
    outputs: list[dict[str, Any]] = []
    for name in request.outputs:
        requested = {**output_parameters.get(name, {}), **({BINARY: True} if binary else {})}
        outputs.append({"name": name, **({"parameters": requested} if requested else {})})
    parameters = {**request.parameters, **({BINARY_DEFAULT: True} if binary else {})}
    message = {
        **({"id": request.request_id} if request.request_id else {}),
        **({"parameters": parameters} if parameters else {}),
        "inputs": tensors,
        **({"outputs": outputs} if outputs else {}),
    }
    return _to_json(message), raws


def decode_response(head: memoryview, raw: memoryview) -> LabelResponse:
    """Decode the body of an inference response.

    Args:
        head: the JSON object.
        raw: the bytes behind it. The arrays refer to them, so they must not be changed while the
            arrays live.

    Raises:
        WireError: the body is malformed, truncated or contradictory.
    """
    message = parse_object(head)
    if "outputs" not in message:
        raise WireError("the response names no outputs")
    outputs = _read_arrays(message, "outputs", raw, read_parameters=_plain_parameters)
    described = zip(outputs, map(_plain_parameters, message["outputs"]), strict=True)
    output_parameters = {name: parameters for name, parameters in described if parameters}
    return LabelResponse(outputs, _plain_parameters(message), output_parameters)


def is_binary(request: InferRequest, name: str) -> bool:
    """Return whether a request asks for an output as bytes.

    A part of an output, such as `x.indices`, is sent in the way requested for the output, `x`.
    """
    requested = request.output_parameters
    parameters = requested.get(name) or requested.get(name.rpartition(".")[0]) or {}
    return parameters.get(BINARY, request.parameters.get(BINARY_DEFAULT, False)) is True


def split(body: memoryview, head_length: str | None) -> tuple[memoryview, memoryview]:
    """Split a body into its JSON object and the bytes of tensors behind it.

    Args:
        body: the whole body.
        head_length: value of the header `HEAD_LENGTH`; None if the header is missing.

    Raises:
        WireError: the value is not a length, or exceeds the body.
    """
    if head_length is None:
        return body, body[len(body) :]
    if not (head_length.isascii() and head_length.isdigit() and len(head_length) < 12):
        raise WireError(f"{HEAD_LENGTH} is no length: {head_length!r:.40}")
    if int(head_length) > len(body):
        raise WireError(f"{HEAD_LENGTH} is {head_length}, and the body has {len(body)} bytes")
    return body[: int(head_length)], body[int(head_length) :]


def _to_json(message: JsonObject) -> bytes:
    """Encode as compact JSON; raises ValueError for NaN and infinity."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def _tensor(
    name: str,
    value: Input,
    raw_buffers: list[memoryview] | None,
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the JSON object of a tensor.

    Its elements are appended to `raw_buffers`; if that is None, they are put into the object.

    Raises:
        RequestRefused: JSON cannot hold the elements.
    """
    if raw_buffers is not None:
        pieces = [to_bytes(piece) for piece in pieces_of(value)]
        raw_buffers += pieces
        return _describe(name, value, {**parameters, BINARY_SIZE: sum(map(len, pieces))})
    try:
        return {**_describe(name, value, parameters), "data": array_to_json(as_one_array(value))}
    except UnicodeDecodeError:
        raise RequestRefused(
            f"tensor {name!r} holds bytes that are not UTF-8, which JSON cannot carry; if it is an"
            f" output, request it with the parameter {BINARY!r}: true"
        ) from None


def _describe(name: str, array: Input, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    tensor = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
    return {**tensor, "parameters": dict(parameters)} if parameters else tensor


def _read_arrays(
    message: JsonObject,
    key: Literal["inputs", "outputs"],
    raw: memoryview,
    read: BufferReader | None = None,
    read_parameters: Callable[[JsonObject], dict[str, Parameter]] = parameters_of,
) -> dict[str, Array]:
    """Decode the tensors of a body, in their order.

    Args:
        message: the JSON object.
        key: "inputs" or "outputs".
        raw: the bytes behind the JSON object.
        read: reads tensors in shared memory; None refuses them.
        read_parameters: reads the parameters of a tensor.

    Raises:
        WireError: as for `decode_request`.
    """
    arrays: dict[str, Array] = {}
    for tensor in objects_in(message, key):
        name = text_in(tensor, "name")
        if name in arrays:
            raise WireError(f"{key[:-1]} {quoted(name)} is given twice")
        try:
            parameters, elements = read_parameters(tensor), None
            if (size := parameters.get(BINARY_SIZE)) is not None:
                raw, elements = _split_off(raw, size)
            arrays[name] = _array(tensor, parameters, elements, read)
        except WireError as error:
            raise WireError(f"{key[:-1]} {quoted(name)}: {error}") from None
    if len(raw):
        raise WireError(f"{len(raw)} bytes follow the last tensor")
    return arrays


def _plain_parameters(message: JsonObject) -> dict[str, Parameter]:
    parameters = message.get("parameters")
    if not isinstance(parameters, dict):
        return {}
    return {name: value for name, value in parameters.items() if type(value) in _PLAIN}


def _array(
    tensor: JsonObject,
    parameters: Mapping[str, Parameter],
    raw: memoryview | None,
    read: BufferReader | None,
) -> Array:
    datatype, shape = text_in(tensor, "datatype"), shape_of(tensor)
    ref = BufferRef.from_parameters(parameters)
    data = tensor.get("data")
    if (raw is not None) + (ref is not None) + (data is not None) != 1:
        raise WireError(
            "its elements must be given exactly once: in 'data', behind the JSON object "
            f"({BINARY_SIZE}), or in shared memory"
        )
    if raw is not None:
        return from_bytes(raw, datatype, shape)
    if ref is not None:
        if read is None:
            raise WireError("the tensor is in shared memory, which was not requested")
        return array_in_buffer(ref, datatype, shape, read)
    return array_from_json(data, datatype, shape)


def _split_off(raw: memoryview, size: Parameter) -> tuple[memoryview, memoryview]:
    """Return the rest of `raw`, and its first `size` bytes; raises WireError."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise WireError(f"{BINARY_SIZE} is a number of bytes, not {size!r:.60}")
    if size > len(raw):
        raise WireError(f"{BINARY_SIZE} is {size}, and {len(raw)} bytes are left")
    return raw[size:], raw[:size]
