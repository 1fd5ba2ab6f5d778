"""Batching of a teacher's requests: which go together, on which device, and in which sizes.

*Dynamic batching.* A batch has requests of one shape (input names, dtypes, trailing dimensions) in
their order of arrival. It is sent as soon as a device has room and

* its number of samples is a preferred size, or
* it has the largest size, or the next request would exceed this size, or
* its first request has waited for the longest delay.

If several batches are ready, the one with the oldest first request goes first, so no shape starves.
A request is never split; one above the largest size goes alone.

A *lane* is a device of one teacher with the batches sent to it. A lane has room for two batches:
while the device works on the first, the second is already in its memory.

A *micro-batch* has the size at which a device is fastest. Sizes are tried in ascending order, as
long as the next one may still be faster. Then the sizes that may be the fastest are run in
alternation, so that a temporary slowdown of the machine affects all of them. Lower quartiles are
compared, because disturbances only make runs longer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DeviceLane:
    """One device.

    Attributes:
        room: number of batches that it takes now; 0 while it restarts.
        samples: samples sent to it and not answered yet.
        t_t_s: seconds per sample (> 0).
    """

    room: int
    samples: int
    t_t_s: float


def soonest(lanes: Sequence[DeviceLane], samples: int) -> int | None:
    """Return the index of the lane with room that would finish `samples` first; None: no room.

    Among equal lanes it is the first. Lanes without room do not count, however fast they are: a
    free device must not idle.
    """
    best, best_s = None, math.inf
    for index, lane in enumerate(lanes):
        end_s = (lane.samples + samples) * lane.t_t_s
        if lane.room > 0 and (best is None or end_s < best_s):
            best, best_s = index, end_s
    return best


def retry_at_s(now: float, promised: float, interval_s: float, slots: int) -> float:
    """Return when a refused request should be sent again: there will likely be room then.

    Consecutive refusals get consecutive times, so that the refused requests do not all return at
    the first free slot.

    Args:
        now: seconds.
        promised: the result for the previous refusal, on the same clock.
        interval_s: mean seconds until another slot becomes free.
        slots: number of slots of the server. After `slots` intervals all present requests are done,
            so no refused request waits longer.
    """
    return min(max(now, promised) + interval_s, now + slots * interval_s)


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Settings of dynamic batching.

    Attributes:
        max_samples: largest batch in samples; 0: each request goes alone and at once.
        max_delay_s: longest wait for more requests while a device has room.
        preferred: sizes in samples that are sent without waiting for more.

    Raises:
        ValueError: a number is negative or not finite, or a preferred size is not between 1 and
            `max_samples`.
    """

    max_samples: int = 0
    max_delay_s: float = 0.0
    preferred: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_samples < 0 or not 0 <= self.max_delay_s < math.inf:
            raise ValueError(f"sizes and delays must be finite and at least 0, not {self}")
        if not all(0 < size <= self.max_samples for size in self.preferred):
            raise ValueError(
                f"preferred sizes must be from 1 to {self.max_samples},"
                f" not {sorted(self.preferred)}"
            )


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits for a device.

    Attributes:
        number: grows with each request.
        shape: only requests of equal shape are merged.
        samples: rows of its inputs.
        arrived_s: time of arrival.
        deadline_s: time from which its answer is useless; infinity: none.
    """

    number: int
    shape: Hashable
    samples: int
    arrived_s: float
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Requests sent to a device together: index of its lane, and numbers of the requests."""

    lane: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchingDecision:
    """What to do now, and when to decide again.

    Attributes:
        batches: batches to send to their lanes, in this order.
        expired: numbers of the requests past their deadline.
        look_again_s: time of the next decision if no event comes first; infinity: none is needed.
    """

    batches: tuple[DeviceBatch, ...]
    expired: tuple[int, ...]
    look_again_s: float


