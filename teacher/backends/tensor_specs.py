"""Specs of tensors that a model does not state, and example batches made from specs.

Example batches are always the same: they warm a model up, measure it and show its outputs. Probe
batches differ from each other: a model is judged by its answers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import FREE, TensorSpec, datatype_of, dtype_of
from ...proto.forms import FLOATS
from ...runtime.errors import EdlError, ModelError, UsageError, WireError
from .model_source import ModelSettings

#: Usual and larger size of a free dimension: a side of an image, a length of a sequence.
_IMAGE_SIDES = (224, 256)
_LENGTHS = (32, 48)


def check_dimensions(tensor: TensorSpec) -> None:
    """Raise ModelError for a tensor without dimensions, as it cannot hold a batch."""
    if not tensor.shape:
        raise ModelError(f"{tensor.name!r} has no dimensions: the first must be the batch")


def example_shape(tensor: TensorSpec, rows: int, *, longer: bool = False) -> tuple[int, ...]:
    """Return the shape of `tensor` for `rows` samples, with a usual size for free dimensions.

    Raises:
        ModelError: the tensor has no dimensions.
    """
    check_dimensions(tensor)
    free = (_IMAGE_SIDES if len(tensor.shape) >= 4 else _LENGTHS)[longer]
    first, *others = tensor.shape
    return (rows if first == FREE else first, *(free if size == FREE else size for size in others))


def example_batch(
    inputs: Sequence[TensorSpec], rows: int, *, longer: bool = False
) -> dict[str, Array]:
    """Make `rows` samples of each input, always the same; `longer` uses larger free dimensions.

    Floats are normal noise. Everything else is zeros, which every vocabulary and index range
    contains.
    """
    noise = np.random.default_rng(0)
    batch: dict[str, Array] = {}
    for tensor in inputs:
        shape, dtype = example_shape(tensor, rows, longer=longer), dtype_of(tensor.datatype)
        if tensor.datatype in FLOATS:
            batch[tensor.name] = noise.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            batch[tensor.name] = np.zeros(shape, dtype=dtype)
    return batch


#: UINT8 tensors of at least this many dimensions, including the batch, are images.
_IMAGE_DIMENSIONS = 3
#: Steps of the noise between 0 and 1. They are coarse, so that files of noise compress well.
_NOISE_STEPS = 16
#: Standard deviations of samples. They differ, as a model may saturate at some of them.
_DEVIATIONS = (0.125, 0.5, 1.0, 2.0)


def probe_batch(inputs: Sequence[TensorSpec], rows: int, number: int) -> dict[str, Array]:
    """Make `rows` samples of each input: other samples for each `number`, the same at every call.

    Floats are noise in steps of 1/16. If `number` is even, the noise is normal, and each sample has
    a random standard deviation; if it is odd, the noise is uniform in [0, 1). Bytes of images are
    random. Other integers are 0 or 1, which nearly every vocabulary and index range contains.
    """
    rng = np.random.default_rng(number)
    batch: dict[str, Array] = {}
    for tensor in inputs:
        shape, dtype = example_shape(tensor, rows), dtype_of(tensor.datatype)
        if tensor.datatype in FLOATS:
            noise = rng.random(shape) if number % 2 else _normal(rng, shape)
            batch[tensor.name] = (np.floor(noise * _NOISE_STEPS) / _NOISE_STEPS).astype(dtype)
        else:
            is_image = tensor.datatype == "UINT8" and len(shape) >= _IMAGE_DIMENSIONS
            batch[tensor.name] = rng.integers(0, 256 if is_image else 2, shape).astype(dtype)
    return batch


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    deviation = rng.choice(_DEVIATIONS, (shape[0], *(1 for _ in shape[1:])))
    noise: Array = deviation * rng.standard_normal(shape)
    return noise


#: A model or a preprocessing step: maps the arrays of a batch, by name, to new arrays.
ArrayFunction = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def parse_declared(
    specs: Sequence[Any],
    arguments: Sequence[str] = (),
    convert: Callable[[Any, str], TensorSpec] | None = None,
    expected: str = "",
) -> tuple[TensorSpec, ...]:
    """Convert the specs that a factory declares.

    Args:
        specs: TensorSpec, "NAME:DATATYPE:DIMS", or a type that `convert` knows.
        arguments: names of the model's arguments, in order, for specs without a name.
        convert: converts a framework's spec, given the argument's name; raises AttributeError for
            anything else.
        expected: what `convert` takes, in words.

    Raises:
        ModelError: a spec is malformed or of another type, neither the spec nor `arguments` has a
            name, or two specs have the same name.
    """
    tensors = []
    for index, spec in enumerate(specs):
        if isinstance(spec, TensorSpec):
            tensors.append(spec)
        elif isinstance(spec, str):
            tensors.append(_parsed(spec))
        elif convert is not None:
            name = arguments[index] if index < len(arguments) else ""
            try:
                tensors.append(convert(spec, name))
            except AttributeError:
                raise ModelError(f"{spec!r} declares no input: expected {expected}") from None
        else:
            raise ModelError(f"{spec!r} declares no tensor: write NAME:DATATYPE:DIMS")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names) or not all(names):
        raise ModelError(f"each tensor needs a name of its own; declared were {', '.join(names)}")
    return tuple(tensors)


def with_declared_shapes(
    specs: Sequence[TensorSpec], narrower: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return a model's own inputs, with the narrower shapes that the user declares.

    Raises:
        ModelError: the model has no such input, or it has another datatype or shape.
    """
    by_name = {spec.name: spec for spec in specs}
    for tensor in narrower:
        spec = by_name.get(tensor.name)
        if spec is None or spec.datatype != tensor.datatype or not spec.admits(tensor.shape):
            raise ModelError(
                f"{tensor} was declared as an input; the model has {', '.join(map(str, specs))}"
            )
        by_name[tensor.name] = tensor
    return tuple(by_name.values())


