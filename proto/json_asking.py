"""`ModelInfer` over HTTP from the side of who asks: the body of a request made, an answer's read.

The layout is that of `json_tensors`. Answers come from servers of many makers, so a parameter that
is no plain value is left out of them, not an error; the tensors themselves are believed as little
as anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..errors import WireError
from .datatypes import Input, pieces_of, to_bytes, whole
from .json_objects import JsonObject, parse_object
from .json_tensors import BINARY, BINARY_DEFAULT, in_bytes, in_json, read_arrays, to_json
from .tensors import InferResponse, Parameter

_PLAIN: Final = (bool, int, float, str)


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
    tensors: list[dict[str, Any]] = []
    raws: list[memoryview] = []
    for name, value in inputs.items():
        if binary:
            pieces = [to_bytes(piece) for piece in pieces_of(value)]
            tensors.append(in_bytes(name, value, sum(map(len, pieces))))
            raws += pieces
        else:
            tensors.append(in_json(name, whole(value)))
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
    return to_json(message), raws


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
    outputs = read_arrays(message, "outputs", raw, parameters_of=_plain_parameters)
    described = zip(outputs, map(_plain_parameters, message["outputs"]), strict=True)
    return InferResponse(
        model_name="",
        parameters=_plain_parameters(message),
        outputs=outputs,
        output_parameters={name: own for name, own in described if own},
    )


def _plain_parameters(message: JsonObject) -> dict[str, Parameter]:
    found = message.get("parameters")
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if type(value) in _PLAIN}
