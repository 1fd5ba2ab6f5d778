"""The requested wire form of each soft label, and whether it is expanded for the training loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar, get_args

from ..proto.forms import LabelForm, SoftLabelIs
from ..runtime.errors import UsageError
from .setting_checks import flag, number, text

T = TypeVar("T")
#: Pairs (output, value); None stands for every output that is not named.
ByOutput = tuple[tuple[str | None, T], ...]


@dataclass(frozen=True, slots=True)
class LabelForms:
    """The label forms that the user requests, and the output kinds that the user states.

    Attributes:
        forms: wire form of each output, as `LabelForm.parse` reads it.
        temperatures: temperatures of the softmax before the encoding; the teacher applies it, or
            the engine for a foreign server.
        expand: return outputs with a requested form as dense float32; False: return the wire form.
        stated: kinds of the models' outputs, as stated by the user.

    Raises:
        UsageError: an invalid form, temperature or kind.
    """

    forms: ByOutput[str] = ()
    temperatures: ByOutput[float] = ()
    expand: bool = True
    stated: ByOutput[SoftLabelIs] = ()

    def __post_init__(self) -> None:
        for _, kind in self.stated:
            if kind not in get_args(SoftLabelIs):
                raise UsageError(f"soft_label_is is 'logits' or 'probabilities', not {kind!r}")
        for name in (*dict(self.forms), *dict(self.temperatures)):
            self._form(name)

    @classmethod
    def from_user(
        cls,
        form: str | Mapping[str, str] | None,
        temperature: float | Mapping[str, float] | None,
        expand: bool,
        soft_label_is: SoftLabelIs | Mapping[str, SoftLabelIs] | None = None,
    ) -> Self:
        """Convert the user's values; each but `expand` is for all outputs, or a dict by output.

        Raises:
            UsageError: a value is invalid, or a value or the name of an output is of a wrong type.
        """
        forms = tuple(
            (name, text("label_form", value)) for name, value in _pairs("label_form", form)
        )
        temperatures = tuple(
            (name, number("temperature", value))
            for name, value in _pairs("temperature", temperature)
        )
        expand = flag("expand_labels", expand)
        return cls(forms, temperatures, expand, _pairs("soft_label_is", soft_label_is))

    def of(self, output: str) -> LabelForm | None:
        """Return the requested form of one output; None: the model's own."""
        return self._form(output) if self.forms or self.temperatures else None

    def stated_kind(self, output: str) -> SoftLabelIs | None:
        """Return the kind that the user states for one output; None: not stated."""
        return _value(self.stated, output)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The named outputs, possibly repeated."""
        named = (*dict(self.forms), *dict(self.temperatures), *dict(self.stated))
        return tuple(name for name in named if name is not None)

    def check_fetched(self, fetches: Collection[str]) -> None:
        """Raise UsageError if a named output is not among `fetches` (empty: all are fetched)."""
        for name in self.outputs:
            if fetches and name not in fetches:
                raise UsageError(
                    f"a form, temperature or kind is set for output {name!r}, which is not among"
                    f" fetches={list(fetches)}: add it there"
                )

    def _form(self, output: str | None) -> LabelForm | None:
        return LabelForm.parse(_value(self.forms, output), _value(self.temperatures, output))


def _pairs(setting: str, value: T | Mapping[str, T] | None) -> ByOutput[T]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        return ((None, value),)
    for name in value:
        if name is not None:  # stands for every output that is not named
            text(f"an output in {setting}", name)
    return tuple(value.items())


def _value(pairs: Sequence[tuple[str | None, T]], output: str | None) -> T | None:
    values = dict(pairs)
    return values.get(output, values.get(None))


#: No form is requested: every label comes in the model's own form.
NO_FORMS: Final = LabelForms()
