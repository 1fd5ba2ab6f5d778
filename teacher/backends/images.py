"""The shipped preprocessing: bytes to floats, normalisation, layout, of every image input.

An image is an input of four dimensions. The others go through as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...errors import ModelError
from ...proto.arena import Array
from ...proto.datatypes import dtype_of
from ..model import TensorSpec

Apply = Callable[[Mapping[str, Array]], Mapping[str, Array]]
#: Makes a step for a model's inputs: what comes over the wire, and what is done to it.
Shipped = Callable[[str, Sequence[TensorSpec]], tuple[tuple[TensorSpec, ...], Apply]]

_FLOATS: Final = ("FP32", "FP16", "BF16")
_BYTE: Final = 255.0
#: Of the training images of ImageNet, red, green and blue, in units of the full range.
_IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
_IMAGENET_STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class _Normalise:
    """UINT8 pixels to floats: `(pixel / 255 - mean) / std`, for each channel or for all alike."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(
        self, name: str, takes: Sequence[TensorSpec]
    ) -> tuple[tuple[TensorSpec, ...], Apply]:
        images = {
            tensor.name: self._factors(name, tensor)
            for tensor in _images(name, takes)
            if _floating(name, tensor)
        }
        dtypes = {tensor.name: dtype_of(tensor.datatype) for tensor in takes}

        def apply(inputs: Mapping[str, Array]) -> dict[str, Array]:
            made = dict(inputs)
            for key, (scale, offset) in images.items():
                pixels = np.multiply(inputs[key], scale)
                made[key] = np.add(pixels, offset, out=pixels).astype(dtypes[key], copy=False)
            return made

        wire = (
            replace(tensor, datatype="UINT8") if tensor.name in images else tensor
            for tensor in takes
        )
        return tuple(wire), apply

    def _factors(self, name: str, tensor: TensorSpec) -> tuple[Array, Array]:
        """`scale` and `offset` of float32, shaped to be broadcast: one product, one sum a pixel."""
        mean, std = np.asarray(self.mean), np.asarray(self.std)
        shape = [1, 1, 1, 1]
        shape[_channel_axis(name, tensor, len(mean))] = len(mean)
        scale, offset = 1 / (_BYTE * std), -mean / std
        return scale.astype(np.float32).reshape(shape), offset.astype(np.float32).reshape(shape)


def _channels_last(name: str, takes: Sequence[TensorSpec]) -> tuple[tuple[TensorSpec, ...], Apply]:
    """Images come as decoders give them, channels last, for a model that wants channels first."""
    images = {tensor.name for tensor in _images(name, takes)}

    def apply(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {
            key: np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if key in images else array
            for key, array in inputs.items()
        }

    def wire(tensor: TensorSpec) -> TensorSpec:
        batch, channels, height, width = tensor.shape
        return replace(tensor, shape=(batch, height, width, channels))

    return tuple(wire(each) if each.name in images else each for each in takes), apply


def _images(name: str, takes: Sequence[TensorSpec]) -> list[TensorSpec]:
    images = [tensor for tensor in takes if len(tensor.shape) == 4]
    if not images:
        taken = ", ".join(map(str, takes))
        raise ModelError(f"{name} is for images, of four dimensions; the model takes {taken}")
    return images


def _floating(name: str, tensor: TensorSpec) -> bool:
    if tensor.datatype not in _FLOATS:
        raise ModelError(f"{name} makes floats of bytes; the model takes {tensor}")
    return True


def _channel_axis(name: str, tensor: TensorSpec, channels: int) -> int:
    """Where the channels are: first or last. One factor for all needs no axis."""
    if channels == 1:
        return 1
    for axis in (1, 3):
        if tensor.shape[axis] == channels:
            return axis
    raise ModelError(f"{name} needs {channels} channels, first or last; the model takes {tensor}")


def gives(name: str, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """What the shipped step `name` makes of `inputs`, where the model does not say it."""
    return tuple(_given(name, each) if len(each.shape) == 4 else each for each in inputs)


def _given(name: str, image: TensorSpec) -> TensorSpec:
    if NAMED[name] is not _channels_last:
        return replace(image, datatype="FP32")
    batch, height, width, channels = image.shape
    return replace(image, shape=(batch, channels, height, width))


NAMED: Final[Mapping[str, Shipped]] = {
    "unit": _Normalise((0.0,), (1.0,)),
    "symmetric": _Normalise((0.5,), (0.5,)),
    "imagenet": _Normalise(_IMAGENET_MEAN, _IMAGENET_STD),
    "nhwc": _channels_last,
}
