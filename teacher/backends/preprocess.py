"""Steps before a model: built-in ones for images, and functions of the user.

A step converts the inputs that arrive to inputs of the model. So it changes the declared inputs,
and is part of `content_id`. The built-in steps convert image inputs: bytes to floats,
normalisation, layout. Inputs with four dimensions are images; others pass unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import TensorSpec, dtype_of
from ...proto.forms import FLOATS
from ...runtime.errors import ModelError, RequestRefused, UsageError
from . import Backend, WrappedBackend
from .callable import read_only
from .framework import translate_errors
from .model_source import call_factory, hash_of_function, is_factory
from .tensor_specs import (
    ArrayFunction,
    outputs_by_trial,
    parse_declared,
    with_declared_shapes,
)

#: Makes a step from its name and the model's inputs. Returns the inputs on the wire, and the
#: function that converts them to the model's inputs.
BuiltInStep = Callable[[str, Sequence[TensorSpec]], tuple[tuple[TensorSpec, ...], ArrayFunction]]

#: The largest value of a byte.
_BYTE_MAX: Final = 255.0
#: Statistics of ImageNet's training images: red, green and blue, as shares of a byte's range.
_IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
_IMAGENET_STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class _Normalize:
    """Converts UINT8 pixels to floats: `(pixel / 255 - mean) / std`, per channel or for all."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(
        self, name: str, model_inputs: Sequence[TensorSpec]
    ) -> tuple[tuple[TensorSpec, ...], ArrayFunction]:
        images = {
            tensor.name: self._factors(name, tensor) for tensor in _images(name, model_inputs)
        }
        dtypes = {tensor.name: dtype_of(tensor.datatype) for tensor in model_inputs}

        def apply(inputs: Mapping[str, Array]) -> dict[str, Array]:
            converted = dict(inputs)
            for key, (scale, offset) in images.items():
                pixels = np.multiply(inputs[key], scale)
                converted[key] = np.add(pixels, offset, out=pixels).astype(dtypes[key], copy=False)
            return converted

        wire = (
            replace(tensor, datatype="UINT8") if tensor.name in images else tensor
            for tensor in model_inputs
        )
        return tuple(wire), apply

    def _factors(self, name: str, tensor: TensorSpec) -> tuple[Array, Array]:
        """Return `scale` and `offset` (float32) in shapes for broadcasting."""
        if tensor.datatype not in FLOATS:
            raise ModelError(
                f"step {name} needs an input of {', '.join(FLOATS)}; the model takes {tensor}"
            )
        mean, std = np.asarray(self.mean), np.asarray(self.std)
        shape = [1, 1, 1, 1]
        shape[_channel_axis(name, tensor, len(mean))] = len(mean)
        scale, offset = 1 / (_BYTE_MAX * std), -mean / std
        return scale.astype(np.float32).reshape(shape), offset.astype(np.float32).reshape(shape)


