"""How long to wait before trying again: exponential, with full jitter.

The wait is drawn evenly between 0 and a ceiling that doubles with each failure, so that clients who
lost the same server at the same moment do not come back at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

#: Doublings after which no ceiling of practical use is still below its cap.
_MAX_DOUBLINGS = 60


class RandomLike(Protocol):
    """What is asked of a source of randomness: `random.Random` has it, and so has the module."""

    def random(self) -> float:
        """A number in [0, 1)."""


def delay_s(attempt: int, rng: RandomLike, base_s: float = 0.1, cap_s: float = 5.0) -> float:
    """Seconds to wait after `attempt` failures: 0 <= delay < min(cap_s, base_s * 2 ** attempt).

    Raises:
        ValueError: `attempt`, `base_s` or `cap_s` is negative.
    """
    if attempt < 0 or base_s < 0 or cap_s < 0:
        raise ValueError(f"nothing negative: attempt {attempt}, base {base_s} s, cap {cap_s} s")
    return rng.random() * min(cap_s, base_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))


@dataclass(frozen=True, slots=True)
class Rest:
    """How long one of several that are tried again and again is left alone.

    Attributes:
        failures: in a row, up to now.
        until_s: it is not tried before.
    """

    failures: int = 0
    until_s: float = -inf

    def after(
        self, well: bool, now: float, rng: RandomLike, base_s: float = 0.1, cap_s: float = 5.0
    ) -> Rest:
        """It was tried: one that does well is tried whenever there is cause; see `delay_s`."""
        if well:
            return Rest()
        failures = self.failures + 1
        return Rest(failures, now + delay_s(failures, rng, base_s, cap_s))


def next_s(rests: Iterable[Rest], now: float, within_s: float) -> float:
    """Seconds until one of those that have failed is tried again; at most `within_s`."""
    waits = (max(0.0, rest.until_s - now) for rest in rests if rest.failures)
    return min([within_s, *waits])
