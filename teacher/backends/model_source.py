"""Where a model comes from: its files or a factory, and the hash of its content.

A `BackendKind` describes a backend, so that one can be chosen without loading a framework: by the
files at the path that the user gave, or by the object that a factory `module:function` returns.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import TensorSpec
from ...runtime.errors import ModelError
from ...runtime.extras import EXTRA_BY_PACKAGE, install_command
from . import Backend

_FRAMEWORKS: Final = ("paddle", "torch")


def hash_of_files(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the content of files; names and locations do not count.

    Raises:
        ModelError: a file cannot be read.
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


def hash_of_code(name: str, thing: Any, arrays: Iterable[tuple[str, Array]]) -> str:
    """Return the SHA-256 of a factory's function or network: name, source code and arrays.

    The arrays count with their names, in any order. The source code is that of two whole modules,
    because a function depends on what it calls: the module of the factory, and the module that
    defines the object or its class. Frameworks are left out; their versions are part of the
    numerics.
    """
    source = hashlib.sha256(_source(name, thing)).hexdigest()
    digest = hashlib.sha256(f"{name} {source}".encode())
    for key, array in sorted(arrays, key=lambda item: item[0]):
        whole = np.ascontiguousarray(array)
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(whole.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def hash_of_function(name: str, function: Any) -> str:
    """Return `hash_of_code` with the arrays of the function's `state_dict`, if it has one.

    Other data does not count: the function should return it from `state_dict()`, as networks do.
    """
    state = getattr(function, "state_dict", None)
    arrays = state().items() if callable(state) else ()
    return hash_of_code(name, function, ((str(key), np.asarray(value)) for key, value in arrays))


def _source(name: str, thing: Any) -> bytes:
    """Return the source code of the factory's module and of the object's module."""
    kind = thing if inspect.isroutine(thing) else type(thing)
    modules = {name.partition(":")[0], inspect.unwrap(kind).__module__}
    texts = []
    for module in sorted(modules):
        if module.partition(".")[0] in _FRAMEWORKS:
            continue
        try:
            file = inspect.getsourcefile(sys.modules[module])
        except (KeyError, TypeError):  # built in, or created dynamically
            continue
        if file is not None and Path(file).is_file():
            texts.append(Path(file).read_bytes())
    return b"\n".join(texts)


@dataclass(frozen=True, slots=True)
class FactoryResult:
    """What a factory returned.

    Attributes:
        name: the factory, "module:function".
        model: a network or a function; its class selects the backend.
        inputs: as the factory declares them, in the framework's types or as "NAME:DATATYPE:DIMS";
            empty if it does not.
        outputs: likewise.
    """

    name: str
    model: Any
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


def is_factory(model: str) -> bool:
    """Whether `model` names a factory (`module:function`) and not a path."""
    module, colon, function = model.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


#: First part of a model's name -> the package that it needs, which is also the name of an extra.
NAMED_PACKAGES: Final = {"timm": "timm", "hf": "transformers", "torchvision": "torchvision"}
_NAMED: Final = re.compile(rf"({'|'.join(NAMED_PACKAGES)})/.+")


def is_named(model: str) -> bool:
    """Whether `model` is a name such as `timm/NAME`; a path that exists is not."""
    return _NAMED.fullmatch(model) is not None and not Path(model).exists()


def check_named(model: str) -> None:
    """Raise ModelError if the package of a named model is not installed; it is not imported."""
    package = NAMED_PACKAGES[model.partition("/")[0]]
    if find_spec(package) is None:
        raise ModelError(f"{model} needs {package}: {install_command(EXTRA_BY_PACKAGE[package])}")


def call_factory(name: str) -> FactoryResult:
    """Call a factory. A function that takes one argument is itself the model.

    A factory returns the model, `(model, inputs)` or `(model, inputs, outputs)`.

    Raises:
        ModelError: there is no such factory, it raises, or it returns another tuple.
    """
    function = import_named(name)
    if _takes_a_batch(function):
        return FactoryResult(name, function)
    try:
        made = function()
    except Exception as error:  # the user's code may raise anything
        raise ModelError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple):
        return FactoryResult(name, made)
    thing, *declared = made or (None,)
    if len(declared) > 2 or not all(isinstance(part, list | tuple) for part in declared):
        raise ModelError(
            f"{name} returned a tuple of {len(made)}: expected (model, [inputs]), or "
            "(model, [inputs], [outputs])"
        )
    return FactoryResult(name, thing, *declared)


def import_named(name: str) -> Any:
    """Import `module:name`; raises ModelError if it does not exist."""
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
class ModelSettings:
    """How to run a model, with any backend.

    Attributes:
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        precision: "fp32" or "bf16".
        inputs: declared by the user: inputs that the model does not state, or narrower shapes.
        outputs: declared by the user, for models that do not state them.
        download: the weights of a named model may be fetched from the network.
        preprocessed_inputs: returns the inputs that preprocessing produces, for a model without
            stated inputs. Raises ModelError.
    """

    device: str = "cpu"
    threads: int = 1
    precision: str = "fp32"
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    download: bool = False
    preprocessed_inputs: Callable[[], tuple[TensorSpec, ...]] = tuple


@dataclass(frozen=True, slots=True)
class BackendKind:
    """The description of a backend.

    Attributes:
        name: as in `--backend`.
        package: the Python package that it needs; "" for none.
        precisions: supported values of `--precision`.
        files: the files that it opens, in words; "" for none.
        suffixes: suffixes of these files; if a model has several, the first one counts.
        open_file: opens a file; raises ModelError.
        companion_suffix: suffix of a second file that the model needs; "" for none.
        content_files: returns all files of a model, which its content hash covers, in order; raises
            ModelError.
        factory_types: the objects from a factory that it runs, in words; "" for none.
        recognises: whether an object is one of these.
        open_object: opens such an object; raises ModelError.
    """

    name: str
    package: str = ""
    precisions: tuple[str, ...] = ("fp32",)
    files: str = ""
    suffixes: tuple[str, ...] = ()
    open_file: Callable[[Path, ModelSettings], Backend] | None = None
    companion_suffix: str = ""
    content_files: Callable[[Path], list[Path]] = lambda file: [file]
    factory_types: str = ""
    recognises: Callable[[object], bool] = lambda thing: False
    open_object: Callable[[FactoryResult, ModelSettings], Backend] | None = None

    def require_installed(self, model: str) -> None:
        """Raise ModelError, with the command to install it, if the framework is missing.

        The package is only looked up: importing it would take seconds.
        """
        if self.package and find_spec(self.package) is None:
            raise ModelError(
                f"{model} is for backend {self.name}, which needs {self.package}: "
                f"{install_command(EXTRA_BY_PACKAGE[self.package])}"
            )


#: Unsupported formats by their suffix: the framework, and how to convert the model.
FOREIGN = {
    ".h5": ("Keras", "write it as ONNX: pip install tf2onnx"),
    ".keras": ("Keras", "write it as ONNX: pip install tf2onnx"),
    ".pb": ("TensorFlow", "write it as ONNX: pip install tf2onnx"),
    ".tflite": ("TensorFlow Lite", "write it as ONNX: pip install tf2onnx"),
    ".pdparams": ("Paddle (weights alone)", "export the network with paddle.jit.save"),
    ".safetensors": (
        "safetensors (weights alone)",
        "give its folder with the config.json as hf/FOLDER or timm/FOLDER, or load it in a factory "
        "module:function",
    ),
    ".engine": ("TensorRT", "serve it by Triton, or give its ONNX file"),
    ".plan": ("TensorRT", "serve it by Triton, or give its ONNX file"),
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's file, and the backend that opens it."""

    kind: BackendKind
    file: Path

    @property
    def companion(self) -> Path | None:
        """The second file that the model needs; None if one is enough."""
        suffix = self.kind.companion_suffix
        return self.file.with_suffix(suffix) if suffix else None


