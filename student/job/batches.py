"""The parts of a labelled batch: inputs of the model, hard and soft labels, positions.

The fields of a tuple or list are inputs, hard labels, positions if the source adds them, and soft
labels, in this order. A dict has the hard labels as `label` or `labels`, positions as
`edl_positions`, and soft labels under their names; all other fields are inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...distill_reader.structure import map_leaves, row_count
from ...proto.arena import Array
from ...runtime.errors import BatchError, UsageError
from .spec import JobSpec, Split, is_dataset

#: Field with the position of each row in the order of the epoch: int64 [rows].
POSITIONS: Final = "edl_positions"
LABELS: Final = ("label", "labels")

_END: Final = object()

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parts:
    """A batch as a training step uses it.

    Attributes:
        inputs: inputs of the model, in order or by name.
        labels: hard labels for the job's own loss; None: the batch has none.
        soft: soft labels by name; None for a label that was not delivered.
        positions: positions of the rows, int64 [rows]; None: the batch has none.
        rows: number of rows.
    """

    inputs: tuple[Any, ...] | Mapping[str, Any]
    labels: Any
    soft: Mapping[str, Any]
    positions: Positions | None
    rows: int

    def forward(self, model: Any) -> Any:
        """Call the model with the inputs, in order or by name."""
        if isinstance(self.inputs, Mapping):
            return model(**self.inputs)
        return model(*self.inputs)

    def part(self, start: int, stop: int) -> Parts:
        """Return rows [start, stop): a micro-batch."""
        if (start, stop) == (0, self.rows):
            return self
        inputs, labels, soft = (
            _cut(value, start, stop, self.rows) for value in (self.inputs, self.labels, self.soft)
        )
        positions = None if self.positions is None else self.positions[start:stop]
        return Parts(inputs, labels, soft, positions, len(range(start, min(stop, self.rows))))


def split_batch(
    batch: Any,
    soft: Sequence[str] = (),
    *,
    tensor: Callable[[Any], Any],
    positions: bool = False,
) -> Parts:
    """Split a batch into its parts; arrays become tensors.

    Args:
        batch: a tuple, list or dict of arrays or tensors, or a single array or tensor.
        tensor: converts a leaf of the batch: `Framework.tensor`.
        soft: names of the batch's soft labels, in the order of `Distill.label_names`; empty: none.
        positions: whether the batch has positions.

    Raises:
        UsageError: fields are missing or unexpected.
    """
    if isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], Mapping):
        batch = batch[0]  # the form of Paddle's static-graph loaders
    inputs: tuple[Any, ...] | dict[str, Any]
    if isinstance(batch, Mapping):
        inputs, labels, row_positions, soft_labels = _split_dict(dict(batch), soft, positions)
    else:
        fields = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        inputs, labels, row_positions, soft_labels = _split_fields(fields, soft, positions)
    rows = rows_of(inputs)
    return Parts(
        map_leaves(inputs, tensor),
        map_leaves(labels, tensor),
        {name: map_leaves(label, tensor) for name, label in soft_labels.items()},
        _checked_positions(row_positions, rows) if positions else None,
        rows,
    )


def _split_dict(
    batch: dict[str, Any], soft: Sequence[str], positions: bool
) -> tuple[dict[str, Any], Any, Any, dict[str, Any]]:
    """Return inputs, hard labels, positions and soft labels of a dict."""
    names = list(batch)
    row_positions = batch.pop(POSITIONS, None)
    if positions and row_positions is None:
        raise UsageError(f"the batch has no {POSITIONS!r}, its fields are {names}")
    if positions and len(sent := names[names.index(POSITIONS) + 1 :]) > len(soft):
        raise UsageError(
            f"teachers send several outputs, {sent}: select them with fetches=[...] of Distill"
        )
    soft_labels: dict[str, Any] = {}
    for name in soft:
        # "" is the single output: the last field, under the name that the teachers' model gives it.
        key = name or next(reversed(batch), "")
        if key not in batch:
            raise UsageError(f"the batch lacks the soft label {name!r}, it has {list(batch)}")
        soft_labels[name] = batch.pop(key)
    labels = [batch.pop(name) for name in LABELS if name in batch]
    if not batch:
        raise UsageError("the batch has only labels, and no input for the model")
    return batch, labels[0] if labels else None, row_positions, soft_labels


def _split_fields(
    fields: list[Any], soft: Sequence[str], positions: bool
) -> tuple[tuple[Any, ...], Any, Any, dict[str, Any]]:
    """Return inputs, hard labels, positions and soft labels of a tuple or list."""
    source_fields = len(fields) - len(soft) - positions
    if source_fields < 1:
        raise UsageError(
            f"the batch has {len(fields)} fields, too few for inputs and {len(soft)} soft labels:"
            " select the outputs that teachers send with fetches=[...] of Distill"
        )
    soft_labels = dict(zip(soft, fields[source_fields + positions :], strict=True))
    row_positions = fields[source_fields] if positions else None
    if source_fields == 1:
        return (fields[0],), None, row_positions, soft_labels
    labels = fields[source_fields - 1]
    return tuple(fields[: source_fields - 1]), labels, row_positions, soft_labels


def _checked_positions(value: Any, rows: int) -> Positions:
    positions = np.asarray(value)
    if positions.dtype != np.int64 or positions.shape != (rows,):
        raise UsageError(
            f"the batch has unexpected fields: in place of the positions of its {rows} rows, int64"
            f" [{rows}], it has {positions.dtype} {list(positions.shape)}. If teachers send"
            " several outputs, select them with fetches=[...] of Distill"
        )
    return positions


def rows_of(batch: Any) -> int:
    """Return the rows of the first array with dimensions in a structure; 1 if there is none."""
    arrays: list[Any] = []
    map_leaves(batch, lambda leaf: arrays.append(leaf) if hasattr(leaf, "ndim") else None)
    return int(row_count(arrays))


def _cut(value: Any, start: int, stop: int, rows: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _cut(one, start, stop, rows) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_cut(one, start, stop, rows) for one in value)
    if isinstance(value, list):
        if len(value) == rows and not all(_has_rows(one, rows) for one in value):
            return value[start:stop]  # one value for each row, such as names
        return [_cut(one, start, stop, rows) for one in value]
    return value[start:stop] if _has_rows(value, rows) else value


def _has_rows(value: Any, rows: int) -> bool:
    return bool(getattr(value, "ndim", 0)) and value.shape[0] == rows


def with_positions(batch: Any, positions: Array) -> Any:
    """Return the batch with positions, int64 [rows], as the last field; in a dict, as `POSITIONS`.

    A bare array becomes a tuple. In a list of one dict, the form of Paddle's static-graph loaders,
    the dict gets the field.

    Raises:
        BatchError: a dict already has that field.
    """
    if isinstance(batch, list) and len(batch) == 1 and isinstance(batch[0], Mapping):
        return [with_positions(batch[0], positions)]
    if isinstance(batch, Mapping):
        if POSITIONS in batch:
            raise BatchError(f"a batch has a field {POSITIONS!r}, which is reserved; rename it")
        return {**batch, POSITIONS: positions}
    if isinstance(batch, list):
        return [*batch, positions]
    return (*batch, positions) if isinstance(batch, tuple) else (batch, positions)


def feed_of(spec: JobSpec, part: Split, batch_size: int | None = None) -> Any:
    """Return `feed(part)` as an iterable of batches.

    Args:
        spec: the job file.
        part: "train" or "eval".
        batch_size: rows of a batch, if the feed is a data set.

    Raises:
        JobError: the feed fails.
        UsageError: the feed is a data set, and there is no batch size.
    """
    source = spec.feed(part)
    if not is_dataset(source):
        return source
    if batch_size is None:
        raise UsageError(
            f"feed({part!r}) of {spec.path} gives a data set, which has no batches:"
            " give the rows of a batch (--total-batch to train, else --batch-size), or return a"
            " DataLoader"
        )
    from ...distill_reader import Batched

    return Batched(source, batch_size)


def batches_of(
    spec: JobSpec, part: Split, batch_size: int | None = None
) -> Generator[Parts, None, None]:
    """Yield the batches of `feed(part)`, split into parts; arguments and errors as `feed_of`."""
    source = feed_of(spec, part, batch_size)
    with spec.job_errors("feed"):
        batches = iter(source)
    while True:
        with spec.job_errors("feed"):
            batch = next(batches, _END)
        if batch is _END:
            return
        yield split_batch(batch, tensor=spec.framework.tensor)


def first_batch(spec: JobSpec, part: Split, batch_size: int | None = None) -> Parts:
    """Return the first batch of `feed(part)`.

    Raises the errors of `batches_of`, and UsageError if the feed is empty.
    """
    batches = batches_of(spec, part, batch_size)
    try:
        batch = next(batches, None)
    finally:
        batches.close()
    if batch is None:
        raise UsageError(f"feed({part!r}) of {spec.path} has no batches")
    return batch
