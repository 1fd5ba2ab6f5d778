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
        feeds: what the user chose, as pairs (input or None, field); empty: by name, or in order
            if no field has the name of an input.

    Raises:
        UsageError: a field or an input that is named does not exist, there are too few, or only
            some inputs have a field of their name.
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
    missing = [name for name in inputs if name not in fields]
    if not missing:
        return [(name, name) for name in inputs]
    if len(missing) == len(inputs):
        return list(zip(inputs, fields, strict=False))
    left = [key for key in fields if isinstance(key, str) and key not in inputs]
    # In order, a field could go to another input than the one it was made for.
    raise UsageError(
        f"the model's inputs {missing} have no field of their name in a batch with {list(fields)}"
        f"{_RAGGED}{_hint(missing, left)}; say which by feeds={{'input': field}}"
    )


def _hint(missing: Sequence[str], left: Sequence[str]) -> str:
    from difflib import get_close_matches  # takes a while to import, and is for errors alone

    close = {name: get_close_matches(name, left, n=1, cutoff=0.4) for name in missing}
    pairs = [f"{found[0]!r} for {name!r}" for name, found in close.items() if found]
    return f"; did you mean {', '.join(pairs)}?" if pairs else ""
