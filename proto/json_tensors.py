"""`ModelInfer` over HTTP: a JSON object, and tensors in it, or behind it as bytes.

With the binary extension the body is the JSON object, then the raw elements of each tensor whose
parameter `binary_data_size` says how many bytes they are, in the order of the tensors; a header of
the message says how long the JSON object is. Without it all elements are numbers in lists, flat or
nested; strings for BYTES. Either way an array arrives with the bits that it had.

A receiver believes nothing, as in `tensors`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from ..errors import RequestRefused, WireError
from . import json_arrays
from .datatypes import Array, Input, datatype_of, from_bytes, shown, to_bytes
from .json_objects import JsonObject, objects_in, parameters_of, parse_object, shape_of, text_in
from .lent_arena import Place
from .tensors import Heavy, InferRequest, InferResponse, Parameter, Read, read_at

#: The header that says how long the JSON object is where bytes follow it.
HEAD_LENGTH: Final = "Inference-Header-Content-Length"
#: Parameters of tensors that say where its elements are, not what they are.
BINARY_SIZE: Final = "binary_data_size"
BINARY: Final = "binary_data"
BINARY_DEFAULT: Final = "binary_data_output"

#: Of text behind the JSON object, that is decoded in a moment.
_LIGHT_BYTES: Final = 64 << 10


def decode_request(
    head: memoryview,
    raw: memoryview,
    read: Read,
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
        raise Heavy
    inputs = read_arrays(message, "inputs", raw, read)
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
    described, raws = [], []
    for name, array in response.outputs.items():
        parameters = response.output_parameters.get(name, {})
        if name in elsewhere:
            described.append(_described(name, array, parameters))
        elif is_binary(request, name):
            raws.append(to_bytes(array))
            described.append(in_bytes(name, array, len(raws[-1]), parameters))
        else:
            described.append(in_json(name, array, parameters))
    message = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        **({"id": response.request_id} if response.request_id else {}),
        "parameters": response.parameters,
        "outputs": described,
    }
    return to_json(message), raws


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


def to_json(message: JsonObject) -> bytes:
    """A JSON object, as short as it can be; raises ValueError for numbers that none can hold."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def in_json(
    name: str, array: Array, parameters: Mapping[str, Parameter] = MappingProxyType({})
) -> dict[str, Any]:
    """A tensor whose elements stand in the JSON object.

    Raises:
        RequestRefused: they are what JSON cannot hold.
    """
    return {**_described(name, array, parameters), "data": _elements(name, array)}


def in_bytes(
    name: str,
    array: Input,
    nbytes: int,
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
) -> dict[str, Any]:
    """A tensor whose elements are `nbytes` bytes behind the JSON object."""
    return _described(name, array, {**parameters, BINARY_SIZE: nbytes})


def _described(name: str, array: Input, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    tensor = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
    return {**tensor, "parameters": dict(parameters)} if parameters else tensor


def read_arrays(
    message: JsonObject,
    key: Literal["inputs", "outputs"],
    raw: memoryview,
    read: Read | None = None,
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
            raise WireError(f"{key[:-1]} {shown(name)} is given twice")
        try:
            parameters, own = parameters_of(tensor), None
            if (size := parameters.get(BINARY_SIZE)) is not None:
                raw, own = _cut(raw, size)
            arrays[name] = _array(tensor, parameters, own, read)
        except WireError as error:
            raise WireError(f"{key[:-1]} {shown(name)}: {error}") from None
    if len(raw):
        raise WireError(f"{len(raw)} bytes follow the last tensor")
    return arrays


def _has_text(message: JsonObject) -> bool:
    return any(text_in(tensor, "datatype") == "BYTES" for tensor in objects_in(message, "inputs"))


def _array(
    tensor: JsonObject,
    parameters: Mapping[str, Parameter],
    raw: memoryview | None,
    read: Read | None,
) -> Array:
    datatype, shape = text_in(tensor, "datatype"), shape_of(tensor)
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
        if read is None:
            raise WireError("it is said to lie in shared memory, where nothing was asked for")
        return read_at(place, datatype, shape, read)
    return json_arrays.from_json(data, datatype, shape)


def _elements(name: str, array: Array) -> list[Any]:
    try:
        return json_arrays.to_json(array)
    except UnicodeDecodeError:
        raise RequestRefused(
            f"tensor {name!r} holds bytes that are no text, which JSON has no place for (an output:"
            f" ask for it with {BINARY!r}: true)"
        ) from None


def _cut(raw: memoryview, size: Parameter) -> tuple[memoryview, memoryview]:
    """What is left of `raw`, and its first `size` bytes."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise WireError(f"{BINARY_SIZE} is a number of bytes, not {size!r:.60}")
    if size > len(raw):
        raise WireError(f"{BINARY_SIZE} is {size}, and {len(raw)} bytes are left")
    return raw[size:], raw[:size]
