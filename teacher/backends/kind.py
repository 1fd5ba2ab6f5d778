"""What a backend says of itself, so that one can be chosen before any framework is loaded.

It is chosen by the model's files, or by what a factory `module:function` of the user's gives.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...extras import EXTRA_BY_PACKAGE, install_command
from ..model import TensorSpec
from . import Backend


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


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is to be run, whatever runs it.

    Attributes:
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        precision: "fp32" or "bf16".
        inputs: as the user declares them, where the model says less.
        outputs: the same, where only a run would tell.
        behind: asked for the inputs where neither `inputs` nor the model says them: what the steps
            of preprocessing make of those that come over the wire. Raises ModelError.
    """

    device: str = "cpu"
    threads: int = 1
    precision: str = "fp32"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    behind: Callable[[], tuple[TensorSpec, ...]] = tuple


@dataclass(frozen=True, slots=True)
class Files:
    """Files that a backend opens.

    Attributes:
        words: what they are.
        suffixes: theirs; of several that a model has, the first counts.
        open: opens one; raises ModelError.
        beside: suffix of a second file without which the first is no model; "" for none.
        parts: the files that a model consists of, by the one that is opened, where these are not
            that and the one beside it; raises ModelError.
    """

    words: str
    suffixes: tuple[str, ...]
    open: Callable[[Path, Settings], Backend]
    beside: str = ""
    parts: Callable[[Path], list[Path]] | None = None


@dataclass(frozen=True, slots=True)
class Things:
    """Things of a factory that a backend runs.

    Attributes:
        words: what they are.
        recognises: whether a thing is one.
        open: opens one; raises ModelError.
    """

    words: str
    recognises: Callable[[object], bool]
    open: Callable[[Made, Settings], Backend]


@dataclass(frozen=True, slots=True)
class Kind:
    """One backend.

    Attributes:
        name: as `--backend` calls it.
        files: that it opens; None: it opens none.
        things: that it takes from a factory; None: it takes none.
        package: what Python imports it as; "" where nothing has to be installed.
        precisions: that it can run at.
    """

    name: str
    files: Files | None = None
    things: Things | None = None
    package: str = ""
    precisions: tuple[str, ...] = ("fp32",)

    def require_installed(self, model: str) -> None:
        """Raise ModelError, with what to install, where the framework is not there.

        It is looked for and not imported, which would take seconds.
        """
        if self.package and find_spec(self.package) is None:
            raise ModelError(
                f"{model} is for backend {self.name}, which needs {self.package}: "
                f"{install_command(EXTRA_BY_PACKAGE[self.package])}"
            )
