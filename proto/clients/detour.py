"""When a way that has failed is tried again: a pure rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

#: After the first failure; twice as long after each further one, up to the most.
FIRST_S: Final = 5.0
MOST_S: Final = 300.0
_DOUBLED: Final = 16


@dataclass(frozen=True, slots=True)
class Detour:
    """How long a way is to be left alone.

    Attributes:
        failures: of the way, since it last worked.
        until_s: when it may be tried again, on the clock of whoever asks.
    """

    failures: int = 0
    until_s: float = 0.0

    def is_over(self, now: float) -> bool:
        """Whether the way may be tried."""
        return now >= self.until_s

    def failed(self, now: float) -> Self:
        """The way was tried, and failed."""
        pause_s = min(FIRST_S * 2 ** min(self.failures, _DOUBLED), MOST_S)
        return type(self)(self.failures + 1, now + pause_s)

    def worked(self) -> Self:
        """The way was tried, and does what it is for."""
        return type(self)()
