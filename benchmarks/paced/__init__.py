"""Emulated teachers and students of stated rates, for the benchmarks `mesh`, `plan` and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...proto.arena import Array
from ..teachers.models import FEATURES

SERVICE: Final = "bench"
#: Samples of a batch for the emulated devices.
ROWS: Final = 8
#: Number of batches of a source that practically never ends.
FOR_EVER: Final = 1 << 40


def batch() -> Array:
    """Return a batch for the emulated devices, float32 [ROWS, FEATURES]."""
    return np.zeros((ROWS, FEATURES), np.float32)


class Repeated:
    """A source that yields one batch repeatedly.

    Args:
        fields: fields of the batch.
        count: batches of an epoch; may be changed between epochs.
    """

    def __init__(self, *fields: Array, count: int = 0) -> None:
        self.count = count
        self._fields = fields

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        for _ in range(self.count):
            yield self._fields
