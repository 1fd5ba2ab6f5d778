"""A user's batch taken apart into arrays, and put together again with its soft labels.

A batch is a tuple, list, dict or bare array; its leaves are numpy arrays or Paddle tensors. What is
neither (a name, a number, None) stays in the trainer by reference and comes back as it was. Arrays
leave for shared memory, so that what comes back is what was labelled even if the user's loader
fills the same buffers again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import BatchError, UsageError
from ..proto.arena import Array, dtype_named
from .config import FieldKey


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands in a skeleton where the array of this index was."""

    index: int
    paddle: bool
    stop_gradient: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """A batch taken apart.

    Attributes:
        arrays: its leaves, in the order of the batch.
        skeleton: the batch with a `Leaf` in the place of each array.
        fields: for each array at the top of the batch, its key there and its index in `arrays`;
            keys that are neither text nor integers cannot be named, and are left out.
        samples: rows of the batch: the first dimension of its first array that has any.
    """

    arrays: tuple[Array, ...]
    skeleton: Any
    fields: tuple[tuple[FieldKey, int], ...]
    samples: int

    def without_arrays(self) -> Parts:
        """The same, once the arrays lie in shared memory: the user's own may go."""
        return replace(self, arrays=())


def take_apart(batch: Any) -> Parts:
    """Split `batch` into arrays and a skeleton; raises BatchError where it holds no array."""
    arrays: list[Array] = []
    skeleton = _strip(batch, arrays)
    if not arrays:
        raise BatchError(
            f"a batch needs at least one numpy array or Paddle tensor, this is {_describe(batch)}"
        )
    items: Any = [(0, skeleton)]
    if isinstance(skeleton, dict):
        items = skeleton.items()
    elif isinstance(skeleton, (list, tuple)):
        items = enumerate(skeleton)
    fields = tuple(
        (key, leaf.index)
        for key, leaf in items
        if isinstance(leaf, Leaf) and isinstance(key, (int, str))
    )
    return Parts(tuple(arrays), skeleton, fields, rows_of(arrays))


def rows_of(arrays: Iterable[Array]) -> int:
    """The first dimension of the first array that has any; 1 where none has."""
    return next((array.shape[0] for array in arrays if array.ndim), 1)


def put_together(skeleton: Any, arrays: Sequence[Array], labels: Mapping[str, Array]) -> Any:
    """The batch as the user gave it, with `labels` behind its fields.

    Tuples and lists get the labels appended, dicts get them under the names of the model's
    outputs, a bare array becomes a tuple. Labels are Paddle tensors where any field was one.

    Raises:
        UsageError: a dict has a field of the name of a label.
    """
    as_paddle = _any_paddle(skeleton)
    batch = _fill(skeleton, arrays)
    soft = [_to_paddle(label) if as_paddle else label for label in labels.values()]
    if isinstance(batch, dict):
        taken = [name for name in labels if name in batch]
        if taken:
            raise UsageError(
                f"the model's output {taken[0]!r} has the name of a field of the batch; rename the"
                " field, or name other outputs by fetches=[...]"
            )
        return {**batch, **dict(zip(labels, soft, strict=True))}
    if isinstance(batch, list):
        return [*batch, *soft]
    if isinstance(batch, tuple):
        return (*batch, *soft)
    return (batch, *soft)


def _strip(node: Any, arrays: list[Array]) -> Any:
    if isinstance(node, dict):
        return {key: _strip(value, arrays) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return _rebuilt(node, [_strip(value, arrays) for value in node])
    if isinstance(node, np.ndarray):
        arrays.append(_checked(node))
        return Leaf(len(arrays) - 1, paddle=False)
    if _is_paddle_tensor(node):
        arrays.append(_from_paddle(node))
        return Leaf(len(arrays) - 1, paddle=True, stop_gradient=node.stop_gradient)
    return node


def _checked(array: Array) -> Array:
    if array.dtype.hasobject:
        raise BatchError(
            "an array of Python objects cannot travel; use a fixed dtype, or a list of values"
        )
    if array.dtype.names is not None or isinstance(array, np.ma.MaskedArray):
        raise BatchError(
            f"a {type(array).__name__} of dtype {array.dtype} cannot travel; use one plain array"
            " for each of its fields, and one for a mask"
        )
    return array


def _fill(node: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(node, Leaf):
        array = arrays[node.index]
        return _to_paddle(array, node.stop_gradient) if node.paddle else array
    if isinstance(node, dict):
        return {key: _fill(value, arrays) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return _rebuilt(node, [_fill(value, arrays) for value in node])
    return node


def _rebuilt(node: Sequence[Any], values: list[Any]) -> Any:
    if isinstance(node, list):
        return values
    make: Callable[..., Any] | None = getattr(type(node), "_make", None)  # a named tuple
    return make(values) if make is not None else tuple(values)


def _any_paddle(node: Any) -> bool:
    if isinstance(node, Leaf):
        return node.paddle
    if isinstance(node, dict):
        return any(_any_paddle(value) for value in node.values())
    return isinstance(node, (list, tuple)) and any(_any_paddle(value) for value in node)


def _is_paddle_tensor(node: Any) -> bool:
    # Whoever holds a Paddle tensor has imported paddle; nobody else shall pay for the import.
    paddle = sys.modules.get("paddle")
    return paddle is not None and isinstance(node, paddle.Tensor)


def _from_paddle(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    if array.dtype == np.uint16:  # Paddle's way to show bfloat16, which numpy does not know
        return array.view(dtype_named("bfloat16"))
    return array


def _to_paddle(array: Array, stop_gradient: bool = True) -> Any:
    import paddle

    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    return paddle.to_tensor(array, stop_gradient=stop_gradient)


def _describe(batch: Any) -> str:
    if isinstance(batch, (list, tuple)):
        return f"a {type(batch).__name__} of {[type(value).__name__ for value in batch][:8]}"
    if isinstance(batch, dict):
        return f"a dict of { ({key: type(value).__name__ for key, value in batch.items()}) }"
    return f"a {type(batch).__name__}"
