"""What loaders for the frameworks have in common: the epochs of a reader, each batch converted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array
from ..reader import DistilReader
from ..saved_state import State

#: Text and dates, of which no framework has tensors.
_NEVER_TENSORS = "SUMm"


class Loader(ABC):
    """Iterates `reader`, whose batches it converts as the training loop takes them.

    It holds nothing of its own: epochs, state, errors and the end are the reader's.

    Attributes:
        reader: what it iterates; close that, and look there for figures.

    Raises:
        UsageError: it is given anything but a reader.
    """

    def __init__(self, reader: DistilReader) -> None:
        if not isinstance(reader, DistilReader):
            raise UsageError(
                f"a {type(self).__name__} iterates a DistilReader, not a {type(reader).__name__}:"
                " make a reader of that first"
            )
        self.reader = reader

    def __len__(self) -> int:
        """Batches of an epoch; raises TypeError where the reader's source does not know."""
        return len(self.reader)

    def __iter__(self) -> Iterator[Any]:
        """A new epoch; one that is still being read is left."""
        return self.reader.iterate(self._converted)

    def state_dict(self) -> dict[str, Any]:
        """How far the training loop has come: the reader's."""
        return self.reader.state_dict()

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Have the next epoch go on there; raises what the reader's own does."""
        self.reader.load_state_dict(state)

    @abstractmethod
    def _converted(self, batch: Any) -> Any: ...


def numbers_of(leaf: Any) -> Array | None:
    """A leaf that can be a tensor, in this machine's byte order; None for anything else."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind in _NEVER_TENSORS:
        return None
    return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))
