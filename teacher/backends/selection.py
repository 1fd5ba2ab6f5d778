"""Chooses the backend for a model and opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ...proto.arena import Array
from ...proto.datatypes import TensorSpec
from ...runtime.errors import BadAnswer, ModelError, UsageError
from ...runtime.files import file_stamps
from . import Backend, WrappedBackend, callable, named_models, onnx, paced, paddle, torch
from .framework import describe_difference
from .model_source import (
    BackendKind,
    ModelFiles,
    ModelSettings,
    call_factory,
    check_named,
    find_model,
    hash_of_files,
    is_factory,
    is_named,
)
from .preprocess import (
    BUILT_IN_STEPS,
    check_step_name,
    content_with_step,
    outputs_of_steps,
    preprocessed,
)
from .tensor_specs import check_dimensions

#: All backends, in the order in which they are tried. To add a backend, add a module to this folder
#: and its KIND to this line.
KINDS: tuple[BackendKind, ...] = (paddle.KIND, onnx.KIND, torch.KIND, callable.KIND)

AUTO = "auto"
#: Values of `--backend`.
NAMES: tuple[str, ...] = (AUTO, *(kind.name for kind in KINDS), paced.NAME)


def check_model(model: str, backend: str = AUTO, preprocess: Sequence[str] = ()) -> None:
    """Check a model without loading a framework or importing a factory.

    For a name such as `timm/NAME`, this checks only whether its package (here timm) is installed
    and `backend` runs such models. For a factory it checks nothing, unless `backend` names a
    framework.

    Raises:
        ModelError: there are no such files, their framework or such a package is not installed, or
            the backend does not run named models.
        UsageError: there is no such backend or preprocessing.
    """
    kinds = _kinds(backend)
    for name in preprocess:
        check_step_name(name)
    if is_named(model):
        _check_kind_of_named(model, kinds)
        check_named(model)
    elif not is_factory(model):
        find_model(model, kinds).kind.require_installed(model)
    elif len(kinds) == 1:
        kinds[0].require_installed(model)


def open_backend(
    model: str,
    *,
    backend: str = AUTO,
    threads: int = 1,
    device: str = "cpu",
    precision: str = "fp32",
    inputs: Sequence[TensorSpec] = (),
    outputs: Sequence[TensorSpec] = (),
    preprocess: Sequence[str] = (),
    rate: float | None = None,
    download: bool = False,
    on_comparison: Callable[[str], None] = lambda text: None,
) -> Backend:
    """Load a model.

    Args:
        model: path of a model (folder, prefix or file), a name such as `timm/NAME`
            (`named_models`), or a factory `module:function`.
        backend: one of `NAMES`; "auto" decides by the files, or by the object that the factory
            returns.
        threads: CPU threads of one run.
        device: "cpu" or "gpu:N".
        precision: "fp32", or "bf16" if the backend supports it.
        inputs: specs that the user declares for the tensors of a request (before preprocessing),
            because the model does not state its inputs, or to narrow shapes.
        outputs: specs that the user declares, for models that do not state their outputs.
        preprocess: steps before the model, in order.
        rate: samples per second of the device that "paced" emulates.
        download: allow fetching the weights of a named model from the network.
        on_comparison: called with one line that compares a lower precision with fp32; not called
            for fp32.

    Raises:
        ModelError: there is no such model, it cannot be read, or a teacher cannot serve it.
        UsageError: there is no such backend, or `rate` is invalid, missing for "paced", or stated
            for another backend.
    """
    paced.check_rate(backend, rate)
    settings = ModelSettings(device, threads, precision, tuple(inputs), tuple(outputs), download)
    if preprocess:
        preprocessed_inputs = partial(outputs_of_steps, preprocess, settings.inputs)
        settings = replace(settings, inputs=(), preprocessed_inputs=preprocessed_inputs)
    kind, open_model = _opener(model, _kinds(backend))
    if precision not in kind.precisions:
        raise ModelError(
            f"backend {kind.name} runs at {' or '.join(kind.precisions)}, not at {precision}"
        )
    opened = open_model(settings)
    if precision != "fp32":
        exact = open_model(replace(settings, precision="fp32"))
        on_comparison(describe_difference(opened, exact, precision))
    opened = OutputCheckedBackend(preprocessed(opened, preprocess, inputs), by_option=bool(outputs))
    for tensor in (*opened.spec.inputs, *opened.spec.outputs):
        check_dimensions(tensor)
        if tensor.datatype == "BYTES":
            raise ModelError(
                f"{tensor.name!r} is of BYTES, and a teacher works on numbers: encode text as "
                "numbers before it is sent, or leave such an output out"
            )
    return opened if rate is None else paced.PacedBackend(opened, rate)


def _kinds(backend: str) -> Sequence[BackendKind]:
    """Return the backends that may open a model; "auto" and "paced" accept all of them."""
    if backend in (AUTO, paced.NAME):
        return KINDS
    kinds = [kind for kind in KINDS if kind.name == backend]
    if not kinds:
        raise UsageError(f"no backend {backend!r}: expected one of {', '.join(NAMES)}")
    return kinds


def _opener(
    model: str, kinds: Sequence[BackendKind]
) -> tuple[BackendKind, Callable[[ModelSettings], Backend]]:
    """Return the backend for a model, and the function that opens the model with settings."""
    if is_named(model):
        _check_kind_of_named(model, kinds)
        return torch.KIND, partial(torch.TorchModel, partial(named_models.load, model))
    if not is_factory(model):
        model_files = find_model(model, kinds)
        model_files.kind.require_installed(model)
        return model_files.kind, partial(_open_files, model_files)
    result = call_factory(model)
    for kind in kinds:
        # Networks are callable too, so `callable` comes last in `KINDS`.
        if kind.open_object is not None and kind.recognises(result.model):
            return kind, partial(kind.open_object, result)
    expected = " or ".join(kind.factory_types for kind in kinds if kind.factory_types)
    raise ModelError(
        f"{result.name} returned {type(result.model).__name__}: expected {expected}, alone or with "
        "a list of its inputs"
        if expected
        else f"{result.name} is a factory, and this backend opens only files"
    )


def _open_files(model_files: ModelFiles, settings: ModelSettings) -> Backend:
    """Open a model's files; raises ModelError if they change while they are loaded and hashed."""
    kind, files = model_files.kind, [model_files.file]
    assert kind.open_file is not None
    with suppress(ModelError):  # opening the files gives the better error
        files = kind.content_files(model_files.file)
    before = file_stamps(files)
    backend = kind.open_file(model_files.file, settings)
    if file_stamps(files) != before:
        raise ModelError(f"{model_files.file} changed while it was loaded: try again")
    return backend


