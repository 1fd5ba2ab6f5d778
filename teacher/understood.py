"""What a request is found to ask for; and of those that come again, what was found before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..proto.datatypes import from_bytes
from ..proto.forms import Parameter
from ..proto.places import Place
from ..proto.request_kinds import Cut, is_right
from ..proto.tensors import Heavy, InferRequest, datatype_of
from .model import ModelSpec
from .shared_memory.reading import Reading
from .wanted import Wanted

#: Kinds of requests that are remembered.
_KINDS: Final = 64


@dataclass(frozen=True, slots=True)
class Understood:
    """A request that is good.

    Attributes:
        request: what it says.
        spec: the model that it was held against.
        wanted: outputs to answer with.
        places: where outputs are wanted that are not to travel.
        told: what the answer says of its outputs' forms.
    """

    request: InferRequest
    spec: ModelSpec
    wanted: tuple[Wanted, ...]
    places: Mapping[str, Place]
    told: Mapping[str, dict[str, Parameter]]


@dataclass(frozen=True, slots=True)
class _Known:
    """A request of a kind: its only input, and where that lay."""

    understood: Understood
    name: str
    datatype: str
    shape: tuple[int, ...]
    place: Place


class Familiar:
    """Requests that differ from one that was understood in their id and their place alone.

    Lives in one event loop.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], _Known] = {}

    def understand(self, found: Cut, spec: ModelSpec, reading: Reading) -> Understood | None:
        """A request like one that was understood; None: there was none, or it is not for here.

        Args:
            found: the request, cut.
            spec: the model as it is.
            reading: reads its input.

        Raises:
            RequestRefused: its place is none of the caller's.
            RetryableError: it belongs to another request by now.
        """
        known = self._known.get(found.kind)
        if known is None or known.understood.spec != spec:
            return None
        offset, generation, apart = found.numbers
        own, like = known.place, known.understood
        place = Place(own.region, offset, own.nbytes, generation, apart)
        if not place.is_possible:
            return None
        try:
            array = from_bytes(reading.read_in_place(place), known.datatype, known.shape)
        except Heavy:
            return None
        said = like.request
        request = InferRequest(  # as `replace` does, in a quarter of its time
            said.model_name,
            said.model_version,
            found.request_id,
            said.parameters,
            {known.name: array},
            said.outputs,
            said.output_parameters,
        )
        return Understood(request, like.spec, like.wanted, like.places, like.told)

    def remember(self, data: bytes, found: Cut, understood: Understood, reading: Reading) -> None:
        """`data` was understood; by it others of its kind will be."""
        if (place := reading.only_place) is None or len(understood.request.inputs) != 1:
            return
        if not is_right(data, found):
            return
        if len(self._known) >= _KINDS:
            del self._known[next(iter(self._known))]
        ((name, array),) = understood.request.inputs.items()
        # Without the array: a place is not to be kept in sight.
        understood = replace(understood, request=replace(understood.request, inputs={}))
        self._known[found.kind] = _Known(
            understood, name, datatype_of(array.dtype), array.shape, place
        )
