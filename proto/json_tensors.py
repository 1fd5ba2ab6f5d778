"""`ModelInfer` over HTTP: a JSON object, and tensors in it, or behind it as bytes.

With the binary extension the body is the JSON object, then the raw elements of each tensor whose
parameter `binary_data_size` says how many bytes they are, in the order of the tensors; a header of
the message says how long the JSON object is. Without it all elements are numbers in lists, flat or
nested; strings for BYTES. Either way an array arrives with the bits that it had.

A receiver believes nothing, as in `tensors`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from ..errors import RequestRefused, WireError
from .datatypes import (
    MAX_DIMENSIONS,
    Array,
    datatype_of,
    dtype_of,
    element_count,
    from_bytes,
    object_array,
    shown,
    to_bytes,
)
from .places import Place
from .tensors import InferRequest, InferResponse, Parameter, Read, read_at

#: Parameters of tensors that say where its elements are, not what they are.
BINARY_SIZE: Final = "binary_data_size"
BINARY: Final = "binary_data"
BINARY_DEFAULT: Final = "binary_data_output"

_Object = Mapping[str, Any]


def decode_request(
    head: memoryview, raw: memoryview, read: Read, *, model_name: str, model_version: str = ""
) -> InferRequest:
    """What the body of a request says.

    Args:
        head: its JSON object.
        raw: what follows that; it lives on as long as the arrays do, and must not be changed.
        read: reads the inputs that lie in shared memory.
        model_name: of the request's path.
        model_version: of the path; empty lets the server choose.

    Returns:
        The request; arrays are read-only.

    Raises:
        WireError: it is malformed, truncated or contradictory, in whatever way; and what `read`
            raises.
    """
    message = parse_object(head)
    inputs: dict[str, Array] = {}
    for tensor in _objects(message, "inputs"):
        name, size = _text(tensor, "name"), None
        if name in inputs:
            raise WireError(f"input {shown(name)} is given twice")
        try:
            parameters = _parameters(tensor)
            if (size := parameters.get(BINARY_SIZE)) is not None:
                raw, own = _cut(raw, size)
                inputs[name] = _array(tensor, parameters, own, read)
            else:
                inputs[name] = _array(tensor, parameters, None, read)
        except WireError as error:
            raise WireError(f"input {shown(name)}: {error}") from None
    if len(raw):
        raise WireError(f"{len(raw)} bytes follow the last tensor")
    outputs = {
        _text(wanted, "name"): _parameters(wanted) for wanted in _objects(message, "outputs")
    }
    if len(outputs) < len(_objects(message, "outputs")):
        raise WireError("an output is asked for twice")
    return InferRequest(
        model_name=model_name,
        model_version=model_version,
        request_id=_text(message, "id"),
        parameters=_parameters(message),
        inputs=inputs,
        outputs=tuple(outputs),
        output_parameters=outputs,
    )


def encode_response(
    request: InferRequest, response: InferResponse, elsewhere: Collection[str]
) -> tuple[bytes, int | None]:
    """The body of an answer, and how long its JSON object is where more follows.

    Args:
        request: what is answered; it says which outputs are to be bytes.
        response: the answer.
        elsewhere: names of the outputs whose elements are in shared memory already.

    Raises:
        RequestRefused: an output holds what JSON cannot, and was not asked for as bytes.
    """
    described, raws = [], []
    for name, array in response.outputs.items():
        parameters = dict(response.output_parameters.get(name, {}))
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(array.dtype),
            "shape": list(array.shape),
        }
        if name not in elsewhere and _is_binary(request, name):
            raws.append(to_bytes(array))
            parameters[BINARY_SIZE] = len(raws[-1])
        elif name not in elsewhere:
            tensor["data"] = _elements(name, array)
        described.append({**tensor, "parameters": parameters} if parameters else tensor)
    message = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        **({"id": response.request_id} if response.request_id else {}),
        "parameters": response.parameters,
        "outputs": described,
    }
    head = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if not raws:
        return head, None
    return b"".join((head, *raws)), len(head)


def parse_object(data: memoryview) -> dict[str, Any]:
    """A JSON object.

    Raises:
        WireError: it is none, it is nested without end, or has numbers that no JSON has.
    """
    try:
        message = json.loads(str(data, "utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise WireError(f"the body is no JSON: {why}") from None
    if not isinstance(message, dict):
        raise WireError("the body is JSON, but no object")
    return message


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _array(
    tensor: _Object, parameters: Mapping[str, Parameter], raw: memoryview | None, read: Read
) -> Array:
    datatype, shape = _text(tensor, "datatype"), _shape(tensor)
    place = Place.named_by(parameters)
    data = tensor.get("data")
    if (raw is not None) + (place is not None) + (data is not None) != 1:
        raise WireError(
            "its elements are to be in one place: in 'data', behind the JSON object as "
            f"{BINARY_SIZE} says, or in shared memory"
        )
    if raw is not None:
        return from_bytes(raw, datatype, shape)
    if place is not None:
        return read_at(place, datatype, shape, read)
    return _from_json(data, datatype, shape)


def _from_json(data: object, datatype: str, shape: list[int]) -> Array:
    dtype = dtype_of(datatype)
    count = element_count(shape, dtype.itemsize)
    flat = _flat(data)
    if len(flat) != count:
        raise WireError(f"shape {shape} needs {count} elements, {len(flat)} are given")
    kinds = set(map(type, flat))
    if datatype == "BYTES":
        _check_kinds(kinds, {str}, datatype)
        return object_array([text.encode("utf-8", "surrogatepass") for text in flat], shape)
    if dtype.kind == "b":
        _check_kinds(kinds, {bool}, datatype)
    elif dtype.kind in "iu":
        _check_kinds(kinds, {int}, datatype)
        limits = np.iinfo(dtype)
        if flat and not limits.min <= min(flat) <= max(flat) <= limits.max:
            raise WireError(f"an element of {datatype} is not within {limits.min}..{limits.max}")
    else:
        _check_kinds(kinds, {int, float}, datatype)
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype=np.float64 if dtype.kind in "fV" else dtype).astype(dtype)
    except OverflowError:
        raise WireError(f"an element is beyond {datatype}") from None
    if dtype.kind in "fV" and not np.isfinite(array).all():
        raise WireError(f"an element is beyond {datatype}")
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
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


def _check_kinds(found: set[type], allowed: set[type], datatype: str) -> None:
    if found - allowed:
        odd = sorted(kind.__name__ for kind in found - allowed)
        raise WireError(f"an element of {datatype} is {odd[0]} in JSON")


def _elements(name: str, array: Array) -> list[Any]:
    """As JSON has them; a double holds each float of fewer bits exactly."""
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind not in "OS":
        return flat
    try:
        return [bytes(element).decode() for element in flat]
    except UnicodeDecodeError:
        raise RequestRefused(
            f"output {name!r} holds bytes that are no text: ask for it with {BINARY!r}: true"
        ) from None


def _is_binary(request: InferRequest, name: str) -> bool:
    """Whether the output `name`, or that of which it is a part, is asked for as bytes."""
    asked = request.output_parameters
    own = asked.get(name) or asked.get(name.rpartition(".")[0]) or {}
    return own.get(BINARY, request.parameters.get(BINARY_DEFAULT, False)) is True


def _cut(raw: memoryview, size: Parameter) -> tuple[memoryview, memoryview]:
    """What is left of `raw`, and its first `size` bytes."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise WireError(f"{BINARY_SIZE} is a number of bytes, not {size!r:.60}")
    if size > len(raw):
        raise WireError(f"{BINARY_SIZE} is {size}, and {len(raw)} bytes are left")
    return raw[size:], raw[:size]


def _shape(tensor: _Object) -> list[int]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or set(map(type, shape)) - {int}:
        raise WireError("'shape' is no list of integers")
    return shape


def _objects(message: _Object, key: str) -> list[_Object]:
    found = message.get(key, [])
    if not isinstance(found, list) or set(map(type, found)) - {dict}:
        raise WireError(f"{key!r} is no list of objects")
    return found


def _text(message: _Object, key: str) -> str:
    text = message.get(key, "")
    if not isinstance(text, str):
        raise WireError(f"{key!r} is no string")
    return text


def _parameters(message: _Object) -> dict[str, Parameter]:
    found = message.get("parameters", {})
    if not isinstance(found, dict) or set(map(type, found.values())) - {bool, int, float, str}:
        raise WireError("'parameters' is no object of numbers, strings, true and false")
    return found
