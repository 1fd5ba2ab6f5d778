"""Batches made from nothing but a model's metadata: what warms a model up and measures it."""

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
