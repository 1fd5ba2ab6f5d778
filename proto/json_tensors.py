"""`ModelInfer` over HTTP: a JSON object, and tensors in it, or behind it as bytes.

With the binary extension the body is the JSON object, then the raw elements of each tensor whose
parameter `binary_data_size` says how many bytes they are, in the order of the tensors; a header of
the message says how long the JSON object is. Without it all elements are numbers in lists, flat or
nested; strings for BYTES. Either way an array arrives with the bits that it had.

A receiver believes nothing, as in `tensors`. Answers come from servers of many makers, so a
parameter that is no plain value is left out of them, and is no error.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from ..errors import RequestRefused, WireError
from .datatypes import (
    MAX_DIMENSIONS,
    Array,
    Input,
    Parameter,
    datatype_of,
    dtype_of,
    from_bytes,
    from_elements,
    pieces_of,
    quoted,
    to_bytes,
    whole,
)
from .shared_buffer import BufferRef
from .tensors import InferRequest, InferResponse, ReadBuffer, SlowToDecode, array_in_buffer

JsonObject = Mapping[str, Any]

#: Lists within lists that a message may have: numpy has no array of more than 64 dimensions.
_NESTED: Final = 80
_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
#: Which values of JSON may be the elements of an array, by the kind of its dtype.
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
    """A JSON object.

    Raises:
        WireError: it is none, it is nested too deep, or has numbers that no JSON has.
    """
    body = bytes(data)
    _check_nesting(body)
    try:
        message = json.loads(str(body, "utf-8"), parse_constant=_no_constant)
    except ValueError as error:
        raise WireError(f"the body is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("the body is JSON, but no object")
    return message


def _check_nesting(body: bytes) -> None:
    """Raise WireError for what would overflow the parser's stack, from which Python may abort."""
    if body.count(b"[") + body.count(b"{") <= _NESTED:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _STRING.sub(b"", unescaped.translate(None, _BUT_BRACKETS))
    codes = np.frombuffer(brackets, np.uint8)
    opened = (codes == ord("[")) | (codes == ord("{"))
    closed = (codes == ord("]")) | (codes == ord("}"))
    depth = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int64)
    if depth.max(initial=0) > _NESTED:
        raise WireError(f"the body is nested more than {_NESTED} deep")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def shape_of(tensor: JsonObject) -> list[int]:
    """Its dimensions, which may still be negative; raises WireError."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or set(map(type, shape)) - {int}:
        raise WireError("'shape' is no list of integers")
    return shape


def objects_in(message: JsonObject, key: str) -> list[JsonObject]:
    """The objects in the list `key`, none where it is left out; raises WireError."""
    found = message.get(key, [])
    if not isinstance(found, list) or set(map(type, found)) - {dict}:
        raise WireError(f"{key!r} is no list of objects")
    return found


def text_in(message: JsonObject, key: str) -> str:
    """The string `key`, empty where it is left out; raises WireError."""
    text = message.get(key, "")
    if not isinstance(text, str):
        raise WireError(f"{key!r} is no string")
    return text


def parameters_of(message: JsonObject) -> dict[str, Parameter]:
    """The parameters of a message or of a tensor; raises WireError."""
    value = message.get("parameters", {})
    if not isinstance(value, dict) or set(map(type, value.values())) - {bool, int, float, str}:
        raise WireError(
            f"'parameters' is no object of numbers, strings, true and false: {value!r:.80}"
        )
    return value


def array_from_json(data: object, datatype: str, shape: list[int]) -> Array:
    """The array of these elements, read-only.

    Raises:
        WireError: `data` is no list, or its elements are not as many, of that datatype, or of one
            depth.
    """
    flat, kind = _flat(data), dtype_of(datatype).kind
    if odd := set(map(type, flat)) - _ALLOWED[kind]:
        raise WireError(f"an element of {datatype} is {min(one.__name__ for one in odd)} in JSON")
    if datatype == "BYTES":
        flat = [text.encode("utf-8", "surrogatepass") for text in flat]
    array = from_elements(flat, datatype, shape)
    if kind in "fV" and not np.isfinite(array).all():
        raise WireError(f"an element is beyond {datatype}")
    return array


def _flat(data: object) -> list[Any]:
    """The elements of a list, or of a list of lists, and so on."""
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
    """The elements of `array` in a flat list; a double holds each float of fewer bits exactly.

    Raises:
        UnicodeDecodeError: an element is bytes that are no text.
    """
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind not in "OS":
        return flat
    return [bytes(element).decode() for element in flat]


#: The header that says how long the JSON object is where bytes follow it.
HEAD_LENGTH: Final = "Inference-Header-Content-Length"
#: Parameters of tensors that say where its elements are, not what they are.
BINARY_SIZE: Final = "binary_data_size"
BINARY: Final = "binary_data"
BINARY_DEFAULT: Final = "binary_data_output"

#: Types of parameters that an answer may have.
_PLAIN: Final = (bool, int, float, str)
#: Of text behind the JSON object, that is decoded in a moment.
_LIGHT_BYTES: Final = 64 << 10


def decode_request(
    head: memoryview,
    raw: memoryview,
    read: ReadBuffer,
    *,
    model_name: str,
    model_version: str = "",
    light: bool = False,
) -> InferRequest:
    """What the body of a request says.

    Args:
        head: its JSON object.
        raw: what follows that; it lives on as long as the arrays do, and must not be changed.
        read: reads the inputs that lie in shared memory.
        model_name: of the request's path.
        model_version: of the path; empty lets the server choose.
        light: decode what follows `head` only if that takes no more than a moment.

    Returns:
        The request; arrays are read-only.

    Raises:
        WireError: it is malformed, truncated or contradictory, in whatever way; and what `read`
            raises.
        Heavy: it is `light` that is wanted, and there is more to do than to make views.
    """
    message = parse_object(head)
    if light and len(raw) > _LIGHT_BYTES and _has_text(message):
        raise SlowToDecode
    inputs = _read_arrays(message, "inputs", raw, read)
    outputs = {
        text_in(wanted, "name"): parameters_of(wanted) for wanted in objects_in(message, "outputs")
    }
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
    request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[bytes, list[memoryview]]:
    """The JSON object of an answer, and what follows it: the memory of its arrays where it can be.

    Args:
        request: what is answered; it says which outputs are to be bytes.
        response: the answer.
        elsewhere: names of the outputs whose elements are in shared memory already.

    Raises:
        RequestRefused: an output holds what JSON cannot, and was not asked for as bytes.
    """
    described: list[dict[str, Any]] = []
    raws: list[memoryview] = []
    for name, array in response.outputs.items():
        parameters = response.output_parameters.get(name, {})
        if name in elsewhere:
            described.append(_described(name, array, parameters))
        else:
            behind = raws if is_binary(request, name) else None
            described.append(_tensor(name, array, behind, parameters))
    message = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        **({"id": response.request_id} if response.request_id else {}),
        "parameters": response.parameters,
        "outputs": described,
    }
    return _to_json(message), raws


def encode_request(
    inputs: Mapping[str, Input],
    outputs: Sequence[str] = (),
    *,
    request_id: str = "",
    parameters: Mapping[str, Parameter] = {},
    output_parameters: Mapping[str, Mapping[str, Parameter]] = {},
    binary: bool,
) -> tuple[bytes, list[memoryview]]:
    """The JSON object of a request, and what follows it: the memory of its arrays where it can be.

    Args:
        inputs: by input name, in one piece or several.
        outputs: names of the outputs wanted; empty asks for every one.
        request_id: may come back in the answer.
        parameters: named values beside the tensors.
        output_parameters: the same for single outputs, by their names.
        binary: elements go behind the JSON object, and are wanted back so; else all is JSON.

    Raises:
        WireError: a dtype that the protocol has no place for.
        RequestRefused: elements that JSON cannot hold.
        ValueError: a parameter that JSON cannot hold.
    """
    raws: list[memoryview] = []
    tensors = [_tensor(name, value, raws if binary else None) for name, value in inputs.items()]
    wanted: list[dict[str, Any]] = []
    for name in outputs:
        own = {**output_parameters.get(name, {}), **({BINARY: True} if binary else {})}
        wanted.append({"name": name, **({"parameters": own} if own else {})})
    said = {**parameters, **({BINARY_DEFAULT: True} if binary else {})}
    message = {
        **({"id": request_id} if request_id else {}),
        **({"parameters": said} if said else {}),
        "inputs": tensors,
        **({"outputs": wanted} if wanted else {}),
    }
    return _to_json(message), raws


def decode_response(head: memoryview, raw: memoryview) -> InferResponse:
    """What the body of an answer says.

    Args:
        head: its JSON object.
        raw: what follows that; it lives on as long as the arrays do, and must not be changed.

    Raises:
        WireError: it is malformed, truncated or contradictory, in whatever way.
    """
    message = parse_object(head)
    if "outputs" not in message:
        raise WireError("it names no outputs")
    outputs = _read_arrays(message, "outputs", raw, parameters_of=_plain_parameters)
    described = zip(outputs, map(_plain_parameters, message["outputs"]), strict=True)
    return InferResponse(
        model_name="",
        parameters=_plain_parameters(message),
        outputs=outputs,
        output_parameters={name: own for name, own in described if own},
    )


def is_binary(request: InferRequest, name: str) -> bool:
    """Whether the output `name`, or that of which it is a part, is asked for as bytes."""
    asked = request.output_parameters
    own = asked.get(name) or asked.get(name.rpartition(".")[0]) or {}
    return own.get(BINARY, request.parameters.get(BINARY_DEFAULT, False)) is True


def split(body: memoryview, head_length: str | None) -> tuple[memoryview, memoryview]:
    """The JSON object of a body, and the bytes of tensors behind it.

    Args:
        body: all of it.
        head_length: what the header `HEAD_LENGTH` says; None: it is not there.

    Raises:
        WireError: it is no length, or longer than the body.
    """
    if head_length is None:
        return body, body[len(body) :]
    if not (head_length.isascii() and head_length.isdigit() and len(head_length) < 12):
        raise WireError(f"{HEAD_LENGTH} is no length: {head_length!r:.40}")
    if int(head_length) > len(body):
        raise WireError(f"{HEAD_LENGTH} is {head_length}, and the body has {len(body)} bytes")
    return body[: int(head_length)], body[int(head_length) :]


def _to_json(message: JsonObject) -> bytes:
    """A JSON object, as short as it can be; raises ValueError for numbers that none can hold."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def _tensor(
    name: str,
    value: Input,
    behind: list[memoryview] | None,
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
) -> dict[str, Any]:
    """A tensor of a JSON object; its elements are added to what is `behind` that, or stand in it.

    Raises:
        RequestRefused: they are what JSON cannot hold.
    """
    if behind is not None:
        pieces = [to_bytes(piece) for piece in pieces_of(value)]
        behind += pieces
        return _described(name, value, {**parameters, BINARY_SIZE: sum(map(len, pieces))})
    try:
        return {**_described(name, value, parameters), "data": array_to_json(whole(value))}
    except UnicodeDecodeError:
        raise RequestRefused(
            f"tensor {name!r} holds bytes that are no text, which JSON has no place for (an output:"
            f" ask for it with {BINARY!r}: true)"
        ) from None


