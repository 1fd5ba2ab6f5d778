"""An epoch of which every label is known: whether the stream of it was complete shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edl.tests.interop.programs.network import CLASSES, FEATURES, labels_of

ROWS = 8


class KnownBatches:
    """A re-iterable of `count` batches (x, number), no two rows of which are the same."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for number in range(self.count):
            yield self.at(number), np.full(ROWS, number)

    @staticmethod
    def at(number: int) -> Any:
        x = np.arange(ROWS * FEATURES, dtype=np.float32).reshape(ROWS, FEATURES) % 11
        x[:, 0] = number * ROWS + np.arange(ROWS)
        return x

    def check(self, batches: Sequence[tuple[Any, Any, Any]]) -> None:
        """Each batch once, in order, as it was given, with its labels bit for bit."""
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.count))
        for x, numbers, soft in batches:
            np.testing.assert_array_equal(x, self.at(int(numbers[0])))
            assert (soft.dtype, soft.shape) == (np.float32, (ROWS, CLASSES))
            np.testing.assert_array_equal(soft, labels_of(x))
