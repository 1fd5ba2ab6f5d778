"""Counts and hashes what a training loop really receives: order, repetitions, every byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What came through.

    Attributes:
        batches: how many.
        samples: their rows.
        duplicates: batches whose number had come before.
        out_of_order: batches whose number was not higher than the one before.
        sha256: over image, label and soft label of every batch, in the order in which they came.
    """

    batches: int
    samples: int
    duplicates: int
    out_of_order: int
    sha256: str


class StreamCheck:
    """Passes a stream on, field 2 of whose batches is their number, and remembers what it saw."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._last = -1
        self._batches = self._samples = self._duplicates = self._out_of_order = 0
        self._digest = hashlib.sha256()

    def watch(self, batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield (image, label[, soft_label]) of each (image, label, number[, soft_label])."""
        for image, label, number, *soft in batches:
            fields = (image, label, *soft)
            self._note(int(number[0]), fields)
            yield fields

    @property
    def facts(self) -> StreamFacts:
        """What came through so far."""
        return StreamFacts(
            self._batches,
            self._samples,
            self._duplicates,
            self._out_of_order,
            self._digest.hexdigest(),
        )

    def _note(self, number: int, fields: tuple[Any, ...]) -> None:
        self._batches += 1
        self._samples += len(fields[0])
        self._duplicates += number in self._seen
        self._out_of_order += number <= self._last
        self._seen.add(number)
        self._last = number
        for field in fields:
            self._digest.update(np.ascontiguousarray(field).data)
