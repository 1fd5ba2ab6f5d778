"""In which form a reader asks for each soft label, and what of it the training loop gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar, get_args

from ..errors import UsageError
from ..proto.forms import LabelForm, SoftLabelIs
from .checking import flag

T = TypeVar("T")
#: Pairs of (output or None for every one that is not named, value).
ByOutput = tuple[tuple[str | None, T], ...]


@dataclass(frozen=True, slots=True)
class LabelForms:
    """What the user asks for.

    Attributes:
        forms: as `proto.forms` names them.
        temperatures: of the softmax that the teacher applies first.
        expand: dense float32 labels come out, whatever travelled; else what travelled.
        stated: what the models give, as the user states it.

    Raises:
        UsageError: there is no such form, temperature or kind of label.
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
            self._named(name)

    @classmethod
    def given(
        cls,
        form: str | Mapping[str, str] | None,
        temperature: float | Mapping[str, float] | None,
        expand: bool,
        soft_label_is: SoftLabelIs | Mapping[str, SoftLabelIs] | None = None,
    ) -> Self:
        """From a value for every output, or values by output; None: as the model gives them."""
        forms, temperatures = _pairs(form), _pairs(temperature)
        for _, text in forms:
            if not isinstance(text, str):
                raise UsageError(f"a label_form is text, as in 'topk:20', not {text!r}")
        for _, number in temperatures:
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise UsageError(f"a temperature is a number, not {number!r}")
        expand = flag("expand_labels", expand)
        floats = tuple((name, float(t)) for name, t in temperatures)
        return cls(forms, floats, expand, _pairs(soft_label_is))

    def of(self, output: str) -> LabelForm | None:
        """The form of one output; None: as the model gives it."""
        return self._named(output) if self.forms or self.temperatures else None

    def stated_kind(self, output: str) -> SoftLabelIs | None:
        """What the user states that the model gives as this output; None: nothing."""
        return _value(self.stated, output)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that are named, some perhaps twice."""
        named = (*dict(self.forms), *dict(self.temperatures), *dict(self.stated))
        return tuple(name for name in named if name is not None)

    def check_fetched(self, fetches: Collection[str]) -> None:
        """Raise UsageError where an output is named that does not come back."""
        for name in self.outputs:
            if fetches and name not in fetches:
                raise UsageError(
                    f"a form, temperature or kind is given for output {name!r}, and fetches are"
                    f" {list(fetches)}: name it there too"
                )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        forms, temperatures, stated = (
            tuple((name, one) for name, one in value[field])
            for field in ("forms", "temperatures", "stated")
        )
        return cls(forms, temperatures, value["expand"], stated)

    def _named(self, output: str | None) -> LabelForm | None:
        return LabelForm.parse(_value(self.forms, output), _value(self.temperatures, output))


def _pairs(value: T | Mapping[str, T] | None) -> ByOutput[T]:
    if value is None:
        return ()
    return tuple(value.items()) if isinstance(value, Mapping) else ((None, value),)


def _value(pairs: Sequence[tuple[str | None, T]], output: str | None) -> T | None:
    values = dict(pairs)
    return values.get(output, values.get(None))


#: Every label as the model gives it.
AS_GIVEN: Final = LabelForms()
