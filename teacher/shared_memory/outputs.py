"""Outputs that callers want in their own shared memory: where, and putting them there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...errors import RequestRefused
from ...proto.datatypes import to_bytes
from ...proto.forms import Form
from ...proto.lent_arena import Place
from ...proto.tensors import Array, InferRequest
from ...proto.wire import Parameter
from .regions import SharedMemory
from .visitors import Visitor


def places_of(request: InferRequest) -> dict[str, Place]:
    """Where outputs are wanted that are not to travel, by their names.

    Raises:
        WireError: a place is impossible.
        RequestRefused: an output that has several parts cannot lie in one place.
    """
    places = {}
    for name, parameters in request.output_parameters.items():
        if (place := Place.named_by(parameters)) is None:
            continue
        form = Form.named_by(parameters, request.parameters)
        if form is not None and form.k:
            raise RequestRefused(
                f"output {name!r} is asked for as {form}, in several parts, which cannot lie in "
                "one place of shared memory: ask for it without"
            )
        places[name] = place
    return places


def put(
    memory: SharedMemory,
    visitor: Visitor,
    outputs: Mapping[str, Array],
    places: Mapping[str, Place],
) -> dict[str, dict[str, Parameter]]:
    """Write outputs to where the caller wants them; raises what `SharedMemory.write` does.

    Returns:
        For each place what the answer says of it, by the output's name.
    """
    said = {}
    for name, place in places.items():
        data = to_bytes(outputs[name])
        memory.write(visitor, place, data)
        said[name] = replace(place, nbytes=len(data)).parameters()
    return said
