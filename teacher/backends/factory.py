"""Calls a factory `module:function` of the user's, and says what it gave."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError


@dataclass(frozen=True, slots=True)
class Made:
    """What a factory gave.

    Attributes:
        name: the factory, "module:function".
        thing: a network or a function; which backend it is for shows by its class.
        inputs: as the factory declares them, each in the words of its framework or as
            "NAME:DATATYPE:DIMS"; empty where it does not.
        outputs: the same for what comes out.
    """

    name: str
    thing: Any
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


def is_factory(model: str) -> bool:
    """Whether `model` names a factory (`module:function`) rather than a path."""
    module, colon, function = model.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def make(name: str) -> Made:
    """Call the factory `name`; a function that takes an argument is itself the thing.

    The factory returns the thing, `(thing, inputs)` or `(thing, inputs, outputs)`.

    Raises:
        ModelError: it is not there, it raises, or it returns a tuple of another form.
    """
    function = named(name)
    if _takes_a_batch(function):
        return Made(name, function)
    try:
        made = function()
    except Exception as error:  # the user's code: whatever it raises is theirs to read
        raise ModelError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple):
        return Made(name, made)
    thing, *declared = made or (None,)
    if len(declared) > 2 or not all(isinstance(part, list | tuple) for part in declared):
        raise ModelError(
            f"{name} returned a tuple of {len(made)}: expected (model, [inputs]), or "
            "(model, [inputs], [outputs])"
        )
    return Made(name, thing, *declared)


def named(name: str) -> Any:
    """What `module:name` is; raises ModelError where there is none."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"no factory {name}: {error}") from error
    except Exception as error:
        raise ModelError(f"importing {module} raised {type(error).__name__}: {error}") from error


def _takes_a_batch(function: Any) -> bool:
    if not inspect.isfunction(function):
        return False
    wanted = [
        argument
        for argument in inspect.signature(function).parameters.values()
        if argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]
    return len(wanted) == 1
