"""Take a user's batch apart into arrays, and put it together again with its soft labels.

A batch is a tuple, list, mapping or a single array. Its leaves are numpy arrays or tensors of
Paddle or PyTorch; any other leaf (a name, a number, None) is kept by reference and returned as it
is. Arrays are copied to shared memory. So the returned batch has the values that teachers labelled,
even if the user's loader reuses its buffers.

Arrays at the top level of a batch are its fields, which can be fed to teachers. Nested arrays, such
as a list of sentences of different lengths, are returned and never sent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..proto.arena import Array
from ..runtime.errors import BatchError, UsageError
from .adapters.tensors import PLAIN, TensorKind, array_of
from .config import FieldKey

if TYPE_CHECKING:
    from ..proto.datatypes import Input

#: numpy's dtype kinds of plain numbers: bool, integers, floats, complex.
_NUMBERS: Final = "biufc"


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands in a skeleton for the array at `index`, which was a tensor of this kind."""

    index: int
    kind: TensorKind


class BatchParts(NamedTuple):
    """The arrays of a batch, and the structure around them.

    Attributes:
        arrays: its arrays, depth first.
        skeleton: the batch with a `Leaf` in place of each array.
        fields: key and index in `arrays` of each top-level array with a text or integer key.
        samples: rows of the batch: the first dimension of the first field that is not a scalar; if
            all fields are scalars, of the first array that is not.
        plain: whether all arrays are numpy arrays.
    """

    arrays: tuple[Array, ...]
    skeleton: Any
    fields: tuple[tuple[FieldKey, int], ...]
    samples: int
    plain: bool


def take_apart(batch: Any) -> BatchParts:
    """Split `batch` into arrays and a skeleton.

    Raises:
        BatchError: the batch contains no array, or an array of a dtype that cannot be sent.
    """
    if (parts := _taken_apart_flat(batch)) is not None:
        return parts
    arrays: list[Array] = []

    def to_leaf(node: Any) -> Any:
        if (array_and_kind := array_of(node)) is None:
            return node
        array, kind = array_and_kind
        arrays.append(array)
        return Leaf(len(arrays) - 1, kind)

    skeleton = map_leaves(batch, to_leaf)
    if not arrays:
        raise BatchError(
            "a batch needs at least one numpy array or tensor of Paddle or PyTorch, this is"
            f" {_describe(batch)}"
        )
    fields = tuple(
        (key, leaf.index)
        for key, leaf in _top_level_items(skeleton)
        if isinstance(leaf, Leaf) and isinstance(key, (int, str))
    )
    fields_first = [*(arrays[index] for _, index in fields), *arrays]
    plain = all(leaf.kind is PLAIN for leaf in _leaves(skeleton))
    return BatchParts(tuple(arrays), skeleton, fields, row_count(fields_first), plain)


def _taken_apart_flat(batch: Any) -> BatchParts | None:
    """Do the work of `take_apart` faster, for a tuple of numeric arrays; None for other batches."""
    if type(batch) is not tuple or not batch:
        return None
    for array in batch:
        if type(array) is not np.ndarray or array.dtype.kind not in _NUMBERS:
            return None
    skeleton, fields = _flat(len(batch))
    return BatchParts(batch, skeleton, fields, row_count(batch), plain=True)


@lru_cache(maxsize=16)
def _flat(arrays: int) -> tuple[tuple[Leaf, ...], tuple[tuple[FieldKey, int], ...]]:
    """Return the skeleton and the fields of a tuple of this many arrays."""
    indexes = range(arrays)
    return tuple(Leaf(index, PLAIN) for index in indexes), tuple((i, i) for i in indexes)


def row_count(inputs: Iterable[Input]) -> int:
    """Return the rows of the first input that has dimensions; 1 if none has."""
    for value in inputs:
        if value.ndim:
            return value.shape[0]
    return 1


def check_rows(parts: BatchParts) -> None:
    """Raise BatchError for a batch without rows, or with only scalars as fields."""
    if not parts.samples:
        raise BatchError("a batch needs at least one row, this one has none: leave it out")
    fields = [parts.arrays[index] for _, index in parts.fields]
    if fields and not any(field.ndim for field in fields):
        raise BatchError(
            "a batch needs a field with rows, but the fields of this one are scalars: give an"
            " array of one sample a first dimension, as in x[None]"
        )