def _described(name: str, array: Input, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    tensor = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
    return {**tensor, "parameters": dict(parameters)} if parameters else tensor


def _read_arrays(
    message: JsonObject,
    key: Literal["inputs", "outputs"],
    raw: memoryview,
    read: ReadBuffer | None = None,
    parameters_of: Callable[[JsonObject], dict[str, Parameter]] = parameters_of,
) -> dict[str, Array]:
    """The tensors of a body, read-only, in its order.

    Args:
        message: its JSON object.
        key: where they are named.
        raw: what follows the JSON object.
        read: reads those that lie in shared memory; None: none may.
        parameters_of: reads the parameters of one.

    Raises:
        WireError: as `decode_request`.
    """
    arrays: dict[str, Array] = {}
    for tensor in objects_in(message, key):
        name = text_in(tensor, "name")
        if name in arrays:
            raise WireError(f"{key[:-1]} {quoted(name)} is given twice")
        try:
            parameters, own = parameters_of(tensor), None
            if (size := parameters.get(BINARY_SIZE)) is not None:
                raw, own = _cut(raw, size)
            arrays[name] = _array(tensor, parameters, own, read)
        except WireError as error:
            raise WireError(f"{key[:-1]} {quoted(name)}: {error}") from None
    if len(raw):
        raise WireError(f"{len(raw)} bytes follow the last tensor")
    return arrays


def _plain_parameters(message: JsonObject) -> dict[str, Parameter]:
    found = message.get("parameters")
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if type(value) in _PLAIN}


