"""A user's batch taken apart into arrays, and put together again with its soft labels.

A batch is a tuple, list, mapping or bare array; its leaves are numpy arrays or tensors of Paddle
or PyTorch. What is neither (a name, a number, None) stays in the trainer by reference and comes
back as it was. Arrays leave for shared memory, so that what comes back is what was labelled even if
the user's loader fills the same buffers again.

Arrays at the top of a batch are its fields, of which teachers get some. Arrays further down, such
as those of a list of sentences of different lengths, only pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..errors import BatchError, UsageError
from ..proto.arena import Array
from .adapters.tensors import PLAIN, TensorKind, array_of
from .config import FieldKey

if TYPE_CHECKING:
    from ..proto.datatypes import Input

#: Kinds of dtypes whose arrays need no second look: bool, integers, floats, complex.
_NUMBERS: Final = "biufc"


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands in a skeleton where the array of this index was."""

    index: int
    kind: TensorKind


class Parts(NamedTuple):
    """A batch taken apart.

    Attributes:
        arrays: its leaves, in the order of the batch.
        skeleton: the batch with a `Leaf` in the place of each array.
        fields: for each array at the top of the batch, its key there and its index in `arrays`;
            keys that are neither text nor integers cannot be named, and are left out.
        samples: rows of the batch: the first dimension of its first field that has any; where no
            field has, of its first array that has.
        plain: whether all its leaves were numpy arrays.
    """

    arrays: tuple[Array, ...]
    skeleton: Any
    fields: tuple[tuple[FieldKey, int], ...]
    samples: int
    plain: bool

    def without_arrays(self) -> Parts:
        """The same, once the arrays lie in shared memory: the user's own may go."""
        return self._replace(arrays=())


def take_apart(batch: Any) -> Parts:
    """Split `batch` into arrays and a skeleton; raises BatchError where it holds no array."""
    if (flat := _taken_apart_flat(batch)) is not None:
        return flat
    arrays: list[Array] = []
    kinds: list[TensorKind] = []
    skeleton = _strip(batch, arrays, kinds)
    if not arrays:
        raise BatchError(
            "a batch needs at least one numpy array or tensor of Paddle or PyTorch, this is"
            f" {_describe(batch)}"
        )
    fields = tuple(
        (key, leaf.index)
        for key, leaf in _top(skeleton)
        if isinstance(leaf, Leaf) and isinstance(key, (int, str))
    )
    ranked = [*(arrays[index] for _, index in fields), *arrays]
    plain = all(kind is PLAIN for kind in kinds)
    return Parts(tuple(arrays), skeleton, fields, row_count(ranked), plain)


def _taken_apart_flat(batch: Any) -> Parts | None:
    """What `take_apart` finds of a tuple of numpy arrays of numbers, in a tenth of the time."""
    if type(batch) is not tuple or not batch:
        return None
    for array in batch:
        if type(array) is not np.ndarray or array.dtype.kind not in _NUMBERS:
            return None
    skeleton, fields = _flat(len(batch))
    return Parts(batch, skeleton, fields, row_count(batch), plain=True)


@lru_cache(maxsize=16)
def _flat(arrays: int) -> tuple[tuple[Leaf, ...], tuple[tuple[FieldKey, int], ...]]:
    """Skeleton and fields of a tuple of so many arrays."""
    places = range(arrays)
    return tuple(Leaf(place, PLAIN) for place in places), tuple((place, place) for place in places)


def row_count(inputs: Iterable[Input]) -> int:
    """The rows of the first input that has dimensions; 1 if none has."""
    return next((value.shape[0] for value in inputs if value.ndim), 1)


def put_together(skeleton: Any, arrays: Sequence[Array], labels: Mapping[str, Array | None]) -> Any:
    """The batch as the user gave it, with `labels` behind its fields.

    Tuples and lists get the labels appended, mappings get them under the names of the model's
    outputs and become dicts, a bare array becomes a tuple. Labels are tensors of a framework, and
    lie where its tensors lie, where any array of the batch was such a tensor. A batch that goes
    without labels gets None in the place of each.

    Raises:
        UsageError: a dict has a field of the name of a label.
    """
    if type(skeleton) is tuple and skeleton is _flat(len(skeleton))[0]:
        return (*arrays, *labels.values())
    kinds = (leaf.kind.of_labels() for leaf in _leaves(skeleton) if leaf.kind is not PLAIN)
    kind = next(kinds, PLAIN)
    soft = {name: label if label is None else kind.tensor(label) for name, label in labels.items()}
    batch = _fill(skeleton, arrays)
    if _is_fed_dict(batch):
        return [_with_labels(batch[0], soft)]
    if isinstance(batch, dict):
        return _with_labels(batch, soft)
    if isinstance(batch, list):
        return [*batch, *soft.values()]
    if isinstance(batch, tuple):
        return (*batch, *soft.values())
    return (batch, *soft.values())


def _with_labels(batch: dict[Any, Any], soft: dict[str, Any]) -> dict[Any, Any]:
    taken = [name for name in soft if name in batch]
    if taken:
        raise UsageError(
            f"the model's output {taken[0]!r} has the name of a field of the batch; rename the"
            " field, or name other outputs by fetches=[...]"
        )
    return {**batch, **soft}


def _top(skeleton: Any) -> Iterable[tuple[Any, Any]]:
    """What lies at the top of a batch, by key or place."""
    if _is_fed_dict(skeleton):
        skeleton = skeleton[0]
    if isinstance(skeleton, dict):
        return skeleton.items()
    if isinstance(skeleton, (list, tuple)):
        return enumerate(skeleton)
    return [(0, skeleton)]


def _is_fed_dict(batch: Any) -> bool:
    """Whether it is what static-graph loaders of Paddle yield: a list of one dict per device."""
    return isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], dict)


def _strip(batch: Any, arrays: list[Array], kinds: list[TensorKind]) -> Any:
    def stripped(node: Any) -> Any:
        if (found := array_of(node)) is None:
            return node
        array, kind = found
        arrays.append(array)
        kinds.append(kind)
        return Leaf(len(arrays) - 1, kind)

    return map_leaves(batch, stripped)


def _fill(skeleton: Any, arrays: Sequence[Array]) -> Any:
    def filled(node: Any) -> Any:
        return node.kind.tensor(arrays[node.index]) if isinstance(node, Leaf) else node

    return map_leaves(skeleton, filled)


def map_leaves(node: Any, change: Callable[[Any], Any]) -> Any:
    """A batch of the same structure, with `change(leaf)` in the place of each of its leaves."""
    if isinstance(node, Mapping):
        return {key: map_leaves(value, change) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return _rebuilt(node, [map_leaves(value, change) for value in node])
    return change(node)


def _rebuilt(node: Sequence[Any], values: list[Any]) -> Any:
    if isinstance(node, list):
        return values
    if all(new is old for new, old in zip(values, node, strict=True)):
        return node  # whatever kind of tuple it is
    make: Callable[..., Any] | None = getattr(type(node), "_make", None)  # a named tuple
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
