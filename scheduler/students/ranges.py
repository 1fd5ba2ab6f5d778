"""Sets of whole numbers as ranges: which positions of an epoch are trained, which remain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ...errors import UsageError

#: [start, stop)
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """A set of whole numbers from 0 on.

    Attributes:
        pairs: [start, stop) of each range: none is empty, none touches the next, in order. Made by
            `of`, which brings any ranges into this form, so that equal sets are equal values.
    """

    pairs: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> Self:
        """The union of any [start, stop), in any order; raises UsageError where one is none."""
        joined: list[Range] = []
        for start, stop in sorted(_checked(pair) for pair in ranges):
            if start == stop:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
            else:
                joined.append((start, stop))
        return cls(tuple(joined))

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> Self:
        """The set of these numbers; runs of consecutive ones cost one range each."""
        ordered = sorted(set(numbers))
        runs: list[Range] = []
        for number in ordered:
            if runs and number == runs[-1][1]:
                runs[-1] = (runs[-1][0], number + 1)
            else:
                runs.append((number, number + 1))
        return cls.of(runs)

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(stop - start for start, stop in self.pairs)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(a <= number < b for a, b in self.pairs)

    def numbers(self) -> Iterator[int]:
        """All of them, growing."""
        for start, stop in self.pairs:
            yield from range(start, stop)

    def union(self, other: Ranges) -> Self:
        """What is in either."""
        return self.of((*self.pairs, *other.pairs))

    def minus(self, other: Ranges) -> Self:
        """What is in this one alone."""
        left: list[Range] = []
        cuts = iter((*other.pairs, (_END, _END)))
        cut = next(cuts)
        for start, stop in self.pairs:
            while cut[1] <= start:
                cut = next(cuts)
            while cut[0] < stop:
                left.append((start, cut[0]))
                start = cut[1]
                if start >= stop:
                    break
                cut = next(cuts)
            left.append((start, stop))
        return type(self)(tuple(pair for pair in left if pair[0] < pair[1]))

    def complement(self, total: int) -> Self:
        """The numbers below `total` that are not in it."""
        return self.of([(0, total)]).minus(self)

    def slice(self, start: int, stop: int) -> Self:
        """Its numbers from the `start`-th smallest (from 0) to before the `stop`-th."""
        found: list[Range] = []
        before = 0
        for first, last in self.pairs:
            low, high = max(start - before, 0), min(stop - before, last - first)
            if low < high:
                found.append((first + low, first + high))
            before += last - first
            if before >= stop:
                break
        return type(self)(tuple(found))

    def to_json(self) -> list[list[int]]:
        """As lists of [start, stop]."""
        return [[start, stop] for start, stop in self.pairs]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """What `to_json` gave; raises UsageError for anything else."""
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"ranges are a list of [start, stop], not {str(value)[:80]!r}")
        return cls.of(value)


_END = 1 << 62


def _checked(pair: Any) -> Range:
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        start, stop = pair
        if isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop:
            return start, stop
    raise UsageError(
        f"a range is [start, stop], whole numbers with 0 <= start <= stop, not {str(pair)[:80]!r}"
    )
