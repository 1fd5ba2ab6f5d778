"""How many rows a request to a teacher has under `teacher_batch_size="auto"`.

A device labels more rows per second in larger requests, up to where it is full; from there on they
only take longer. So the smallest size is sought that gives the rate: over a ladder of powers of
two, by the device seconds that the teacher's answers name (`climbing`). Bounds are what the model
takes at most, and how long one request may keep a device: the loss of a teacher loses that much,
and the head of the line waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from . import climbing

#: A request below this part of its size, because no more rows waited, says nothing about the size.
FILLED = 0.9
#: Rows of the largest request that is tried.
LARGEST = 1024


@dataclass(frozen=True, slots=True)
class SizeConfig:
    """Bounds of the size of a request.

    Attributes:
        most_rows: what the model takes at most; None: it does not say.
        longest_s: device time that one request may take.
        rule: how is climbed: over powers of two, and the model's own greatest size.

    Raises:
        ValueError: a bound that makes no sense.
    """

    most_rows: int | None = None
    longest_s: float = 0.5
    rule: climbing.ClimbRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.most_rows is not None and self.most_rows < 1) or not 0 < self.longest_s < inf:
            raise ValueError(f"needs at least 1 row and a time above 0 s: {self}")
        most = min(self.most_rows or LARGEST, LARGEST)
        ladder = [2**power for power in range(most.bit_length()) if 2**power < most]
        object.__setattr__(self, "rule", climbing.ClimbRule((*ladder, most)))


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The size of the requests to one teacher."""

    climb: climbing.Climb


def start(batch_rows: int, config: SizeConfig, now: float) -> RequestSize:
    """Begin near the rows of the student's own batch."""
    return RequestSize(climbing.start(batch_rows, config.rule, now))


def rows(size: RequestSize, config: SizeConfig) -> int:
    """Most rows of a request now."""
    return climbing.setting(size.climb, config.rule)


def answered(
    size: RequestSize, asked: int, used: int, device_s: float, now: float, config: SizeConfig
) -> RequestSize:
    """An answer has come.

    Args:
        size: as it was.
        asked: most rows that a request could have when this one was sent.
        used: rows that it had (>= 1).
        device_s: seconds that the device worked on it; <= 0: it does not say.
        now: seconds of a clock that does not go back.
        config: the bounds, the same at each call.
    """
    climb = climbing.look(size.climb, now, config.rule)
    if device_s > 0 and used >= FILLED * asked:
        seconds_per_row = device_s / used
        most = int(min(config.longest_s / seconds_per_row, config.rule.ladder[-1]))
        climb = climbing.measured(climb, asked, seconds_per_row, now, config.rule, most)
    return RequestSize(climb)
