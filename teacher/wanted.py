"""What a request wants back: an output, and the form in which it is to travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..errors import RequestRefused
from ..proto.arena import Array
from ..proto.form_arrays import encode
from ..proto.forms import Form, Parameter
from .model import ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output that is asked for, of this kind; `form` None: as the model gives it."""

    name: str
    form: Form | None = None
    kind: str = ""

    def parameters(self, spec: TensorSpec) -> dict[str, dict[str, Parameter]]:
        """What the answer's outputs say of their form, by their names."""
        if self.form is None:
            return {}
        named = self.form.parameters(spec.shape[-1])
        return dict.fromkeys(self.form.parts(self.name), named)

    def to_json(self) -> list[Any]:
        if self.form is None:
            return [self.name, None, None, self.kind]
        return [self.name, str(self.form), self.form.temperature, self.kind]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        name, form, temperature, kind = value
        return cls(name, Form.parse(form, temperature), kind)


def in_their_forms(outputs: Mapping[str, Array], wanted: Iterable[Wanted]) -> dict[str, Array]:
    """The arrays that travel, in the order in which they are wanted.

    Args:
        outputs: what the model gives, finite.
        wanted: some of these.

    Raises:
        RequestRefused: an output holds values that its form cannot, or a part of one has the name
            of another.
    """
    travel: dict[str, Array] = {}
    for one in wanted:
        array, form = outputs[one.name], one.form
        arrays = {one.name: array} if form is None else encode(one.name, array, form, one.kind)
        if twice := travel.keys() & arrays.keys():
            raise RequestRefused(
                f"two outputs would travel as {min(twice)!r}: ask for {one.name!r} in another form"
            )
        travel |= arrays
    return travel


def forms_told(wanted: Iterable[Wanted], spec: ModelSpec) -> dict[str, dict[str, Parameter]]:
    """What an answer says of its outputs' forms, by the names of what travels."""
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    return {
        part: form for one in wanted for part, form in one.parameters(outputs[one.name]).items()
    }
