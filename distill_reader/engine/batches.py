"""What the engine knows of each batch in the ring, and whether its rows can go different ways."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from ...proto.arena import ArrayRef
from ...proto.channel import Message
from ...scheduler.ledger.instructions import Span
from ..config import FieldKey, ReaderConfig

#: Names, dtypes, and shapes of one row, of what is fed.
Layout = tuple[tuple[FieldKey, str, tuple[int, ...]], ...]

#: Layouts that are remembered: padded texts have a new one with each length.
MAX_LAYOUTS: Final = 256


class Batch(NamedTuple):
    """A batch in the ring.

    Attributes:
        number: grows over all epochs.
        nbytes: of all its arrays.
        samples: rows, as the training loop counts them.
        fields: where the arrays lie that could be fed to a model.
        rows: that may go to teachers apart from each other; 1 where it cannot be cut.
        kind: rows of batches of one kind may go to a teacher together.
        is_even: whether it can be cut: each array that may be fed has all the rows.
        generation: of the first field: while it is the same, the memory is this batch's.
    """

    number: int
    nbytes: int
    samples: int
    fields: Mapping[FieldKey, ArrayRef]
    rows: int
    kind: int
    is_even: bool
    generation: int = 0

    def is_all_of(self, span: Span) -> bool:
        """Whether a span of this batch leaves nothing of it out."""
        return span.rows == self.rows


class Batches(dict[int, Batch]):
    """The batches that are not delivered for good, by number. Used by the engine's thread alone."""

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__()
        self._fed = {key for _, key in config.feeds}
        self._kinds: OrderedDict[Layout, int] = OrderedDict()  # of the latest layouts
        self._numbers = itertools.count()

    def add(self, message: Message) -> Batch:
        """The batch that the trainer's side tells of."""
        number, samples = message["number"], message["samples"]
        fields = {key: ArrayRef.from_json(ref) for key, ref in message["fields"]}
        fed = fields
        if self._fed:
            fed = {key: ref for key, ref in fields.items() if key in self._fed} or fields
        lengths = {ref.shape[0] if ref.shape else 0 for ref in fed.values()}
        is_even = len(lengths) == 1 and 0 not in lengths
        if is_even:
            layout = tuple([(key, ref.dtype, ref.shape[1:]) for key, ref in fed.items()])
            rows, kind = lengths.pop(), self._kind(layout)
        else:
            rows, kind = 1, -1 - number  # its own: it goes as it is, and alone
        generation = message.get("generation", 0)
        batch = Batch(number, message["nbytes"], samples, fields, rows, kind, is_even, generation)
        self[number] = batch
        return batch

    def _kind(self, layout: Layout) -> int:
        """The number of a layout; one that was not seen for long may get another one."""
        if layout not in self._kinds:
            self._kinds[layout] = next(self._numbers)
            if len(self._kinds) > MAX_LAYOUTS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(layout)
        return self._kinds[layout]
