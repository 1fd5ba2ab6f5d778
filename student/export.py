"""Export of a checkpoint as a model to serve: in the format of its framework, and as ONNX."""

from __future__ import annotations

import inspect
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ..runtime.errors import ModelError, UsageError
from .job.assembly import restore_model
from .job.batches import Parts, first_batch
from .job.spec import JobSpec

#: Name of all exported files, without suffix.
NAME: Final = "model"
_OPSET: Final = 17
_CHECKED_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported model.

    Attributes:
        step: step of the checkpoint.
        files: absolute paths.
        max_difference: by format, the greatest difference between its outputs and the student's on
            a few rows; None: its runtime is not installed, so nothing was compared.
    """

    step: int
    files: tuple[str, ...]
    max_difference: Mapping[str, float | None]


def export(
    spec: JobSpec,
    checkpoint: str,
    folder: str | Path,
    *,
    onnx: bool = False,
    batch_size: int | None = None,
) -> Exported:
    """Write a checkpoint's model to a folder, and compare the written model with the student.

    The inputs of the written model have the shapes and dtypes of the first batch of `feed("eval")`,
    but any number of rows. Files appear in the folder once all of them are complete.

    Args:
        spec: the job file.
        checkpoint: path or URL of a checkpoint, or of a folder of checkpoints, of which the newest
            valid one is taken.
        folder: target folder, created if needed; files of the same names are replaced.
        onnx: write `model.onnx` beside the model of the job's framework: `model.json` and
            `model.pdiparams` of Paddle, or `model.pt2` of PyTorch.
        batch_size: rows of a batch, if the feed is a data set.

    Raises:
        JobError: a function of the job file fails.
        UsageError: the folder cannot be written, the checkpoint does not fit or does not exist,
            the feed is empty, an input is not a tensor, the model cannot be converted to ONNX, or
            a package for that is not installed.
        CheckpointUnavailable: the checkpoint cannot be read now.
        CheckpointDamaged: the checkpoint is damaged.
        ModelError: the outputs of the exported model differ from the student's.
    """
    framework = spec.framework.name
    if onnx:
        _require_converter(framework)
    model, step = restore_model(spec, checkpoint)
    batch = first_batch(spec, "eval", batch_size)
    inputs = named_inputs(model, batch)
    first_rows = {name: value[:_CHECKED_ROWS] for name, value in inputs.items()}
    with spec.job_errors("model"):
        expected = _outputs(spec, model, batch, first_rows)  # before `to_static` changes the model
    save = _save_torch if framework == "torch" else _save_paddle
    target = Path(folder).absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".new-") as new:
            saved = save(spec, model, inputs, Path(new), onnx)
            differences = {
                name: _difference(name, file, first_rows, expected) for name, file in saved.items()
            }
            files = tuple(sorted(path.name for path in Path(new).iterdir()))
            for name in files:
                os.replace(Path(new) / name, target / name)
    except OSError as error:
        raise UsageError(f"the model cannot be written to {target}: {error}") from error
    return Exported(step, tuple(str(target / name) for name in files), differences)


def named_inputs(model: Any, batch: Parts) -> dict[str, Any]:
    """Return the inputs of a batch by name.

    Inputs of a dict keep their names; others get the names of the parameters of the model's
    `forward`, and `input_NUMBER` beyond these.

    Raises:
        UsageError: an input is not a tensor.
    """
    if isinstance(batch.inputs, Mapping):
        inputs = dict(batch.inputs)
    else:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(model.forward).parameters.values()
        names = [one.name for one in parameters if one.kind in kinds]
        names += [f"input_{number}" for number in range(len(names), len(batch.inputs))]
        inputs = dict(zip(names, batch.inputs, strict=False))
    nested = [name for name, value in inputs.items() if not hasattr(value, "dtype")]
    if nested:
        raise UsageError(
            f"the input {nested[0]!r} is a {type(inputs[nested[0]]).__name__}: a model to serve can"
            " have only tensors as inputs"
        )
    return inputs


def _save_paddle(
    spec: JobSpec, model: Any, inputs: Mapping[str, Any], folder: Path, onnx: bool
) -> dict[str, Path]:
    """Write the files; return the file to open, by format."""
    import paddle

    input_spec = [
        paddle.static.InputSpec([None, *value.shape[1:]], value.dtype, name=name)
        for name, value in inputs.items()
    ]
    with spec.job_errors("model"):
        static = paddle.jit.to_static(model, input_spec=input_spec, full_graph=True)
        _ = static.forward.concrete_program  # trace now, so that errors name the model
    try:
        paddle.jit.save(static, str(folder / NAME))
    except RuntimeError as error:  # Paddle's error if the disk is full
        raise OSError(" ".join(str(error).split())[-200:]) from error
    saved = {"paddle": folder / f"{NAME}.json"}
    if onnx:
        saved["onnx"] = _paddle_to_onnx(saved["paddle"])
    return saved


def _paddle_to_onnx(program: Path) -> Path:
    import paddle2onnx

    target = program.with_suffix(".onnx")
    try:
        weights = str(program.with_suffix(".pdiparams"))
        # Its optimizer, Polygraphy, would install missing packages with pip.
        options = {"opset_version": _OPSET, "optimize_tool": "None"}
        paddle2onnx.export(str(program), weights, str(target), **options)
    except Exception as error:  # errors of its C++ code have no common class
        raise UsageError(f"paddle2onnx cannot convert the model: {error}") from error
    return target


def _save_torch(
    spec: JobSpec, model: Any, inputs: Mapping[str, Any], folder: Path, onnx: bool
) -> dict[str, Path]:
    """Write the files; return the file to open, by format."""
    import torch.export

    # With one row, torch.export would fix the number of rows to 1.
    inputs = {name: torch.cat([x, x]) if len(x) == 1 else x for name, x in inputs.items()}
    saved = {"torch": folder / f"{NAME}.pt2"}
    rows = torch.export.Dim("rows")
    shapes = {name: {0: rows} for name in inputs}
    with spec.job_errors("model"):
        program = torch.export.export(model, (), dict(inputs), dynamic_shapes=shapes)
    torch.export.save(program, saved["torch"])
    if onnx:
        saved["onnx"] = _torch_to_onnx(spec, model, inputs, folder)
    return saved


def _torch_to_onnx(spec: JobSpec, model: Any, inputs: Mapping[str, Any], folder: Path) -> Path:
    import torch.onnx

    file = folder / f"{NAME}.onnx"
    axes = {name: {0: "rows"} for name in inputs}
    # `dynamo=False`, which exports by tracing, is deprecated.
    with spec.job_errors("model"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model,
            (),
            str(file),
            kwargs=dict(inputs),
            input_names=[*inputs],
            dynamic_axes=axes,
            opset_version=_OPSET,
            dynamo=False,
        )
    return file


def _outputs(spec: JobSpec, model: Any, batch: Parts, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the student's outputs as arrays, in the order in which an exported model has them."""
    with spec.framework.no_grad():
        by_name = isinstance(batch.inputs, Mapping)
        outputs = model(**inputs) if by_name else model(*inputs.values())
    return [spec.framework.array(output) for output in spec.framework.flatten(outputs)]