def _channels_last(
    name: str, model_inputs: Sequence[TensorSpec]
) -> tuple[tuple[TensorSpec, ...], ArrayFunction]:
    """Move the channels of images from last, as decoders return them, to first, for the model."""
    images = {tensor.name for tensor in _images(name, model_inputs)}

    def apply(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {
            key: np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if key in images else array
            for key, array in inputs.items()
        }

    def wire(tensor: TensorSpec) -> TensorSpec:
        batch, channels, height, width = tensor.shape
        return replace(tensor, shape=(batch, height, width, channels))

    wire_inputs = (wire(spec) if spec.name in images else spec for spec in model_inputs)
    return tuple(wire_inputs), apply


def _images(name: str, model_inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs that are images; raise ModelError if there are none."""
    images = [tensor for tensor in model_inputs if len(tensor.shape) == 4]
    if not images:
        taken = ", ".join(map(str, model_inputs))
        raise ModelError(f"{name} is for images, of four dimensions; the model takes {taken}")
    return images


def _channel_axis(name: str, tensor: TensorSpec, channels: int) -> int:
    """Return the axis of the channels, first or last; a single factor fits any axis."""
    if channels == 1:
        return 1
    for axis in (1, 3):
        if tensor.shape[axis] == channels:
            return axis
    raise ModelError(f"{name} needs {channels} channels, first or last; the model takes {tensor}")


def _output_of_step(name: str, image: TensorSpec) -> TensorSpec:
    """Return the spec of an image after a built-in step."""
    if BUILT_IN_STEPS[name] is not _channels_last:
        return replace(image, datatype="FP32")
    batch, height, width, channels = image.shape
    return replace(image, shape=(batch, channels, height, width))


BUILT_IN_STEPS: Final[Mapping[str, BuiltInStep]] = {
    "unit": _Normalize((0.0,), (1.0,)),
    "symmetric": _Normalize((0.5,), (0.5,)),
    "imagenet": _Normalize(_IMAGENET_MEAN, _IMAGENET_STD),
    "nhwc": _channels_last,
}


def content_with_step(content_id: str, step_content: str) -> str:
    """Return the content_id of a model with a step before it.

    Args:
        content_id: of the model.
        step_content: the content of the step; for a built-in one, its name.
    """
    return hashlib.sha256(f"{content_id} {step_content}".encode()).hexdigest()


def preprocessed(
    backend: Backend, names: Sequence[str], inputs: Sequence[TensorSpec] = ()
) -> Backend:
    """Put steps before `backend`; the first step gets the inputs that arrive.

    Args:
        backend: the model.
        names: built-in steps ("imagenet"), or "module:function" of the user.
        inputs: inputs that arrive, as the user declares them. If the first step is built in, they
            narrow its inputs; if it is a user's function, they replace its inputs. Empty: the first
            step's own inputs.

    Raises:
        ModelError: a step does not exist, or does not fit the model.
    """
    for position, name in reversed(list(enumerate(names))):
        backend = _with_step(name, backend, () if position else tuple(inputs))
    return backend


def outputs_of_steps(names: Sequence[str], inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the outputs of the steps, for a model that does not state its inputs.

    Args:
        names: as in `preprocessed`.
        inputs: inputs that arrive, as the user declares them; they replace those that a user's
            first step declares.

    Raises:
        ModelError: a step does not exist, or does not run on an example.
    """
    for name in names:
        if name in BUILT_IN_STEPS:
            inputs = [
                _output_of_step(name, spec) if len(spec.shape) == 4 else spec for spec in inputs
            ]
            continue
        result = call_factory(name)
        inputs = inputs or parse_declared(result.inputs)
        if inputs:
            inputs = outputs_by_trial(partial(_applied, name, result.model), inputs, (), name)
    return tuple(inputs)


def _applied(name: str, apply: ArrayFunction, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    with translate_errors(f"preprocessing by {name}"):
        return apply(read_only(inputs))


def check_step_name(name: str) -> None:
    """Check the name of a step without importing anything; raises UsageError."""
    if name not in BUILT_IN_STEPS and not is_factory(name):
        raise UsageError(
            f"no preprocessing {name!r}: expected module:function, or one of "
            f"{', '.join(BUILT_IN_STEPS)}"
        )


def check_step_output(name: str, arrays: object, model_inputs: Sequence[TensorSpec]) -> None:
    """Raise RequestRefused if the output of a step is not what the model takes."""
    if not isinstance(arrays, Mapping):
        raise RequestRefused(f"{name} returned {type(arrays).__name__}: expected a dict of arrays")
    for tensor in model_inputs:
        array = arrays.get(tensor.name)
        if not isinstance(array, np.ndarray):
            raise RequestRefused(f"{name} gave {sorted(arrays)}; the model takes {tensor}")
        if not tensor.admits_array(array):
            raise RequestRefused(
                f"{name} gave {tensor.name!r} as {array.dtype} {list(array.shape)}; "
                f"the model takes {tensor}"
            )


def _with_step(name: str, backend: Backend, inputs: tuple[TensorSpec, ...]) -> Backend:
    model = backend.spec
    if name in BUILT_IN_STEPS:
        wire_inputs, apply = BUILT_IN_STEPS[name](name, model.inputs)
        wire_inputs = with_declared_shapes(wire_inputs, inputs)
        content = name  # what a built-in step does never changes, so its name suffices
    else:
        result = call_factory(name)
        if not callable(result.model):
            raise ModelError(
                f"{name} gave {type(result.model).__name__}: expected a function on arrays"
            )
        wire_inputs = inputs or parse_declared(result.inputs) or model.inputs
        apply, content = result.model, hash_of_function(name, result.model)
    spec = replace(
        model,
        inputs=wire_inputs,
        content_id=content_with_step(model.content_id, content),
        numerics=(*model.numerics, f"{name} by numpy-{np.__version__}"),
        preprocessing=(name, *model.preprocessing),
    )

    def applied(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        arrays = _applied(name, apply, inputs)
        check_step_output(name, arrays, model.inputs)
        return arrays

    return WrappedBackend(backend, spec, before=applied)