def _check_kind_of_named(model: str, kinds: Sequence[BackendKind]) -> None:
    if torch.KIND not in kinds:
        raise ModelError(f"{model} is a model of PyTorch, which this backend does not run")


def content_of(model: str, preprocess: Sequence[str] = ()) -> str:
    """Return the content_id that a teacher of this model will have.

    Args:
        model: path of a model: folder, prefix or file.
        preprocess: built-in steps before the model, in order.

    Raises:
        ModelError: there is no model or more than one, or the model cannot be read.
        UsageError: a step is not built in.
    """
    if unknown := [name for name in preprocess if name not in BUILT_IN_STEPS]:
        raise UsageError(
            f"no preprocessing {unknown[0]!r}: expected one of {', '.join(BUILT_IN_STEPS)}"
        )
    model_files = find_model(model, KINDS)
    content = hash_of_files(model_files.kind.content_files(model_files.file))
    for name in reversed(preprocess):
        content = content_with_step(content, name)
    return content


class OutputCheckedBackend(WrappedBackend):
    """A backend that returns exactly the outputs of its spec, or raises BadAnswer.

    Exported models usually return the outputs that they state. A user's function may return other
    outputs for other inputs.

    Args:
        backend: the model.
        by_option: whether the outputs were declared by `--output` instead of the model.
    """

    def __init__(self, backend: Backend, *, by_option: bool = False) -> None:
        super().__init__(backend, backend.spec, after=self._checked)
        self._by_option = by_option

    def _checked(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        checked = {}
        for tensor in self.spec.outputs:
            name = tensor.name
            if (array := outputs.get(name)) is None:
                declared = (
                    f"an output {name!r} was declared by --output and the model"
                    if self._by_option
                    else f"the model declares an output {name!r} and"
                )
                names = ", ".join(map(repr, outputs)) or "none"
                raise BadAnswer(f"{declared} does not give it: it gives {names}", name)
            if not tensor.admits_array(array):
                raise BadAnswer(
                    f"output {name!r} is {array.dtype} {list(array.shape)}, "
                    f"expected {tensor.datatype} {list(tensor.shape)}",
                    name,
                )
            checked[name] = array
        return checked