def find_model(model: str, kinds: Iterable[BackendKind]) -> ModelFiles:
    """Find the model at a path: a folder that holds one, a file, or a file name without its suffix.

    Args:
        model: the path.
        kinds: backends that may open it.

    Raises:
        ModelError: there is no model, or more than one, or the path cannot be read.
    """
    given = Path(model).expanduser()
    readers = [kind for kind in kinds if kind.files]
    if not readers:
        raise ModelError(f"{model} is a path, and this backend runs what a factory returns")
    try:
        found = _in_folder(given, readers) if given.is_dir() else _named(given, readers)
        if len(found) > 1:
            names = ", ".join(sorted(each.file.name for each in found))
            raise ModelError(f"{model} holds more than one model ({names}): name one of them")
        if not found:
            raise ModelError(_missing(given, readers))
    except OSError as error:
        raise ModelError(f"cannot look for a model at {model}: {error.strerror}") from None
    (only,) = found
    if only.companion is not None and not only.companion.is_file():
        raise ModelError(f"{only.file} has no weights beside it: {only.companion} does not exist")
    return only


def _in_folder(folder: Path, readers: Sequence[BackendKind]) -> list[ModelFiles]:
    """Return the complete models in a folder: a .json file without weights is not a model."""
    each = [
        ModelFiles(kind, file)
        for file in sorted(folder.iterdir())
        for kind in readers
        if file.suffix in kind.suffixes and file.is_file()
    ]
    return [found for found in each if found.companion is None or found.companion.is_file()]


