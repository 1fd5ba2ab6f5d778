"""Hashes of what a model is: its files, its weights, the source of its functions."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import ModelError
from ...proto.arena import Array

_FRAMEWORKS: Final = ("paddle", "torch")


def of_files(files: Sequence[Path]) -> str:
    """SHA-256 of the files' content: their names and their place do not matter.

    Raises:
        ModelError: one cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.stat().st_size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    except OSError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}") from None
    return digest.hexdigest()


def of_arrays(name: str, arrays: Iterable[tuple[str, Array]]) -> str:
    """SHA-256 of a name, and of the arrays by their names: where they lie does not matter."""
    digest = hashlib.sha256(name.encode())
    for key, array in sorted(arrays, key=lambda item: item[0]):
        whole = np.ascontiguousarray(array)
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(whole.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_code(name: str, thing: Any, arrays: Iterable[tuple[str, Array]]) -> str:
    """SHA-256 of a factory's function or network: its name, source and arrays.

    The source is that of whole modules, as a function is what it calls: the factory's, and that in
    which the thing or its class is defined. A framework's own is left out: its version is a part of
    the numerics.
    """
    return of_arrays(f"{name} {hashlib.sha256(_source(name, thing)).hexdigest()}", arrays)


def of_function(name: str, function: Any) -> str:
    """As `of_code`, with the arrays of the function's `state_dict`, if it has one.

    What it reads from elsewhere cannot be seen: let `state_dict()` give it, as networks do.
    """
    state = getattr(function, "state_dict", None)
    arrays = state().items() if callable(state) else ()
    return of_code(name, function, ((str(key), np.asarray(value)) for key, value in arrays))


def _source(name: str, thing: Any) -> bytes:
    """The source of the factory's module and of the thing's own, where there is any."""
    modules = {name.partition(":")[0], inspect.unwrap(_kind(thing)).__module__}
    texts = []
    for module in sorted(modules):
        if module.partition(".")[0] in _FRAMEWORKS:
            continue
        try:
            file = inspect.getsourcefile(sys.modules[module])
        except (KeyError, TypeError):  # built in, or made by hand
            continue
        if file is not None and Path(file).is_file():
            texts.append(Path(file).read_bytes())
    return b"\n".join(texts)


def _kind(thing: Any) -> Any:
    return thing if inspect.isroutine(thing) else type(thing)
