"""Which framework a batch is of, and how its arrays are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...errors import BatchError, UsageError
from ...proto.arena import Array
from . import paddle_tensors, torch_tensors  # neither imports its framework


def by_name(batch: Any, names: Sequence[str]) -> Mapping[Any, Any]:
    """The fields of a batch by name.

    Args:
        batch: a mapping, or a list of one, as static-graph loaders have it: then `names` are those
            that are kept, in their order. Or fields in their order, which are given these names.
        names: of fields; empty: all of a mapping.

    Raises:
        UsageError: names and fields do not fit each other.
    """
    if isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], Mapping):
        batch = batch[0]
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise UsageError(f"feed_list names {missing[0]!r}, a batch has {list(batch)}")
        return {name: batch[name] for name in names} if names else batch
    if len(names) != len(batch):
        raise UsageError(
            f"feed_list names {len(names)} fields, a batch has {len(batch)}, soft labels included;"
            " with return_list=False name each of them, in their order"
        )
    return dict(zip(names, batch, strict=True))


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
