"""How much one peer may ask at once: a token bucket, as a value and a function.

A bucket holds at most `burst` tokens and gains `per_second` of them each second. What is asked for
takes tokens out, or is refused when too few are left: over any t seconds, no more than
`burst + per_second * t` pass, and whoever keeps below the rate is never refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit that short bursts may exceed.

    Attributes:
        per_second: what passes in the long run.
        burst: what passes at once, after a pause.
    """

    per_second: float
    burst: float

    def __post_init__(self) -> None:
        if not (0 < self.per_second < math.inf and 1 <= self.burst < math.inf):
            raise ValueError(f"a rate is above 0 and its burst at least 1, not {self}")


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left for one peer.

    Attributes:
        tokens: how much may pass at `at`.
        at: when that was so, in seconds.
    """

    tokens: float
    at: float


def full(rate: Rate, now: float) -> Bucket:
    """The bucket of a peer that has asked for nothing yet."""
    return Bucket(rate.burst, now)


def take(rate: Rate, bucket: Bucket, now: float, cost: float = 1.0) -> tuple[Bucket, bool]:
    """Let something pass, or not.

    Args:
        rate: the limit.
        bucket: what was left.
        now: seconds; a clock that goes back adds nothing.
        cost: tokens that it takes.

    Returns:
        What is left now, and whether it passes. What does not pass takes nothing.
    """
    gained = max(0.0, now - bucket.at) * rate.per_second
    tokens = min(rate.burst, bucket.tokens + gained)
    passes = tokens >= cost
    return Bucket(tokens - cost if passes else tokens, max(now, bucket.at)), passes
