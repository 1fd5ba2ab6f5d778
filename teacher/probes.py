"""Batches that differ, made from a model's metadata: by its answers to them it is judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..proto.arena import Array
from ..proto.datatypes import dtype_of
from .backends.example import example_shape
from .model import TensorSpec

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
