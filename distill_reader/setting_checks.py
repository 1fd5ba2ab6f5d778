"""Type checks of settings.

A check of a value returns it, or raises UsageError with the name of the setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from operator import index
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from ..runtime.errors import UsageError

_K = TypeVar("_K")


def integer(name: str, value: Any) -> int:
    """Return an integer of Python or numpy as an int."""
    if not isinstance(value, (bool, np.bool_)):
        with suppress(TypeError):  # also from arrays: they have `__index__`, but it raises
            return index(value)
    raise UsageError(f"{name} is a whole number, not {value!r}")


def number(name: str, value: Any) -> float:
    """Return a finite number of Python or numpy as a float."""
    is_real = isinstance(value, (int, float, np.integer, np.floating))
    with suppress(OverflowError):  # an int that no float can hold
        if is_real and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise UsageError(f"{name} is a finite number, not {value!r}")


def flag(name: str, value: Any) -> bool:
    """Return a bool of Python or numpy as a bool."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise UsageError(f"{name} is True or False, not {value!r}")


def text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise UsageError(f"{name} is text, not {value!r}")


def texts(name: str, value: Any, example: str) -> tuple[str, ...]:
    """Return an iterable of texts as a tuple; `example` is shown in the error."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        items = tuple(value)
        if all(isinstance(item, str) for item in items):
            return items
    raise UsageError(f"{name} is a list of texts, as in {name}=[{example!r}], not {value!r}")


def path(name: str, value: Any) -> Path:
    try:
        return Path(value)
    except TypeError:
        raise UsageError(f"{name} is a path, not {value!r}") from None


def instance_of(name: str, value: Any, kind: type[_K]) -> _K:
    if isinstance(value, kind):
        return value
    raise UsageError(f"{name} is {kind.__name__}(...), from edl.distill_reader, not {value!r}")


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "int": integer,
    "float": number,
    "bool": flag,
    "str": text,
}


def check_fields(settings: Any) -> None:
    """Check the int, float, bool and str fields of a new frozen dataclass by their annotations.

    numpy numbers are converted to Python numbers, because JSON can encode only those.

    Raises:
        UsageError: a field of a wrong type.
    """
    for field in fields(settings):
        kind, value = str(field.type), getattr(settings, field.name)
        check = _CHECKS.get(kind.removesuffix(" | None"))
        if check is not None and not (value is None and kind.endswith(" | None")):
            object.__setattr__(settings, field.name, check(field.name, value))
