"""Which field of a batch goes to which input of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from ...errors import UsageError
from ..config import FieldKey

T = TypeVar("T")
#: Why a field that the user sees may not be among those that can be fed.
_RAGGED: Final = " (a list of arrays cannot be fed: pad them to one array)"


def model_inputs(
    fields: Mapping[FieldKey, T],
    inputs: Sequence[str],
    feeds: Sequence[tuple[str | None, FieldKey]],
) -> dict[str, T]:
    """A value for each of the model's inputs.

    Args:
        fields: the arrays of a batch by place or key.
        inputs: names of the model's inputs, in its order; empty where a server names none.
        feeds: what the user chose, as pairs (input or None, field); empty: by name, else in order.

    Raises:
        UsageError: a field or an input that is named does not exist, or there are too few.
    """
    if not feeds:
        if not inputs:
            raise UsageError(
                "the model names no inputs; say which fields it gets by feeds={'input': field}"
            )
        feeds = _by_default(fields, inputs)
    chosen: dict[str, T] = {}
    for place, (name, key) in enumerate(feeds):
        if key not in fields:
            raise UsageError(f"feeds names field {key!r}, a batch has {list(fields)}{_RAGGED}")
        if name is None and place >= len(inputs):
            raise UsageError(
                f"feeds names {len(feeds)} fields, the model has the inputs {list(inputs)}"
            )
        if name is not None and inputs and name not in inputs:
            raise UsageError(f"feeds names input {name!r}, the model has {list(inputs)}")
        chosen[inputs[place] if name is None else name] = fields[key]
    missing = [name for name in inputs if name not in chosen]
    if missing:
        raise UsageError(
            f"the model's inputs {missing} get no field of the batch, which has {list(fields)}"
            f"{_RAGGED}; say which by feeds={{'input': field}}"
        )
    return chosen


def _by_default(
    fields: Mapping[FieldKey, T], inputs: Sequence[str]
) -> list[tuple[str | None, FieldKey]]:
    if all(name in fields for name in inputs):
        return [(name, name) for name in inputs]
    return list(zip(inputs, fields, strict=False))
