"""A batch on its way: as it lies in the ring, its labels, and what is handed out of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ..proto.arena import Array, Record
from .saved_state import StreamPosition
from .structure import Parts, put_together


@dataclass(frozen=True, slots=True)
class Pulled:
    """A batch that lies in the ring, for as long as anyone holds `arrays`.

    `source_s` is the time the source took to yield it.
    """

    number: int
    record: Record
    arrays: tuple[Array, ...]
    parts: Parts
    place: StreamPosition
    source_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a batch by name, in the memory of the engine that wrote them.

    None in the place of each where the batch goes without. Their memory is given back with the last
    view. `makers` are the teachers that have made them, by service: for the next engine, should
    this one die and one of them be found to lie.
    """

    arrays: Mapping[str, Array | None]
    record: Record | None = None
    makers: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Labelled(NamedTuple):
    """A batch and its labels.

    Attributes:
        pulled: the batch.
        labels: of it.
        made: what the training loop gets, where that could be made ahead; else None.
    """

    pulled: Pulled
    labels: Labels
    made: Any

    @classmethod
    def of(cls, pulled: Pulled, labels: Labels) -> Self:
        """Puts both together, if no framework has a part in that, or an error.

        Frameworks make tensors in the thread of the training loop, when it takes the batch: where
        they are made, and on which device, is that thread's affair, and none need lie there early.
        """
        made = None
        if pulled.parts.plain:
            with suppress(Exception):  # `batch` raises it again, in the training loop
                made = put_together(pulled.parts.skeleton, pulled.arrays, labels.arrays)
        return cls(pulled, labels, made)

    def batch(self) -> Any:
        """What the training loop gets; raises what `put_together` does."""
        if self.made is not None:
            return self.made
        pulled = self.pulled
        return put_together(pulled.parts.skeleton, pulled.arrays, self.labels.arrays)
