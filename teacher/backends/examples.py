"""Batches made from nothing but a model's metadata: for its warm-up, its speed, and its judgement.

Example batches are the same each time; what warms a model up and measures it. Probe batches
differ: by its answers to them a model is judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import dtype_of
from ..model import FREE, TensorSpec

#: What stands for a free dimension other than the batch, and a longer one: side of an image, length
#: of a sequence.
_IMAGE_SIDES = (224, 256)
_LENGTHS = (32, 48)


def example_shape(tensor: TensorSpec, rows: int, *, longer: bool = False) -> tuple[int, ...]:
    """The shape of `tensor` for `rows` samples, with a usual size where one is free."""
    free = (_IMAGE_SIDES if len(tensor.shape) >= 4 else _LENGTHS)[longer]
    first, *others = tensor.shape
    return (rows if first == FREE else first, *(free if size == FREE else size for size in others))


def example_batch(
    inputs: Sequence[TensorSpec], rows: int, *, longer: bool = False
) -> dict[str, Array]:
    """Make `rows` samples of each input, the same each time; `longer` where sizes are free.

    Floats are normal noise; all else is zeros, which any vocabulary or range of indices holds.
    """
    noise = np.random.default_rng(0)
    batch: dict[str, Array] = {}
    for tensor in inputs:
        shape, dtype = example_shape(tensor, rows, longer=longer), dtype_of(tensor.datatype)
        if tensor.datatype in ("FP16", "FP32", "FP64", "BF16"):
            batch[tensor.name] = noise.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            batch[tensor.name] = np.zeros(shape, dtype=dtype)
    return batch


_FLOATS = ("FP16", "FP32", "FP64", "BF16")
#: Dimensions of an image, or of a batch of features at least: bytes there are colours.
_IMAGE_DIMENSIONS = 3
#: Steps of the noise in 1: coarse, so that a file of it is small.
_STEPS = 16
#: Standard deviations of a sample: what saturates at one of them does not at another.
_LOUDNESS = (0.125, 0.5, 1.0, 2.0)


def probe_batch(inputs: Sequence[TensorSpec], rows: int, number: int) -> dict[str, Array]:
    """Make `rows` samples of each input; each number gives others, the same each time.

    Floats are noise in steps of 1/16: normal in batches of even number, louder in some samples than
    in others, and within [0, 1) in batches of odd number. Bytes of images are any colours. All
    other integers are 0 or 1, which nearly any vocabulary or range of indices holds.
    """
    rng = np.random.default_rng(number)
    batch: dict[str, Array] = {}
    for tensor in inputs:
        shape, dtype = example_shape(tensor, rows), dtype_of(tensor.datatype)
        if tensor.datatype in _FLOATS:
            noise = rng.random(shape) if number % 2 else _normal(rng, shape)
            batch[tensor.name] = (np.floor(noise * _STEPS) / _STEPS).astype(dtype)
        else:
            is_image = tensor.datatype == "UINT8" and len(shape) >= _IMAGE_DIMENSIONS
            batch[tensor.name] = rng.integers(0, 256 if is_image else 2, shape).astype(dtype)
    return batch


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    loudness = rng.choice(_LOUDNESS, (shape[0], *(1 for _ in shape[1:])))
    noise: Array = loudness * rng.standard_normal(shape)
    return noise
