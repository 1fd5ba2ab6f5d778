"""What a reader has done with a store: counted, told to the trainer, and added up in the file."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Figures:
    """What one reader has done with a store since it was opened.

    Attributes:
        hits: rows that were there.
        misses: rows that were not.
        written: rows that were added, or made richer.
        evicted: rows that made room.
        damaged: rows that failed their checksum; each was a miss, and was taken out.
        disowned: rows that were taken out as their teacher is not believed any more.
        dropped: rows that were to be written and could not be.
        trouble: why the store cannot be used now; empty: all is well.
    """

    hits: int = 0
    misses: int = 0
    written: int = 0
    evicted: int = 0
    damaged: int = 0
    disowned: int = 0
    dropped: int = 0
    trouble: str = ""

    def plus(self, **more: int) -> Self:
        """With so many more of these."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})

    def since(self, before: Figures) -> dict[str, int]:
        """How many of each there are more than `before`."""
        counted = [field.name for field in fields(self) if field.name != "trouble"]
        return {name: getattr(self, name) - getattr(before, name) for name in counted}