def _has_text(message: JsonObject) -> bool:
    return any(text_in(tensor, "datatype") == "BYTES" for tensor in objects_in(message, "inputs"))


def _array(
    tensor: JsonObject,
    parameters: Mapping[str, Parameter],
    raw: memoryview | None,
    read: ReadBuffer | None,
) -> Array:
    datatype, shape = text_in(tensor, "datatype"), shape_of(tensor)
    ref = BufferRef.from_parameters(parameters)
    data = tensor.get("data")
    if (raw is not None) + (ref is not None) + (data is not None) != 1:
        raise WireError(
            "its elements are to be in one place: in 'data', behind the JSON object as "
            f"{BINARY_SIZE} says, or in shared memory"
        )
    if raw is not None:
        return from_bytes(raw, datatype, shape)
    if ref is not None:
        if read is None:
            raise WireError("it is said to lie in shared memory, where nothing was asked for")
        return array_in_buffer(ref, datatype, shape, read)
    return array_from_json(data, datatype, shape)


def _cut(raw: memoryview, size: Parameter) -> tuple[memoryview, memoryview]:
    """What is left of `raw`, and its first `size` bytes."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise WireError(f"{BINARY_SIZE} is a number of bytes, not {size!r:.60}")
    if size > len(raw):
        raise WireError(f"{BINARY_SIZE} is {size}, and {len(raw)} bytes are left")
    return raw[size:], raw[:size]
