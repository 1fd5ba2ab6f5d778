"""How long to wait before trying again: exponential, with full jitter.

The wait is drawn evenly between 0 and a ceiling that doubles with each failure, so that clients who
lost the same server at the same moment do not come back at the same moment. What is not shared, so
that nobody else comes back to it, waits for the ceiling itself.
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


def ceiling_s(attempt: int, base_s: float, cap_s: float) -> float:
    """Most seconds to wait after `attempt` failures: min(cap_s, base_s * 2 ** attempt).

    Raises:
        ValueError: `attempt`, `base_s` or `cap_s` is negative.
    """
    if attempt < 0 or base_s < 0 or cap_s < 0:
        raise ValueError(f"nothing negative: attempt {attempt}, base {base_s} s, cap {cap_s} s")
    return min(cap_s, base_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))


def delay_s(
    attempt: int, rng: RandomLike, base_s: float = 0.1, cap_s: float = 5.0, sure: float = 0.0
) -> float:
    """Seconds to wait after `attempt` failures: below `ceiling_s`, and at least `sure` of it."""
    return ceiling_s(attempt, base_s, cap_s) * (sure + (1 - sure) * rng.random())


def retry_s(failures: int, rng: RandomLike, base_s: float = 0.1, cap_s: float = 5.0) -> float:
    """The same, where the first retry is made at once.

    Args:
        failures: in a row, before the latest.
        rng: scatters the retries.
        base_s: as of `ceiling_s`.
        cap_s: as of `ceiling_s`.
    """
    return delay_s(failures, rng, base_s, cap_s) if failures else 0.0


@dataclass(frozen=True, slots=True)
class RetryPause:
    """How long one of several that are tried again and again is left alone.

    Attributes:
        failures: in a row, up to now.
        until_s: it is not tried before.
    """

    failures: int = 0
    until_s: float = -inf

    def failed(
        self, now: float, rng: RandomLike, base_s: float, cap_s: float, sure: float = 0.0
    ) -> RetryPause:
        """It was tried in vain once more; see `delay_s`. One that does well begins anew."""
        until_s = now + delay_s(self.failures, rng, base_s, cap_s, sure)
        return RetryPause(self.failures + 1, until_s)


def next_retry_s(rests: Iterable[RetryPause], now: float, within_s: float) -> float:
    """Seconds until one of those that have failed is tried again; at most `within_s`."""
    waits = (max(0.0, rest.until_s - now) for rest in rests if rest.failures)
    return min([within_s, *waits])
