"""Waits before retries: exponential backoff with full jitter.

The wait is random, up to a ceiling that doubles with each failure until it reaches a cap. So
clients that lost a server at the same moment do not return at the same moment. A caller without
competitors can wait for the ceiling itself (`ceiling_s`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

#: Any practical ceiling has reached its cap after this many doublings.
_MAX_DOUBLINGS = 60


class RandomLike(Protocol):
    """Source of random numbers, such as `random.Random` or the module `random`."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


def ceiling_s(attempt: int, base_s: float, cap_s: float) -> float:
    """Return min(cap_s, base_s * 2 ** attempt), the longest wait after failure `attempt` + 1.

    Raises:
        ValueError: `attempt`, `base_s` or `cap_s` is negative.
    """
    if attempt < 0 or base_s < 0 or cap_s < 0:
        raise ValueError(
            f"attempt, base_s and cap_s must not be negative, not {attempt}, {base_s}, {cap_s}"
        )
    return min(cap_s, base_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))


def delay_s(
    attempt: int, rng: RandomLike, base_s: float = 0.1, cap_s: float = 5.0, min_share: float = 0.0
) -> float:
    """Return a random wait from `min_share * ceiling_s` to `ceiling_s`; `min_share` is 0 to 1."""
    return ceiling_s(attempt, base_s, cap_s) * (min_share + (1 - min_share) * rng.random())


def retry_s(failures: int, rng: RandomLike, base_s: float = 0.1, cap_s: float = 5.0) -> float:
    """Return `delay_s`, or 0 for the first retry.

    Args:
        failures: consecutive failures before the latest one.
        rng: jitters the retries.
        base_s: see `ceiling_s`.
        cap_s: see `ceiling_s`.
    """
    return delay_s(failures, rng, base_s, cap_s) if failures else 0.0


@dataclass(frozen=True, slots=True)
class RetryPause:
    """Pause before the next attempt of something that is retried.

    Attributes:
        failures: consecutive failures.
        until_s: end of the pause.
    """

    failures: int = 0
    until_s: float = -inf

    def failed(
        self, now: float, rng: RandomLike, base_s: float, cap_s: float, min_share: float = 0.0
    ) -> RetryPause:
        """Return the pause after another failure; see `delay_s`."""
        until_s = now + delay_s(self.failures, rng, base_s, cap_s, min_share)
        return RetryPause(self.failures + 1, until_s)


def next_retry_s(pauses: Iterable[RetryPause], now: float, within_s: float) -> float:
    """Return the seconds until the earliest retry, at most `within_s`."""
    waits = (max(0.0, pause.until_s - now) for pause in pauses if pause.failures)
    return min([within_s, *waits])