def _named(given: Path, readers: Sequence[BackendKind]) -> list[ModelFiles]:
    """Return the file itself, or files with a known suffix added."""
    for kind in readers:
        if given.suffix in kind.suffixes:
            return [ModelFiles(kind, given)] if given.is_file() else []
    found = []
    for kind in readers:
        stem = given.with_suffix("") if given.suffix == kind.companion_suffix else given
        each = [stem.parent / (stem.name + suffix) for suffix in kind.suffixes]
        found += [ModelFiles(kind, file) for file in each if file.is_file()][:1]
    return found


def _missing(given: Path, readers: Sequence[BackendKind]) -> str:
    what = "; or ".join(kind.files for kind in readers)
    if given.is_dir():
        foreign = sorted(file for file in given.iterdir() if file.suffix in FOREIGN)
        if not foreign:
            return f"no model in {given}: expected {what}"
        given = foreign[0]
    if given.suffix in FOREIGN and given.exists():
        framework, remedy = FOREIGN[given.suffix]
        return f"{given} is a file of {framework}, which no backend reads: {remedy}"
    if given.exists():
        return f"{given} is not a model that can be read: expected {what}"
    expected = f"expected a folder, a prefix or a file: {what}"
    return f"no model at {given}{_hint(given, readers)}: {expected}"


def _hint(given: Path, readers: Sequence[BackendKind]) -> str:
    """Return a hint at what the user may have meant by a path that does not exist."""
    if given.is_symlink():
        return f" (the link leads to {given.readlink()}, where nothing is)"
    if re.match(r"\w+:/", str(given)):
        return " (URLs are not opened: download the model first)"
    suffixes = {suffix for kind in readers for suffix in kind.suffixes}
    if near := _similar(given, readers, suffixes):
        return f" (did you mean {near}?)"
    is_file_name = given.suffix in suffixes or given.suffix in FOREIGN
    if not given.is_absolute() and len(given.parts) <= 2 and not is_file_name:
        return " (a model of a hub is named timm/NAME, hf/NAME or torchvision/NAME)"
    return "" if given.parent.is_dir() else f" (there is no folder {given.parent})"


def _similar(given: Path, readers: Sequence[BackendKind], suffixes: set[str]) -> Path | None:
    """Return a model with a similar name in the same folder."""
    from difflib import get_close_matches  # rarely needed, and slow to import

    try:
        there = list(given.parent.iterdir())
    except OSError:
        return None
    models = [
        entry.name
        for entry in there
        if (entry.is_file() and entry.suffix in suffixes)
        or (entry.is_dir() and _in_folder(entry, readers))
    ]
    near = get_close_matches(given.name, models, n=1)
    return given.parent / near[0] if near else None
