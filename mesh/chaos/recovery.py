"""How long after a fault was taken away the mesh was as if it had not been."""

from __future__ import annotations

import bisect
import math

import numpy as np

from .faults import BY_NAME, Whom
from .liveness import harmed
from .trace import Done, Figures, RunTrace, Seen, Snapshot


def recovery_s(trace: RunTrace, done: Done) -> float | None:
    """Seconds from the end of a fault until all was well again; None: not in this run.

    Well is: every student has been given something since, and

    - a teacher has its lease, and every student that it is assigned to sends to it;
    - a teacher that was there for a while is gone;
    - a killed engine has a successor that sends to somebody;
    - after manager or Redis: every student has its lease and teachers, and every teacher that
      nothing else harms has its lease.
    """
    if done.healed_s is None:
        return None
    first = bisect.bisect_left(trace.snapshots, done.healed_s, key=lambda one: one.at_s)
    for snapshot in trace.snapshots[first:]:
        if _given_since(trace, done.healed_s, snapshot.at_s) and _well(trace, done, snapshot):
            return snapshot.at_s - done.healed_s
    return None


def not_whole(trace: RunTrace) -> list[str]:
    """In words, what is missing at the end: leases, or teachers that students send to."""
    if not trace.snapshots:
        return ["nobody ever looked"]
    last = trace.snapshots[-1]
    missing = [f"{name} has no lease" for name in trace.teachers if name not in last.teachers]
    over_s = max((one.healed_s or 0.0 for one in trace.faults), default=0.0)
    for name, seen in trace.students.items():
        figures = _at(seen, math.inf)
        if name not in last.students:
            missing.append(f"{name} has no lease")
        if not last.assigned.get(name):
            missing.append(f"{name} has no teacher assigned")
        if figures is None or not figures.teachers:
            missing.append(f"{name} sends to no teacher: {figures and figures.waiting_for}")
        if not (seen.samples["at_s"] > over_s).any():
            missing.append(f"{name} was given nothing since the last fault was over")
    return missing


def _given_since(trace: RunTrace, since_s: float, until_s: float) -> bool:
    for seen in trace.students.values():
        times = seen.samples["at_s"]
        at = int(np.searchsorted(times, since_s, side="right"))
        if at >= len(times) or times[at] > until_s:
            return False
    return True


def _well(trace: RunTrace, done: Done, snapshot: Snapshot) -> bool:
    target = done.fault.target
    told = _told_since(trace, done, snapshot.at_s)
    match BY_NAME[done.fault.kind].whom:
        case Whom.TEACHER:
            return target in snapshot.teachers and all(
                figures is not None and target in figures.teachers
                for name, figures in told.items()
                if target in snapshot.assigned.get(name, ())
            )
        case Whom.GUEST:
            return target not in snapshot.teachers
        case Whom.STUDENT:
            former, now = _at(trace.students[target], done.at_s), told[target]
            killed = None if former is None else former.engine_pid
            return now is not None and now.engine_pid != killed and bool(now.teachers)
        case Whom.CONTROL:
            return (
                set(trace.students) <= snapshot.students
                and all(snapshot.assigned.get(name) for name in trace.students)
                and _unharmed(trace, snapshot.at_s) <= snapshot.teachers
            )


def _told_since(trace: RunTrace, done: Done, at_s: float) -> dict[str, Figures | None]:
    """By student, what it told last before `at_s`, if that was since the fault was over."""
    told = {name: _at(seen, at_s) for name, seen in trace.students.items()}
    since_s = done.healed_s or 0.0
    return {name: one if one and one.at_s >= since_s else None for name, one in told.items()}


def _at(seen: Seen, at_s: float) -> Figures | None:
    index = bisect.bisect_right(seen.figures, at_s, key=lambda one: one.at_s)
    return seen.figures[index - 1] if index else None


def _unharmed(trace: RunTrace, at_s: float) -> set[str]:
    struck = {
        done.fault.target
        for done in trace.faults
        if not done.skipped and harmed(done)[0] <= at_s < harmed(done)[1]
    }
    return set(trace.teachers) - struck
