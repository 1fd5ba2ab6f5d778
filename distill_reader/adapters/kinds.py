"""What a leaf of a batch was besides its numbers, so that it can come back as the same thing."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...errors import BatchError
from ...proto.arena import Array
from . import paddle_tensors, torch_tensors  # neither imports its framework


class Kind(Protocol):
    """The framework of a tensor, where it lay, whether it wants a gradient."""

    def tensor(self, array: Array) -> Any:
        """`array` as a tensor of this kind; of the same memory where the framework lets it."""
        ...

    def of_labels(self) -> Kind:
        """What the soft labels of a batch are that holds such a tensor."""
        ...


class Plain:
    """A numpy array, which needs nothing."""

    def tensor(self, array: Array) -> Array:
        return array

    def of_labels(self) -> Plain:
        return self


PLAIN = Plain()


def array_of(node: Any) -> tuple[Array, Kind] | None:
    """The numbers of an array or tensor, and its kind; None for what is neither.

    Raises:
        BatchError: it holds what cannot travel.
    """
    if isinstance(node, np.ndarray):
        return _checked(node), PLAIN
    return paddle_tensors.array_of(node) or torch_tensors.array_of(node)


def _checked(array: Array) -> Array:
    if array.dtype.hasobject:
        raise BatchError(
            "an array of Python objects cannot travel; use a fixed dtype, or a list of arrays or"
            " values"
        )
    if array.dtype.names is not None or isinstance(array, np.ma.MaskedArray):
        raise BatchError(
            f"a {type(array).__name__} of dtype {array.dtype} cannot travel; use one plain array"
            " for each of its fields, and one for a mask"
        )
    return array
