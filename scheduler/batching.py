"""How a teacher fills its devices: what goes together, where and when, in pieces of which size.

*Dynamic batching.* Requests of different callers go to a device together only with others of their
shape (input names, dtypes, trailing dimensions), in the order in which they came. A batch goes as
soon as a device has room and

* its samples are one of the preferred sizes, or
* the next request would not fit under the largest size, or
* its first request has waited for the longest delay.

Of several batches that may go, the one whose first request came first goes first, so that no shape
waits for ever behind another. One request is never cut; one that alone is above the largest size
goes alone.

*Lanes* are the devices of one teacher as its dispatcher sees them: one device each, with the jobs
that were handed to it. It holds at least two at once: while the device works on the first, the
second already lies in its memory.

*Micro-batches*: which size a device is fastest at. The sizes are tried from the smallest up, for as
long as the next may still be faster. Then those that may be the fastest take turns, so that
whatever slows the machine down for a while slows all of them. Lower quartiles are compared: what
gets in the way makes a run longer, never shorter.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DeviceLane:
    """One device.

    Attributes:
        room: jobs that may be handed to it now; 0 while it restarts.
        samples: handed to it and not answered yet.
        t_t_s: seconds per sample (> 0).
    """

    room: int
    samples: int
    t_t_s: float

    def finish_s(self, samples: int) -> float:
        """Seconds until it would be done with `samples` more."""
        return (self.samples + samples) * self.t_t_s

    def given(self, samples: int) -> DeviceLane:
        """The lane once it was handed a job of `samples`."""
        return replace(self, room=self.room - 1, samples=self.samples + samples)


def soonest(lanes: Sequence[DeviceLane], samples: int) -> int | None:
    """The index of the lane with room that would finish `samples` first; None: no lane has room.

    Of equals it is the first. A lane without room is not waited for, however fast it is: a device
    that can work shall work.
    """
    open_lanes = [index for index, lane in enumerate(lanes) if lane.room > 0]
    return min(open_lanes, key=lambda index: lanes[index].finish_s(samples), default=None)


def promise_s(now: float, promised: float, interval_s: float, slots: int) -> float:
    """When one that is refused now should come back: there will likely be room then.

    Those who are refused one after another are told times one after another, so that they do not
    all come back at the first free slot.

    Args:
        now: seconds.
        promised: what the one before was told, on the same clock.
        interval_s: between two slots that become free.
        slots: after as many intervals all that is here now has gone, and nobody is told to wait
            longer.
    """
    return min(max(now, promised) + interval_s, now + slots * interval_s)


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
class WaitingRequest:
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
class DeviceBatch:
    """Requests that go to a lane together: its index, and their numbers in order."""

    lane: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchingDecision:
    """What to do now, and when to look again.

    Attributes:
        batches: to be handed to their lanes, in this order.
        expired: requests to be answered that their time is over.
        look_again_s: when time alone will change something; infinity: an event must come first.
    """

    batches: tuple[DeviceBatch, ...]
    expired: tuple[int, ...]
    look_again_s: float


def decide(
    rule: BatchRule, waiting: Sequence[WaitingRequest], lanes: Sequence[DeviceLane], now: float
) -> BatchingDecision:
    """Which of `waiting`, in the order in which they came, go now, and to which of `lanes`."""
    live = [request for request in waiting if request.deadline_s > now]
    expired = tuple(request.number for request in waiting if request.deadline_s <= now)
    lines = _lines(rule, live)
    lanes, batches = list(lanes), []
    room = sum(lane.room for lane in lanes if lane.room > 0)
    while room > 0 and lines:
        going = [(line, count) for line in lines if (count := _ready(rule, line, now))]
        if not going:
            break
        line, count = min(going, key=lambda ready: ready[0][0].number)
        samples = sum(request.samples for request in line[:count])
        index = soonest(lanes, samples)
        assert index is not None  # a lane has room
        room -= 1
        batches.append(DeviceBatch(index, tuple(request.number for request in line[:count])))
        lanes[index] = lanes[index].given(samples)
        del line[:count]
        if not line:
            lines.remove(line)
    moments = [request.deadline_s for line in lines for request in line]
    if room > 0:
        moments += [line[0].arrived_s + rule.max_delay_s for line in lines]
    return BatchingDecision(tuple(batches), expired, min(moments, default=math.inf))


def _lines(rule: BatchRule, live: Sequence[WaitingRequest]) -> list[list[WaitingRequest]]:
    """Requests that may be merged with each other, each line in order."""
    if not rule.max_samples:
        return [[request] for request in live]
    by_shape: dict[Hashable, list[WaitingRequest]] = {}
    for request in live:
        by_shape.setdefault(request.shape, []).append(request)
    return list(by_shape.values())


def _ready(rule: BatchRule, line: Sequence[WaitingRequest], now: float) -> int:
    """How many requests from the head of `line` go now as one batch; 0: they wait for more."""
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


#: A size's seconds per sample against the best so far: above it is out, by few runs and by more.
_OUT, _OUT_LATER = 1.3, 1.1
#: Runs after which a size can be out, and after which the closer limit holds.
_LOOK_RUNS, _LATER_RUNS = 5, 25
#: Runs that are enough on a quiet machine.
RUNS = 31
#: Sizes so close to the best are equal, and the smallest of them is chosen: it needs least memory.
_TIE = 1.01

RunTimes = Mapping[int, Sequence[float]]


def next_size(
    times: RunTimes, sizes: Sequence[int], longest_s: float, runs: int = RUNS
) -> int | None:
    """The size to time next.

    Args:
        times: the seconds of each run so far, by size.
        sizes: candidates, ascending.
        longest_s: a size that would likely run longer is not tried.
        runs: of each size that may be the fastest, where there are several.

    Returns:
        None when enough is known.
    """
    tried = [size for size in sizes if times.get(size)]
    if not tried:
        return sizes[0]
    for size in tried:
        if len(times[size]) < _LOOK_RUNS:
            return size
    cost = {size: per_sample_s(size, times[size]) for size in tried}
    best = min(cost.values())
    larger = [size for size in sizes if size > tried[-1]]
    falling_behind = len(tried) > 1 and all(cost[size] > _OUT * best for size in tried[-2:])
    if larger and not falling_behind and larger[0] * best <= longest_s:
        return larger[0]
    limits = {size: _OUT if len(times[size]) < _LATER_RUNS else _OUT_LATER for size in tried}
    rivals = [size for size in tried if cost[size] <= limits[size] * best]
    fewest = min(rivals, key=lambda size: len(times[size]))
    return fewest if len(rivals) > 1 and len(times[fewest]) < runs else None


def choose(times: RunTimes) -> int:
    """The size of the least time per sample; raises ValueError where nothing was timed."""
    cost = {size: per_sample_s(size, runs) for size, runs in times.items() if runs}
    best = min(cost.values())
    return min(size for size in cost if cost[size] <= _TIE * best)


def per_sample_s(size: int, runs: Sequence[float]) -> float:
    """Seconds per sample: the lower quartile of runs of `size` samples each."""
    return sorted(runs)[(len(runs) - 1) // 4] / size
