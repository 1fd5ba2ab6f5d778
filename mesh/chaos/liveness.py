"""When a student had a healthy teacher, and how long nothing came to it all the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...proto.arena import Array
from .deceit import lies
from .faults import BY_NAME, Whom
from .trace import Done, Figures, RunTrace

#: Time is looked at in steps of this length.
STEP_S = 0.1
#: Figures older than this say nothing about now.
FRESH_S = 1.0
#: When so many teachers as there are students, and all that they share, were unharmed for so long,
#: each student is owed one, whatever its reader believes: some leases, and the pause before a lost
#: teacher is asked again.
OWED_AFTER_S = 12.0


@dataclass(frozen=True, slots=True)
class Pause:
    """The longest time in which nothing came though a teacher was healthy.

    Attributes:
        seconds: how long.
        began_s: since when.
        next_id: the id that came next, or was due.
        healthy: teachers that were healthy meanwhile; none: the student was owed one.
        covered_s: for how long the student had a healthy teacher, in the whole run.
    """

    seconds: float
    began_s: float
    next_id: int
    healthy: tuple[str, ...]
    covered_s: float


def harmed(done: Done) -> tuple[float, float]:
    """From when until when a fault harmed its target."""
    return done.at_s, math.inf if done.healed_s is None else done.healed_s


def longest_pause(trace: RunTrace, student: str) -> Pause:
    """Looks at every step between two deliveries, from the first one to the end.

    A teacher is healthy for a student while its reader sends to it and nothing harms it. Time in
    which the machine stood still counts for nobody.
    """
    seen = trace.students[student]
    times = np.arange(seen.began_s, max(seen.began_s, seen.ended_s), STEP_S)
    by_teacher = {
        name: _sends_to(seen.figures, name, times) & ~_within(times, trace, name)
        for name in trace.teachers
    }
    healthy = _owed(trace, times)
    for mask in by_teacher.values():
        healthy |= mask
    for begin, end in trace.stalls:
        healthy &= ~((times >= begin) & (times < end))
    came = np.unique(seen.samples["at_s"])
    # Steps of one number lie between the same two deliveries.
    after = np.searchsorted(came, times, side="right")
    best, start = _longest_run(healthy, after)
    around = slice(start, start + best)
    return Pause(
        seconds=best * STEP_S,
        began_s=float(times[start]) if best else 0.0,
        next_id=int(np.searchsorted(seen.samples["at_s"], times[start], side="right"))
        if best
        else 0,
        healthy=tuple(name for name, mask in by_teacher.items() if mask[around].any()),
        covered_s=float(healthy.sum()) * STEP_S,
    )


def _longest_run(mask: Array, groups: Array) -> tuple[int, int]:
    """Length and start of the longest run of true steps within one group."""
    if not len(mask):
        return 0, 0
    breaks = np.flatnonzero((mask[1:] != mask[:-1]) | (groups[1:] != groups[:-1])) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [len(mask)]))) * mask[starts]
    at = int(np.argmax(lengths))
    return int(lengths[at]), int(starts[at])


def _sends_to(figures: tuple[Figures, ...], teacher: str, times: Array) -> Array:
    """At each time, whether the latest figures, if they are fresh, name the teacher."""
    if not figures:
        return np.zeros(len(times), bool)
    told = np.array([one.at_s for one in figures])
    named = np.array([teacher in one.teachers for one in figures])
    latest = np.searchsorted(told, times, side="right") - 1
    fresh = (latest >= 0) & (times - told[latest] <= FRESH_S)
    return np.asarray(named[latest] & fresh)


def _within(times: Array, trace: RunTrace, target: str | None, after_s: float = 0.0) -> Array:
    """At each time, whether a fault harms `target`, or did shortly before; None: what all share."""
    mask = np.zeros(len(times), bool)
    for done in trace.faults:
        control = BY_NAME[done.fault.kind].whom is Whom.CONTROL
        if not done.skipped and (control if target is None else done.fault.target == target):
            begin, end = harmed(done)
            mask |= (times >= begin) & (times < end + after_s)
    return mask


def _owed(trace: RunTrace, times: Array) -> Array:
    liars = {lie.fault.target for lie in lies(trace)}  # a reader may do without them for minutes
    honest = [name for name in trace.teachers if name not in liars]
    well = [~_within(times, trace, name, OWED_AFTER_S) for name in honest]
    shared = ~_within(times, trace, None, OWED_AFTER_S)
    enough = np.sum(well, axis=0, initial=0) >= len(trace.students)
    return np.asarray(enough & shared & (times >= OWED_AFTER_S))
