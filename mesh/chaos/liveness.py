"""Liveness in a run's trace: pauses of a student's stream, and recovery after faults."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

from ...proto.arena import Array
from .fault_plan import KIND_BY_NAME, FaultTarget
from .run_trace import FaultRecord, MembershipSnapshot, RunTrace, StudentStats, StudentTrace

#: Resolution of the measurement of pauses.
STEP_S = 0.1
#: Age in seconds above which statistics are ignored.
MAX_STATS_AGE_S = 1.0
#: When the manager, Redis and at least one honest teacher per student have been healthy for this
#: many seconds, each student must be served, even if its reader sends to no teacher. The seconds
#: cover some lease TTLs, and the back-off before a reader tries a failed teacher again.
OWED_AFTER_S = 12.0


@dataclass(frozen=True, slots=True)
class LongestPause:
    """The longest time in which a student received nothing although a teacher was healthy.

    Attributes:
        seconds: length of the pause.
        began_s: start of the pause.
        next_id: id that arrived after the pause, or was due.
        healthy: healthy teachers that the reader was sending to; empty: it was sending to none
            although the student must be served (`OWED_AFTER_S`).
        covered_s: seconds of the whole run in which a teacher was healthy for the student.
    """

    seconds: float
    began_s: float
    next_id: int
    healthy: tuple[str, ...]
    covered_s: float


def longest_pause(trace: RunTrace, student: str) -> LongestPause:
    """Find the longest pause between two deliveries to a student, or after the last one.

    A teacher is healthy for a student while the student's reader sends to it and no fault affects
    it. Time in which each student must be served counts, too (`OWED_AFTER_S`); stalls of the
    machine do not.
    """
    student_trace = trace.students[student]
    times = np.arange(
        student_trace.began_s, max(student_trace.began_s, student_trace.ended_s), STEP_S
    )
    by_teacher = {
        name: _sends_to(student_trace.stats, name, times) & ~_affected(times, trace, name)
        for name in trace.teachers
    }
    healthy = _must_be_served(trace, times)
    for mask in by_teacher.values():
        healthy |= mask
    for begin, end in trace.stalls:
        healthy &= ~((times >= begin) & (times < end))
    sample_times = student_trace.samples["at_s"]
    arrivals = np.unique(sample_times)
    # Steps with the same number lie between the same two deliveries.
    delivery = np.searchsorted(arrivals, times, side="right")
    length, start = _longest_run(healthy, delivery)
    pause = slice(start, start + length)
    return LongestPause(
        seconds=length * STEP_S,
        began_s=float(times[start]) if length else 0.0,
        next_id=int(np.searchsorted(sample_times, times[start], "right")) if length else 0,
        healthy=tuple(name for name, mask in by_teacher.items() if mask[pause].any()),
        covered_s=float(healthy.sum()) * STEP_S,
    )


def recovery_s(trace: RunTrace, injected: FaultRecord) -> float | None:
    """Return the seconds from the healing of a fault to the recovery; None: not in this run.

    The mesh has recovered once every student has received a sample since the healing, and

    - after a fault of a teacher: it has its lease, and students with this teacher send to it;
    - after the drain of a guest: its lease is gone;
    - after the death of an engine: the new engine sends to a teacher;
    - after a fault of the manager or Redis: every student has its lease and assigned
      teachers, and every teacher that no other fault affects has its lease.
    """
    if injected.healed_s is None:
        return None
    first = bisect.bisect_left(trace.snapshots, injected.healed_s, key=lambda one: one.at_s)
    for snapshot in trace.snapshots[first:]:
        served = _all_served(trace, injected.healed_s, snapshot.at_s)
        if served and _target_recovered(trace, injected, snapshot):
            return snapshot.at_s - injected.healed_s
    return None


def missing_at_end(trace: RunTrace) -> list[str]:
    """Describe the leases, assignments and deliveries that are missing at the end of a run."""
    if not trace.snapshots:
        return ["there is no snapshot of the leases"]
    last = trace.snapshots[-1]
    missing = [f"{name} has no lease" for name in trace.teachers if name not in last.teachers]
    last_healed_s = max((one.healed_s or 0.0 for one in trace.faults), default=0.0)
    for name, student_trace in trace.students.items():
        stats = _latest_stats(student_trace, math.inf)
        if name not in last.students:
            missing.append(f"{name} has no lease")
        if not last.assigned.get(name):
            missing.append(f"{name} has no teacher assigned")
        if stats is None or not stats.teachers:
            missing.append(f"{name} sends to no teacher: {stats and stats.waiting_for}")
        if not (student_trace.samples["at_s"] > last_healed_s).any():
            missing.append(f"{name} received nothing after the last fault was healed")
    return missing


def _longest_run(mask: Array, groups: Array) -> tuple[int, int]:
    """Return length and start of the longest run of true steps within one group."""
    if not len(mask):
        return 0, 0
    breaks = np.flatnonzero((mask[1:] != mask[:-1]) | (groups[1:] != groups[:-1])) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [len(mask)]))) * mask[starts]
    at = int(np.argmax(lengths))
    return int(lengths[at]), int(starts[at])


def _sends_to(stats: tuple[StudentStats, ...], teacher: str, times: Array) -> Array:
    """Return for each time whether the latest statistics are recent and name the teacher."""
    if not stats:
        return np.zeros(len(times), bool)
    written_s = np.array([one.at_s for one in stats])
    names_teacher = np.array([teacher in one.teachers for one in stats])
    latest = np.searchsorted(written_s, times, side="right") - 1
    recent = (latest >= 0) & (times - written_s[latest] <= MAX_STATS_AGE_S)
    return np.asarray(names_teacher[latest] & recent)


def _affected(times: Array, trace: RunTrace, target: str | None, after_s: float = 0.0) -> Array:
    """Return for each time whether a fault affects `target`, or did in the last `after_s` seconds.

    Target None means the manager and Redis.
    """
    mask = np.zeros_like(times, bool)
    for one in trace.faults:
        is_control_plane = KIND_BY_NAME[one.fault.kind].target is FaultTarget.CONTROL_PLANE
        if not one.skipped and (is_control_plane if target is None else one.fault.target == target):
            mask |= (times >= one.at_s) & (times < one.ends_s + after_s)
    return mask


def _must_be_served(trace: RunTrace, times: Array) -> Array:
    """Return for each time whether every student must be served, see `OWED_AFTER_S`."""
    # After wrong labels a reader may avoid their teacher for minutes.
    liars = {one.fault.target for one in trace.wrong_label_faults}
    honest = [name for name in trace.teachers if name not in liars]
    healthy = [~_affected(times, trace, name, OWED_AFTER_S) for name in honest]
    control_plane = ~_affected(times, trace, None, OWED_AFTER_S)
    enough = np.sum(healthy, axis=0, initial=0) >= len(trace.students)
    return np.asarray(enough & control_plane & (times >= OWED_AFTER_S))


def _all_served(trace: RunTrace, since_s: float, until_s: float) -> bool:
    """Whether every student received a sample in this time."""
    for student_trace in trace.students.values():
        times = student_trace.samples["at_s"]
        at = int(np.searchsorted(times, since_s, side="right"))
        if at >= len(times) or times[at] > until_s:
            return False
    return True


def _target_recovered(trace: RunTrace, injected: FaultRecord, snapshot: MembershipSnapshot) -> bool:
    target = injected.fault.target
    latest: dict[str, StudentStats] = {}  # without those from before the healing
    for name, student_trace in trace.students.items():
        stats = _latest_stats(student_trace, snapshot.at_s)
        if stats is not None and stats.at_s >= injected.ends_s:
            latest[name] = stats
    match KIND_BY_NAME[injected.fault.kind].target:
        case FaultTarget.TEACHER:
            return target in snapshot.teachers and all(
                name in latest and target in latest[name].teachers
                for name in trace.students
                if target in snapshot.assigned.get(name, ())
            )
        case FaultTarget.GUEST:
            return target not in snapshot.teachers
        case FaultTarget.STUDENT:
            before, after = _latest_stats(trace.students[target], injected.at_s), latest.get(target)
            killed_pid = None if before is None else before.engine_pid
            return after is not None and after.engine_pid != killed_pid and bool(after.teachers)
        case FaultTarget.CONTROL_PLANE:
            return (
                set(trace.students) <= snapshot.students
                and all(snapshot.assigned.get(name) for name in trace.students)
                and all(
                    name in snapshot.teachers or _affected(np.array(snapshot.at_s), trace, name)
                    for name in trace.teachers
                )
            )


def _latest_stats(student_trace: StudentTrace, at_s: float) -> StudentStats | None:
    index = bisect.bisect_right(student_trace.stats, at_s, key=lambda one: one.at_s)
    return student_trace.stats[index - 1] if index else None
