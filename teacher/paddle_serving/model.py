"""Finds a model that Paddle Serving can read, and asks the serving environment what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from ... import supervise
from ...errors import ModelError, ProcessFailed, UsageError, WireError
from ...proto.datatypes import TensorSpec, datatype_of
from ..backends.files import find
from ..backends.paddle import KIND
from .configuration import Model

#: Seconds for Paddle to be imported and to read a program, which may be large.
_DESCRIBE_S: Final = 120.0
_PROGRAM: Final = Path(__file__).with_name("describe.py")
_FORMER_FORMAT: Final = ".pdmodel"
#: How the serving environment's interpreter is started: nothing of this one's settings reaches it.
PYTHON_OPTIONS: Final = ("-I", "-u")


def open_model(model: str, python: Path) -> Model:
    """The model at a path, as the Paddle of the serving environment reads it.

    Args:
        model: a folder that holds one, or its file.
        python: the interpreter of the serving environment.

    Raises:
        ModelError: there is none, or it is of a format that Paddle Serving cannot read.
        UsageError: that interpreter has no Paddle, or there is no such interpreter.
    """
    found = find(model, [KIND])
    if found.file.suffix != _FORMER_FORMAT or found.beside is None:
        raise ModelError(
            f"{found.file} is in the format of Paddle 3, which Paddle Serving does not read: export"
            " it with FLAGS_enable_pir_api=0 in the environment, which gives a .pdmodel file; or"
            " leave --engine out, and it is served by this teacher itself"
        )
    said = _described(python, found.file)
    return Model(
        found.file,
        found.beside,
        str(said["paddle"]),
        tuple(_spec(*tensor) for tensor in said["inputs"]),
        tuple(_spec(*tensor) for tensor in said["outputs"]),
    )


def _described(python: Path, program: Path) -> dict[str, Any]:
    argv = (str(python), *PYTHON_OPTIONS, str(_PROGRAM), str(program.absolute()))
    try:
        process = supervise.start(supervise.Command("describe", argv, guard=True))
    except ProcessFailed as error:
        raise UsageError(f"{error}: make an environment by 'make serving-env'") from None
    try:
        line = process.expect(r'^\{"paddle".*\}$', _DESCRIBE_S)[0]
    except ProcessFailed as error:
        raise ModelError(
            f"the Paddle of {python} cannot read {program}: {error}. Has the environment been made"
            " by 'make serving-env'?"
        ) from None
    finally:
        process.stop()
    return dict(json.loads(line))


def _spec(name: str, dtype: str, shape: list[int]) -> TensorSpec:
    if dtype == "bfloat16":
        return TensorSpec(name, "BF16", tuple(shape))
    try:
        datatype = datatype_of(np.dtype(dtype))
    except (TypeError, WireError):
        raise ModelError(f"the model uses dtype {dtype}, which cannot be sent") from None
    return TensorSpec(name, datatype, tuple(shape))