def refuse_outputs(model: Path, settings: ModelSettings) -> None:
    """Raise ModelError if outputs are declared for a model that states them itself."""
    if settings.outputs:
        raise ModelError(f"{model} says its outputs itself: leave --output out")


def outputs_by_trial(
    run: ArrayFunction, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], model: str
) -> tuple[TensorSpec, ...]:
    """Find the outputs of a model by running it on examples of two sizes.

    Args:
        run: as `Backend.run`.
        inputs: specs of the model's inputs.
        outputs: declared outputs, which are returned without a run; empty if none are declared.
        model: name of the model, for errors.

    Raises:
        ModelError: the model does not run on the first example, or has no outputs.
    """
    if outputs:
        return tuple(outputs)  # the warm-up compares the answers with them
    try:
        first = run(example_batch(inputs, 1))
        second = {**first, **(_outputs_of_longer(run, inputs) or {})}
        datatypes = {name: datatype_of(array.dtype) for name, array in first.items()}
    except EdlError as error:
        raise ModelError(f"{model} does not run on an example: {error}") from error
    if not first:
        raise ModelError(f"{model} gives no outputs")
    return tuple(
        TensorSpec(name, datatypes[name], _shape(array.shape, second[name].shape))
        for name, array in first.items()
    )


def _shape(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return an output's shape from two runs: the batch is free, and so are sizes that differ."""
    if not first or len(first) != len(second):
        return tuple(first)
    sizes = zip(first[1:], second[1:], strict=True)
    return (FREE, *(size if size == other else FREE for size, other in sizes))


def _outputs_of_longer(
    run: ArrayFunction, inputs: Sequence[TensorSpec]
) -> Mapping[str, Array] | None:
    """Return outputs for larger free dimensions; None if no dimension is free, or the run fails."""
    if not any(FREE in tensor.shape[1:] for tensor in inputs):
        return None
    try:
        return run(example_batch(inputs, 1, longer=True))
    except EdlError:
        return None


def _parsed(text: str) -> TensorSpec:
    try:
        return TensorSpec.parse(text)
    except UsageError as error:
        raise ModelError(str(error)) from None


def datatype_named(dtype: str) -> str:
    """Return the protocol's name for a framework's `dtype`; raise ModelError if it has none."""
    try:
        return "BF16" if dtype == "bfloat16" else datatype_of(np.dtype(dtype))
    except (TypeError, WireError):
        raise ModelError(f"the model uses dtype {dtype}, which cannot be sent") from None


def outputs_by_name(outputs: Any) -> dict[str, Any]:
    """Return outputs of an eager network by key; without keys, by `output_0`, `output_1`, ..."""
    if isinstance(outputs, Mapping):
        return {str(name): tensor for name, tensor in outputs.items()}
    if not isinstance(outputs, list | tuple):
        outputs = [outputs]
    return {f"output_{index}": tensor for index, tensor in enumerate(outputs)}
