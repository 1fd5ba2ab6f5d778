"""Base class of `TorchLoader` and `PaddleLoader`, which convert a reader's batches to tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import UsageError
from ..reader import DistilReader
from ..saved_state import State

#: numpy's dtype kinds of text and dates, for which no framework has tensors.
_NEVER_TENSORS = "SUMm"


class Loader(ABC):
    """Iterates a reader, and converts each batch when the training loop takes it.

    It has no state of its own: epochs, `state_dict` and errors are the reader's.

    Attributes:
        reader: the reader. Read statistics from it, and close it: a loader has no such methods.

    Raises:
        UsageError: `reader` is not a DistilReader.
    """

    def __init__(self, reader: DistilReader) -> None:
        if not isinstance(reader, DistilReader):
            raise UsageError(
                f"a {type(self).__name__} iterates a DistilReader, not a {type(reader).__name__}:"
                " make a reader of that first"
            )
        self.reader = reader

    def __len__(self) -> int:
        """Return the batches per epoch; raises TypeError if unknown."""
        return len(self.reader)

    def __iter__(self) -> Iterator[Any]:
        """Begin a new epoch; the current epoch ends."""
        return self.reader.iterate(self._converted)

    def state_dict(self) -> dict[str, Any]:
        """See `DistilReader.state_dict`."""
        return self.reader.state_dict()

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """See `DistilReader.load_state_dict`."""
        self.reader.load_state_dict(state)

    @abstractmethod
    def _converted(self, batch: Any) -> Any: ...


def numbers_of(leaf: Any) -> Array | None:
    """Return a leaf of a batch in native byte order if it is a numeric numpy array, else None."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind in _NEVER_TENSORS:
        return None
    return leaf if leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("="))
