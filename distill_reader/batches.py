"""A batch in the ring, its labels, and what the training loop gets of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ..proto.arena import Array, Record
from .saved_state import StreamPosition
from .structure import Parts, put_together


@dataclass(frozen=True, slots=True)
class RingBatch:
    """A batch that lies in the ring, for as long as anyone holds `arrays`.

    `source_s` is the time the source took to yield it.
    """

    number: int
    record: Record
    arrays: tuple[Array, ...]
    parts: Parts
    position: StreamPosition
    source_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchLabels:
    """The labels of a batch by name, in the memory of the engine that wrote them.

    None for each label of an unlabelled batch. Their memory is freed with the last view. `makers`
    are the teachers that labelled it, by service: the next engine needs them if this one dies and
    one of them turns out to be wrong.
    """

    arrays: Mapping[str, Array | None]
    record: Record | None = None
    makers: Mapping[str, Sequence[str]] = field(default_factory=dict)


class LabelledBatch(NamedTuple):
    """A batch and its labels.

    Attributes:
        pulled: the batch.
        labels: of it.
        made: what the training loop gets, if it could be made ahead; else None.
    """

    pulled: RingBatch
    labels: BatchLabels
    made: Any

    @classmethod
    def of(cls, pulled: RingBatch, labels: BatchLabels) -> Self:
        """Put both together, unless that involves a framework or fails.

        Tensors are made in the training loop's thread when it takes the batch, which decides their
        device, and occupy no device memory before.
        """
        made = None
        if pulled.parts.plain:
            with suppress(Exception):  # `batch` raises it again in the training loop
                made = put_together(pulled.parts.skeleton, pulled.arrays, labels.arrays)
        return cls(pulled, labels, made)

    def batch(self) -> Any:
        """What the training loop gets; raises what `put_together` does."""
        if self.made is not None:
            return self.made
        pulled = self.pulled
        return put_together(pulled.parts.skeleton, pulled.arrays, self.labels.arrays)