def _difference(
    backend: str, file: Path, inputs: Mapping[str, Any], expected: Sequence[Any]
) -> float | None:
    """Run an exported file, and return the greatest difference of an output from `expected`.

    This also detects a file that a full disk has truncated without an error.
    """
    import numpy as np

    from ..teacher.backends.selection import open_backend

    if backend == "onnx":
        try:
            import onnxruntime  # noqa: F401
        except ImportError:
            return None
    exported = open_backend(str(file), backend=backend)
    names = [tensor.name for tensor in exported.spec.inputs]
    answers = exported.run({name: inputs[name].cpu().numpy() for name in names})
    # Differences of integers may wrap around, and booleans have none.
    actual = [answers[tensor.name].astype(np.float64) for tensor in exported.spec.outputs]
    expected = [one.astype(np.float64) for one in expected]
    fits = len(actual) == len(expected) and all(
        one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-3)
        for one, other in zip(actual, expected, strict=False)
    )
    if not fits:
        raise ModelError(
            f"the exported {backend} model and the student give different outputs: check for random"
            " operations in the forward pass that eval() does not switch off"
        )
    pairs = zip(actual, expected, strict=True)
    return max(float(np.abs(one - other).max(initial=0.0)) for one, other in pairs)


def _require_converter(framework: str) -> None:
    name = "paddle2onnx" if framework == "paddle" else "onnx"
    package = "'paddle2onnx>=2.1' (Python 3.11)" if framework == "paddle" else name
    try:
        import_module(name)
    except ImportError as error:
        raise UsageError(
            f"ONNX needs {name} ({error}): pip install {package}, or export for {framework} alone"
        ) from None
