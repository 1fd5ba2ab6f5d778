"""Dynamic batching: which requests of different callers go to a device together, and when.

Requests are merged only with others of their shape (input names, dtypes, trailing dimensions), in
the order in which they came. A batch goes as soon as a device has room and

* its samples are one of the preferred sizes, or
* the next request would not fit under the largest size, or
* its first request has waited for the longest delay.

Of several batches that may go, the one whose first request came first goes first, so that no shape
waits for ever behind another. One request is never cut; one that alone is above the largest size
goes alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .lanes import Lane, soonest


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How requests are merged.

    Attributes:
        max_samples: of one batch; 0: nothing is merged, each request goes alone and at once.
        max_delay_s: longest wait for others while a device has room.
        preferred: sizes in samples that go without waiting for more.

    Raises:
        ValueError: a number is negative or not finite, or a preferred size is above the largest.
    """

    max_samples: int = 0
    max_delay_s: float = 0.0
    preferred: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_samples < 0 or not 0 <= self.max_delay_s < math.inf:
            raise ValueError(f"sizes and delays are finite and at least 0, not {self}")
        if not all(0 < size <= self.max_samples for size in self.preferred):
            raise ValueError(
                f"preferred sizes are from 1 to {self.max_samples}, not {sorted(self.preferred)}"
            )


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that waits.

    Attributes:
        number: grows with each request.
        shape: requests are merged only where it is equal.
        samples: rows of its inputs.
        arrived_s: when it came.
        deadline_s: from then on nobody wants its answer any more.
    """

    number: int
    shape: Hashable
    samples: int
    arrived_s: float
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that go to a lane together: its index, and their numbers in order."""

    lane: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again.

    Attributes:
        batches: to be handed to their lanes, in this order.
        expired: requests to be answered that their time is over.
        look_again_s: when time alone will change something; infinity: an event must come first.
    """

    batches: tuple[Batch, ...]
    expired: tuple[int, ...]
    look_again_s: float


def decide(
    rule: BatchRule, waiting: Sequence[Waiting], lanes: Sequence[Lane], now: float
) -> Decision:
    """Which of `waiting`, in the order in which they came, go now, and to which of `lanes`."""
    live = [request for request in waiting if request.deadline_s > now]
    expired = tuple(request.number for request in waiting if request.deadline_s <= now)
    lines = _lines(rule, live)
    lanes, batches = list(lanes), []
    while any(lane.room > 0 for lane in lanes):
        going = [(line, count) for line in lines if (count := _ready(rule, line, now))]
        if not going:
            break
        line, count = min(going, key=lambda ready: ready[0][0].number)
        samples = sum(request.samples for request in line[:count])
        index = soonest(lanes, samples)
        assert index is not None  # a lane has room
        batches.append(Batch(index, tuple(request.number for request in line[:count])))
        lanes[index] = lanes[index].given(samples)
        del line[:count]
    has_room = any(lane.room > 0 for lane in lanes)
    left = [line for line in lines if line]
    moments = [request.deadline_s for line in left for request in line]
    if has_room:
        moments += [line[0].arrived_s + rule.max_delay_s for line in left]
    return Decision(tuple(batches), expired, min(moments, default=math.inf))


def _lines(rule: BatchRule, live: Sequence[Waiting]) -> list[list[Waiting]]:
    """Requests that may be merged with each other, each line in order."""
    if not rule.max_samples:
        return [[request] for request in live]
    by_shape: dict[Hashable, list[Waiting]] = {}
    for request in live:
        by_shape.setdefault(request.shape, []).append(request)
    return list(by_shape.values())


def _ready(rule: BatchRule, line: Sequence[Waiting], now: float) -> int:
    """How many requests from the head of `line` go now as one batch; 0: they wait for more."""
    if not line:
        return 0
    fit, samples, preferred = 0, 0, 0
    for request in line:
        if fit and samples + request.samples > rule.max_samples:
            break
        fit, samples = fit + 1, samples + request.samples
        if samples in rule.preferred:
            preferred = fit
    if preferred:
        return preferred
    is_full = fit < len(line) or samples >= rule.max_samples
    return fit if is_full or now >= line[0].arrived_s + rule.max_delay_s else 0
