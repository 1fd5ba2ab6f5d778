"""Batches made from nothing but a model's metadata: what warms a model up and measures it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...proto.arena import Array
from ...proto.tensors import dtype_of
from ..model import FREE, TensorSpec

#: What stands for a free dimension other than the batch: side of an image, length of a sequence.
_IMAGE_SIDE = 224
_LENGTH = 32


def example_shape(tensor: TensorSpec, rows: int) -> tuple[int, ...]:
    """The shape of `tensor` for `rows` samples, with a usual size where one is free."""
    free = _IMAGE_SIDE if len(tensor.shape) >= 4 else _LENGTH
    first, *others = tensor.shape
    return (rows if first == FREE else first, *(free if size == FREE else size for size in others))


def example_batch(inputs: Sequence[TensorSpec], rows: int) -> dict[str, Array]:
    """Make `rows` samples of each input, the same each time.

    Floats are normal noise; all else is zeros, which any vocabulary or range of indices holds.
    """
    noise = np.random.default_rng(0)
    batch: dict[str, Array] = {}
    for tensor in inputs:
        shape, dtype = example_shape(tensor, rows), dtype_of(tensor.datatype)
        if tensor.datatype in ("FP16", "FP32", "FP64", "BF16"):
            batch[tensor.name] = noise.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            batch[tensor.name] = np.zeros(shape, dtype=dtype)
    return batch