def decide(
    rule: BatchRule, waiting: Sequence[WaitingRequest], lanes: Sequence[DeviceLane], now: float
) -> BatchingDecision:
    """Choose the requests that go to devices now; `waiting` is in the order of arrival."""
    expired = list[int]()
    #: By shape: requests that may be merged, in order. Without merging: by number.
    queues: dict[Hashable, list[WaitingRequest]] = {}
    for request in waiting:
        if request.deadline_s > now:
            key = request.shape if rule.max_samples else request.number
            queues.setdefault(key, []).append(request)
        else:
            expired.append(request.number)
    lanes, batches = list(lanes), list[DeviceBatch]()
    room = sum([lane.room for lane in lanes if lane.room > 0])
    while room > 0:
        oldest_key, chosen = None, list[WaitingRequest]()
        for key, queue in queues.items():
            is_older = not chosen or queue[0].number < chosen[0].number
            if is_older and (count := _ready_count(rule, queue, now)):
                oldest_key, chosen = key, queue[:count]
        if not chosen:
            break
        samples, numbers = 0, list[int]()
        for request in chosen:
            samples += request.samples
            numbers.append(request.number)
        index = soonest(lanes, samples)
        assert index is not None  # a lane has room
        lane = lanes[index]
        lanes[index] = replace(lane, room=lane.room - 1, samples=lane.samples + samples)
        room -= 1
        batches.append(DeviceBatch(index, tuple(numbers)))
        del queues[oldest_key][: len(chosen)]
        if not queues[oldest_key]:
            del queues[oldest_key]
    again_s = math.inf
    for queue in queues.values():
        if room > 0:
            again_s = min(again_s, queue[0].arrived_s + rule.max_delay_s)
        for request in queue:
            again_s = min(again_s, request.deadline_s)
    return BatchingDecision(tuple(batches), tuple(expired), again_s)


def _ready_count(rule: BatchRule, queue: Sequence[WaitingRequest], now: float) -> int:
    """Return how many requests at the head of `queue` to send now as a batch; 0: wait for more."""
    fitting, samples, preferred = 0, 0, 0
    for request in queue:
        if fitting and samples + request.samples > rule.max_samples:
            break
        fitting, samples = fitting + 1, samples + request.samples
        if samples in rule.preferred:
            preferred = fitting
    if preferred:
        return preferred
    is_full = fitting < len(queue) or samples >= rule.max_samples
    return fitting if is_full or now >= queue[0].arrived_s + rule.max_delay_s else 0


#: A size is excluded if its seconds per sample exceed the best by the first factor after
#: `_FEW_RUNS` runs of the size, or by the second, stricter factor after `_MANY_RUNS` runs.
_EXCLUDED, _EXCLUDED_LATER = 1.3, 1.1
#: Runs of a size after which the first factor applies, and after which the second one does.
_FEW_RUNS, _MANY_RUNS = 5, 25
#: Number of runs of a size that suffices on a quiet machine.
RUNS = 31
#: Sizes this close to the best are equal; the smallest of them is chosen, as it needs least memory.
_TIE = 1.01

RunTimes = Mapping[int, Sequence[float]]


def next_size(
    times: RunTimes, sizes: Sequence[int], longest_s: float, runs: int = RUNS
) -> int | None:
    """Return the size to time next; None: the times suffice for `choose`.

    Args:
        times: seconds of each run so far, by size.
        sizes: candidates, ascending; the first one is always tried.
        longest_s: longest useful run; a size that would likely run longer is not tried.
        runs: number of runs of each size that may be the fastest, if there are several.
    """
    tried = [size for size in sizes if times.get(size)]
    if not tried:
        return sizes[0]
    for size in tried:
        if len(times[size]) < _FEW_RUNS:
            return size
    cost = {size: per_sample_s(size, times[size]) for size in tried}
    best = min(cost.values())
    larger = [size for size in sizes if size > tried[-1]]
    falling_behind = len(tried) > 1 and all(cost[size] > _EXCLUDED * best for size in tried[-2:])
    if larger and not falling_behind and larger[0] * best <= longest_s:
        return larger[0]
    limits = {
        size: _EXCLUDED if len(times[size]) < _MANY_RUNS else _EXCLUDED_LATER for size in tried
    }
    rivals = [size for size in tried if cost[size] <= limits[size] * best]
    least_timed = min(rivals, key=lambda size: len(times[size]))
    return least_timed if len(rivals) > 1 and len(times[least_timed]) < runs else None


def choose(times: RunTimes) -> int:
    """Return the smallest size that is within 1 % of the fastest, by time per sample.

    Raises:
        ValueError: nothing was timed.
    """
    cost = {size: per_sample_s(size, runs) for size, runs in times.items() if runs}
    best = min(cost.values())
    return min(size for size in cost if cost[size] <= _TIE * best)


def per_sample_s(size: int, runs: Sequence[float]) -> float:
    """Return the seconds per sample: the lower quartile of runs of `size` samples each."""
    return sorted(runs)[(len(runs) - 1) // 4] / size
