"""Finds a model by its path or its factory, and hashes its content.

A backend is chosen by its `BackendKind`, without loading a framework: by the files at the path that
the user names, or by the object that a factory `module:function` returns.
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

    The arrays are hashed with their names; their order does not matter. A function depends on the
    functions that it calls, so the source code of two whole modules is hashed: the module of the
    factory, and the module that defines the object or its class. Frameworks are left out, because
    their versions are part of the numerics.
    """
    source = hashlib.sha256(_source(name, thing)).hexdigest()
    digest = hashlib.sha256(f"{name} {source}".encode())
    for key, array in sorted(arrays, key=lambda item: item[0]):
        contiguous = np.ascontiguousarray(array)
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(contiguous.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def hash_of_function(name: str, function: Any) -> str:
    """Return `hash_of_code` with the arrays of the function's `state_dict`, if it has one.

    Other data is not hashed: a function that depends on data should return it from `state_dict()`,
    as networks do.
    """
    state = getattr(function, "state_dict", None)
    arrays = state().items() if callable(state) else ()
    return hash_of_code(name, function, ((str(key), np.asarray(value)) for key, value in arrays))


def _source(name: str, thing: Any) -> bytes:
    """Return the source code of the factory's module and of the object's module."""
    function_or_class = thing if inspect.isroutine(thing) else type(thing)
    modules = {name.partition(":")[0], inspect.unwrap(function_or_class).__module__}
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
            empty if it declares none.
        outputs: as `inputs`.
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
    """Whether `model` is a name such as `timm/NAME`, and not a path that exists."""
    return _NAMED.fullmatch(model) is not None and not Path(model).exists()


def check_named(model: str) -> None:
    """Raise ModelError if a named model's package is not installed. Does not import the package."""
    package = NAMED_PACKAGES[model.partition("/")[0]]
    if find_spec(package) is None:
        raise ModelError(f"{model} needs {package}: {install_command(EXTRA_BY_PACKAGE[package])}")


def call_factory(name: str) -> FactoryResult:
    """Call a factory. A function with one required argument is not called: it is the model.

    A factory returns the model, `(model, inputs)` or `(model, inputs, outputs)`.

    Raises:
        ModelError: there is no such factory, it raises, or it returns a tuple of another form.
    """
    function = import_named(name)
    if _takes_a_batch(function):
        return FactoryResult(name, function)
    try:
        returned = function()
    except Exception as error:  # the user's code may raise anything
        raise ModelError(f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(returned, tuple):
        return FactoryResult(name, returned)
    thing, *declared = returned or (None,)
    if len(declared) > 2 or not all(isinstance(part, list | tuple) for part in declared):
        raise ModelError(
            f"{name} returned a tuple of {len(returned)}: expected (model, [inputs]), or "
            "(model, [inputs], [outputs])"
        )
    return FactoryResult(name, thing, *declared)


def import_named(name: str) -> Any:
    """Import `module:name`; raises ModelError if it does not exist or its import fails."""
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
    required = [
        argument
        for argument in inspect.signature(function).parameters.values()
        if argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How to run a model, with any backend.

    Attributes:
        device: "cpu" or "gpu:N".
        threads: CPU threads of one run.
        precision: "fp32" or "bf16".
        inputs: specs that the user declares, because the model does not state its inputs, or to
            narrow shapes.
        outputs: specs that the user declares, for models that do not state their outputs.
        download: allow fetching the weights of a named model from the network.
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
        suffixes: suffixes of these files. A path without a suffix means the file with the first
            suffix for which a file exists.
        open_file: opens a file, and raises ModelError; None if the backend opens no files.
        companion_suffix: suffix of a second file that the model needs; "" for none.
        content_files: returns all files of a model, which its content hash covers, in order; raises
            ModelError.
        factory_types: the objects that it runs if a factory returns them, in words; "" for none.
        recognises: returns whether an object is of `factory_types`.
        open_object: opens such an object, and raises ModelError; None if the backend opens none.
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
        """Raise ModelError if the framework is missing; the message has the command to install it.

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
    ".engine": ("TensorRT", "serve it with Triton, or give its ONNX file"),
    ".plan": ("TensorRT", "serve it with Triton, or give its ONNX file"),
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's file, and the backend that opens it."""

    kind: BackendKind
    file: Path

    @property
    def companion(self) -> Path | None:
        """The second file that the model needs; None if it needs only one."""
        suffix = self.kind.companion_suffix
        return self.file.with_suffix(suffix) if suffix else None


def find_model(model: str, kinds: Iterable[BackendKind]) -> ModelFiles:
    """Find the model at a path.

    Args:
        model: a folder with one model, a model's file, or the file's name without its suffix.
        kinds: backends that may open it.

    Raises:
        ModelError: there is no model, or more than one, or the path cannot be read.
    """
    path = Path(model).expanduser()
    file_kinds = [kind for kind in kinds if kind.files]
    if not file_kinds:
        raise ModelError(f"{model} is a path, and this backend runs only what a factory returns")
    try:
        candidates = (
            _in_folder(path, file_kinds) if path.is_dir() else _by_file_name(path, file_kinds)
        )
        if len(candidates) > 1:
            names = ", ".join(sorted(candidate.file.name for candidate in candidates))
            raise ModelError(f"{model} holds more than one model ({names}): name one of them")
        if not candidates:
            raise ModelError(_not_found_message(path, file_kinds))
    except OSError as error:
        raise ModelError(f"cannot look for a model at {model}: {error.strerror}") from None
    (model_files,) = candidates
    if model_files.companion is not None and not model_files.companion.is_file():
        raise ModelError(
            f"{model_files.file} has no weights beside it: {model_files.companion} does not exist"
        )
    return model_files


def _in_folder(folder: Path, kinds: Sequence[BackendKind]) -> list[ModelFiles]:
    """Return the complete models in a folder; a .json file without weights is not a model."""
    candidates = [
        ModelFiles(kind, file)
        for file in sorted(folder.iterdir())
        for kind in kinds
        if file.suffix in kind.suffixes and file.is_file()
    ]
    return [
        candidate
        for candidate in candidates
        if candidate.companion is None or candidate.companion.is_file()
    ]


def _by_file_name(path: Path, kinds: Sequence[BackendKind]) -> list[ModelFiles]:
    """Return `path` itself, or the first file of each backend that is `path` plus a suffix."""
    for kind in kinds:
        if path.suffix in kind.suffixes:
            return [ModelFiles(kind, path)] if path.is_file() else []
    model_files = []
    for kind in kinds:
        stem = path.with_suffix("") if path.suffix == kind.companion_suffix else path
        candidates = [stem.parent / (stem.name + suffix) for suffix in kind.suffixes]
        model_files += [ModelFiles(kind, file) for file in candidates if file.is_file()][:1]
    return model_files


def _not_found_message(path: Path, kinds: Sequence[BackendKind]) -> str:
    """Return the message for a path without a model."""
    expected_files = "; or ".join(kind.files for kind in kinds)
    if path.is_dir():
        foreign = sorted(file for file in path.iterdir() if file.suffix in FOREIGN)
        if not foreign:
            return f"no model in {path}: expected {expected_files}"
        path = foreign[0]
    if path.suffix in FOREIGN and path.exists():
        framework, remedy = FOREIGN[path.suffix]
        return f"{path} is a file of {framework}, which no backend reads: {remedy}"
    if path.exists():
        return f"{path} is not a model that can be read: expected {expected_files}"
    expected = f"expected a folder, a prefix or a file: {expected_files}"
    return f"no model at {path}{_hint(path, kinds)}: {expected}"


def _hint(path: Path, kinds: Sequence[BackendKind]) -> str:
    """Return a hint at what the user may have meant by a path that does not exist."""
    if path.is_symlink():
        return f" (the link leads to {path.readlink()}, which does not exist)"
    if re.match(r"\w+:/", str(path)):
        return " (URLs are not opened: download the model first)"
    suffixes = {suffix for kind in kinds for suffix in kind.suffixes}
    if similar := _similar(path, kinds, suffixes):
        return f" (did you mean {similar}?)"
    is_file_name = path.suffix in suffixes or path.suffix in FOREIGN
    if not path.is_absolute() and len(path.parts) <= 2 and not is_file_name:
        return " (a model of a hub is named timm/NAME, hf/NAME or torchvision/NAME)"
    return "" if path.parent.is_dir() else f" (there is no folder {path.parent})"


def _similar(path: Path, kinds: Sequence[BackendKind], suffixes: set[str]) -> Path | None:
    """Return a model with a similar name in the same folder."""
    from difflib import get_close_matches  # rarely needed, and slow to import

    try:
        entries = list(path.parent.iterdir())
    except OSError:
        return None
    models = [
        entry.name
        for entry in entries
        if (entry.is_file() and entry.suffix in suffixes)
        or (entry.is_dir() and _in_folder(entry, kinds))
    ]
    matches = get_close_matches(path.name, models, n=1)
    return path.parent / matches[0] if matches else None
