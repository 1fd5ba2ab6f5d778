"""What goes in and comes out where a model does not say it: declared by its maker, or tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import EdlError, ModelError, UsageError, WireError
from ...proto.arena import Array
from ...proto.datatypes import datatype_of
from ..model import FREE, TensorSpec
from .examples import example_batch
from .kind import Settings

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def declared(
    specs: Sequence[Any],
    arguments: Sequence[str] = (),
    convert: Callable[[Any, str], TensorSpec] | None = None,
) -> tuple[TensorSpec, ...]:
    """What a factory declares, as ours.

    Args:
        specs: TensorSpec, "NAME:DATATYPE:DIMS", or what `convert` knows.
        arguments: names of the model's arguments, in order, for specs that have no name.
        convert: makes one of a framework's spec and the argument's name.

    Raises:
        ModelError: one is none of these, there are more than arguments, or two have one name.
    """
    tensors = []
    for index, spec in enumerate(specs):
        if isinstance(spec, TensorSpec):
            tensors.append(spec)
        elif isinstance(spec, str):
            tensors.append(_parsed(spec))
        elif convert is not None:
            name = arguments[index] if index < len(arguments) else ""
            tensors.append(convert(spec, name))
        else:
            raise ModelError(f"{spec!r} declares no tensor: write NAME:DATATYPE:DIMS")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names) or not all(names):
        raise ModelError(f"each tensor needs a name of its own; declared were {', '.join(names)}")
    return tuple(tensors)


def narrowed(specs: Sequence[TensorSpec], narrower: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """A model's own inputs, with the narrower shapes that the user declares for some of them.

    Raises:
        ModelError: what was declared is not an input of the model.
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


def refuse_outputs(model: Path, settings: Settings) -> None:
    """Raise ModelError where outputs are declared for a model that says them itself."""
    if settings.outputs:
        raise ModelError(f"{model} says its outputs itself: leave --output out")


def outputs_by_trial(
    run: Run, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], model: str
) -> tuple[TensorSpec, ...]:
    """What comes out of a model that does not say it: it is run on examples of two sizes.

    Args:
        run: as `Backend.run`.
        inputs: of the model.
        outputs: as they were declared; empty takes all that come.
        model: its name, for errors.

    Raises:
        ModelError: it does not run on the examples, has no outputs, or not those declared.
    """
    if outputs:
        return tuple(outputs)  # the warm-up holds the answers against them
    try:
        first = run(example_batch(inputs, 1))
        second = {**first, **(_tried_longer(run, inputs) or {})}
        datatypes = {name: datatype_of(array.dtype) for name, array in first.items()}
    except (EdlError, WireError) as error:
        raise ModelError(f"{model} does not run on an example: {error}") from error
    if not first:
        raise ModelError(f"{model} gives no outputs")
    return tuple(
        TensorSpec(name, datatypes[name], _shape(array.shape, second[name].shape))
        for name, array in first.items()
    )


def _shape(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The batch is free, and so is what follows the inputs' size."""
    if not one or len(one) != len(other):
        return tuple(one)
    sizes = zip(one[1:], other[1:], strict=True)
    return (FREE, *(size if size == again else FREE for size, again in sizes))


def _tried_longer(run: Run, inputs: Sequence[TensorSpec]) -> Mapping[str, Array] | None:
    """Outputs of an example with other free sizes; None where none is free, or no other will do."""
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
    """The protocol's name of a framework's `dtype`; raises ModelError where it has none."""
    try:
        return "BF16" if dtype == "bfloat16" else datatype_of(np.dtype(dtype))
    except (TypeError, WireError):
        raise ModelError(f"the model uses dtype {dtype}, which cannot be sent") from None


def by_name(outputs: Any) -> dict[str, Any]:
    """What an eager network returns, under the keys of a dict, else `output_0`, `output_1`, ..."""
    if isinstance(outputs, Mapping):
        return {str(name): tensor for name, tensor in outputs.items()}
    if not isinstance(outputs, list | tuple):
        outputs = [outputs]
    return {f"output_{index}": tensor for index, tensor in enumerate(outputs)}


def fits(array: Array, tensor: TensorSpec) -> bool:
    """Whether `array` is one of those that `tensor` describes."""
    try:
        return datatype_of(array.dtype) == tensor.datatype and tensor.admits(array.shape)
    except WireError:  # of a dtype that nothing describes
        return False