def put_together(skeleton: Any, arrays: Sequence[Array], labels: Mapping[str, Array | None]) -> Any:
    """Rebuild a batch with its labels.

    Labels are appended to tuples and lists, and added to mappings, which become dicts, under the
    names of the model's outputs; a single array becomes a tuple. If the batch contains tensors of a
    framework, labels become such tensors, on the device of the first one.

    Args:
        skeleton: as in `BatchParts`.
        arrays: in the order of `BatchParts.arrays`.
        labels: by name; None for each label of an unlabelled batch.

    Raises:
        UsageError: a dict has a field with the name of a label.
        BatchError: the framework lacks the dtype of an array or a label.
    """
    if type(skeleton) is tuple and skeleton is _flat(len(skeleton))[0]:
        return (*arrays, *labels.values())
    soft = soft_labels(skeleton, labels)

    def from_leaf(node: Any) -> Any:
        return node.kind.tensor(arrays[node.index]) if isinstance(node, Leaf) else node

    batch = map_leaves(skeleton, from_leaf)
    if is_fed_dict(batch):
        return [_with_labels(batch[0], soft)]
    if isinstance(batch, dict):
        return _with_labels(batch, soft)
    if isinstance(batch, list):
        return [*batch, *soft.values()]
    if isinstance(batch, tuple):
        return (*batch, *soft.values())
    return (batch, *soft.values())


def soft_labels(skeleton: Any, labels: Mapping[str, Array | None]) -> dict[str, Any]:
    """Return the labels by name, as tensors of the batch's framework.

    Args:
        skeleton: as in `BatchParts`.
        labels: by name; None for each label of an unlabelled batch.

    Raises:
        BatchError: the framework lacks the dtype of a label.
    """
    kinds = (leaf.kind.of_labels() for leaf in _leaves(skeleton) if leaf.kind is not PLAIN)
    kind = next(kinds, PLAIN)
    return {name: label if label is None else kind.tensor(label) for name, label in labels.items()}


def _with_labels(batch: dict[Any, Any], soft: dict[str, Any]) -> dict[Any, Any]:
    duplicates = [name for name in soft if name in batch]
    if duplicates:
        raise UsageError(
            f"the model's output {duplicates[0]!r} has the name of a field of the batch; rename the"
            " field, or name other outputs by fetches=[...]"
        )
    return {**batch, **soft}


def _top_level_items(skeleton: Any) -> Iterable[tuple[Any, Any]]:
    """Return (key or index, item) pairs of the top level of a batch."""
    if is_fed_dict(skeleton):
        skeleton = skeleton[0]
    if isinstance(skeleton, dict):
        return skeleton.items()
    if isinstance(skeleton, (list, tuple)):
        return enumerate(skeleton)
    return [(0, skeleton)]


def is_fed_dict(batch: Any) -> bool:
    """Whether `batch` is a list of one dict, as Paddle's static-graph loaders yield it."""
    return isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], dict)


def map_leaves(node: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch of the same structure, with each leaf replaced by `change(leaf)`.

    Mappings become dicts; a tuple with no changed item is returned as it is.
    """
    if isinstance(node, Mapping):
        return {key: map_leaves(value, change) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        values = [map_leaves(value, change) for value in node]
        if isinstance(node, tuple) and all(map(operator.is_, values, node)):
            return node  # also a subclass of tuple that `sequence_like` cannot make
        return sequence_like(node, values)
    return change(node)


def sequence_like(sequence: Sequence[Any], values: list[Any]) -> Any:
    """Return `values` as a list, tuple or named tuple, like `sequence`."""
    if isinstance(sequence, list):
        return values
    make: Callable[..., Any] | None = getattr(type(sequence), "_make", None)  # a named tuple
    return make(values) if make is not None else tuple(values)


def _leaves(node: Any) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _leaves(value)


def _describe(batch: Any) -> str:
    if isinstance(batch, (list, tuple)):
        return f"a {type(batch).__name__} of {[type(value).__name__ for value in batch][:8]}"
    if isinstance(batch, Mapping):
        named = {key: type(value).__name__ for key, value in batch.items()}
        return f"a {type(batch).__name__} of {named}"
    return f"a {type(batch).__name__}"
