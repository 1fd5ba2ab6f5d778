"""Invariants of a chaos run. For each, a pure function checks the trace of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...proto.arena import Array
from .liveness import longest_pause, missing_at_end
from .run_trace import (
    CALL_TIMEOUT_S,
    STATS_INTERVAL_S,
    FaultRecord,
    RunTrace,
    StudentTrace,
)
from .synthetic_samples import expected_digest_of_call, expected_digests

#: Seconds for which a new process may still load modules.
WARM_UP_S = 8.0
#: Seconds for which a new engine may grow: its log of events fills, and each kind of fault
#: allocates once. Measured: it grows for 40 to 90 s, then stays within 1 MiB for minutes.
ENGINE_WARM_UP_S = 100.0
#: Least number of measurements, and of pairs of them, for a slope.
MIN_POINTS = 10
#: Least seconds between the measurements of a pair: the slope of a closer pair is mostly noise.
MIN_DISTANCE_S = 8.0
#: Largest slopes, in bytes per second, that do not count as growth. A student receives 1000 KiB/s,
#: 200 of them labels. Caches that fill may cause slopes up to the first limit in a run of a minute,
#: or in the short life of an engine. The limit of the trainer alone falls with the length of the
#: run: to the second limit in a run of five minutes.
MAX_GROWTH = 100 << 10
MAX_GROWTH_OF_LONG_RUN = 20 << 10
#: Longest permitted pause of a student's stream while a teacher is healthy.
MAX_PAUSE_S = 3.0
#: Minimum share of the run in which a student has a healthy teacher; with less, the check of its
#: pauses covers too little.
MIN_COVERED_SHARE = 0.5
#: Seconds of use, added up over the run, after which a reader must have ejected a teacher that
#: refuses every sample. Added up, as a new engine does not know what the killed engine observed.
MAX_REFUSING_S = 30.0
#: Greatest share of a student's calls that may fail.
MAX_FAILED_CALLS = 0.001
#: Seconds beyond its timeout that a call may take.
CALL_SLACK_S = 2.0
#: Exit code of a node with settings that differ from those of the job.
EXIT_REFUSED = 2
#: Seconds by which statistics, and the batch in the training loop, lag behind the reader.
STATS_LAG_S = 0.6
#: Seconds after a fault was healed within which undetected wrong labels leave the buffer.
BUFFER_DRAINED_S = 5.0
_CHUNK_ROWS = 1 << 8
_MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """Result of checking one invariant.

    Attributes:
        name: name of the invariant.
        checked: what was checked, as text.
        broken: descriptions of violations; empty if the invariant holds.
    """

    name: str
    checked: str
    broken: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        return not self.broken


def check_invariants(trace: RunTrace, *, interrupted: bool = False) -> tuple[InvariantResult, ...]:
    """Check every invariant, in the order of the report.

    Args:
        trace: trace of the run.
        interrupted: the run was ended early, so the mesh had no time to recover.
    """
    checks = (
        ids_in_order,
        labels_correct,
        calls_answered,
        honest_teachers_kept,
        misconfigured_teachers_unused,
        pauses_bounded,
        memory_bounded,
        *(() if interrupted else (mesh_recovered,)),
        students_exit_cleanly,
        wrong_seed_refused,
        nothing_left_behind,
    )
    return tuple(check(trace) for check in checks)


def ids_in_order(trace: RunTrace) -> InvariantResult:
    """Every student receives every id once, in order."""
    broken = []
    for name, student_trace in trace.students.items():
        ids = student_trace.samples["id"]
        wrong = np.flatnonzero(ids != np.arange(len(ids), dtype=np.uint64))
        if len(wrong):
            at = int(wrong[0])
            broken.append(
                f"{name}: id {ids[at]} arrived at {_arrival(student_trace, at)} instead of id {at}"
                f" ({len(ids) - len(np.unique(ids))} ids arrived twice)"
            )
        if not len(ids):
            broken.append(f"{name}: nothing arrived")
    return InvariantResult("each id once, in order", _sample_counts(trace), tuple(broken))


def labels_correct(trace: RunTrace) -> InvariantResult:
    """Samples and labels, also those of calls, are correct, except for undetected wrong labels."""
    broken, undetected = [], 0
    for name, student_trace in trace.students.items():
        wrong_rows = np.array(
            [at for chunk in _wrong_rows(student_trace) for at in chunk], np.int64
        )
        excused = _may_be_undetected(
            trace, student_trace, student_trace.samples["at_s"][wrong_rows]
        )
        undetected += int(excused.sum())
        wrong = wrong_rows[~excused]
        if len(wrong):
            ids = student_trace.samples["id"]
            examples = ", ".join(
                f"id {ids[at]} at {_arrival(student_trace, at)}" for at in wrong[:_MAX_EXAMPLES]
            )
            broken.append(f"{name}: {len(wrong)} samples, the first: {examples}")
        broken += _wrong_calls(trace, name, student_trace)
    note = f"; {undetected} with wrong labels that were not detected yet" if undetected else ""
    return InvariantResult(
        "labels match their samples", _sample_counts(trace) + note, tuple(broken)
    )


def _wrong_calls(trace: RunTrace, name: str, student_trace: StudentTrace) -> list[str]:
    calls = student_trace.calls
    wrong = [
        at
        for at in np.flatnonzero(calls["digest"])
        if calls["digest"][at] != expected_digest_of_call(calls["id"][at], calls["rows"][at])
    ]
    excused = _may_be_undetected(trace, student_trace, calls["at_s"][wrong])
    if excused.all():
        return []
    at_s = calls["at_s"][wrong][~excused][0]
    return [f"{name}: {(~excused).sum()} calls got wrong labels, first at {at_s:.1f} s"]


def calls_answered(trace: RunTrace) -> InvariantResult:
    """Nearly all calls get labels, and the rest fail by their deadlines."""
    broken, counts, failures = [], [], 0
    for name, student_trace in trace.students.items():
        calls = student_trace.calls
        failed = calls["digest"] == 0
        counts.append(f"{name} {len(calls)}")
        failures += int(failed.sum())
        if failed.sum() > MAX_FAILED_CALLS * len(calls):
            at_s = calls["at_s"][failed][0]
            broken.append(f"{name}: {failed.sum()} calls failed, the first at {at_s:.1f} s")
        late = calls["took_s"] > CALL_TIMEOUT_S + CALL_SLACK_S
        if late.any():
            at_s, took_s = calls[late][["at_s", "took_s"]][0]
            broken.append(
                f"{name}: {late.sum()} calls took too long, {took_s:.1f} s at {at_s:.1f} s"
            )
    checked = f"calls: {', '.join(counts)}; {failures} failed"
    return InvariantResult("calls get their labels in time", checked, tuple(broken))


def honest_teachers_kept(trace: RunTrace) -> InvariantResult:
    """No reader ejects a teacher for lying before a fault makes that teacher lie."""
    lied_s = {one.fault.target: one.at_s for one in reversed(trace.wrong_label_faults)}
    broken = []
    liars: set[str] = set()
    for student, student_trace in trace.students.items():
        ejected_s = {name: one.at_s for one in reversed(student_trace.stats) for name in one.liars}
        liars |= ejected_s.keys()
        honest = [
            f"{name} at {at_s:.1f} s"
            for name, at_s in sorted(ejected_s.items())
            if at_s < lied_s.get(name, np.inf)
        ]
        if honest:
            broken.append(f"{student}: {', '.join(honest)}")
    checked = f"{len(liars)} teachers ejected for lying"
    return InvariantResult("no honest teacher is ejected for lying", checked, tuple(broken))


def misconfigured_teachers_unused(trace: RunTrace) -> InvariantResult:
    """No label comes from a misconfigured teacher; readers eject those that refuse every sample."""
    present = {name for one in trace.snapshots for name in one.teachers}
    broken = [f"{name} never had a lease" for name in trace.misconfigured if name not in present]
    ejected = set()
    for name, student_trace in trace.students.items():
        used = {teacher for one in student_trace.stats for teacher in one.labelling}
        broken += [f"{name} used labels of {one}" for one in trace.misconfigured if one in used]
        for teacher in trace.refusing:
            with_teacher = [one for one in student_trace.stats if teacher in one.teachers]
            if any((teacher, "refused") in one.ejected for one in with_teacher):
                ejected.add(teacher)
            elif len(with_teacher) * STATS_INTERVAL_S > MAX_REFUSING_S:
                broken.append(
                    f"{name} had {teacher} for over {MAX_REFUSING_S:g} s and did not eject it"
                )
    checked = f"{len(ejected)} of {len(trace.refusing)} refusing teachers assigned and ejected"
    return InvariantResult("misconfigured teachers label nothing", checked, tuple(broken))


def pauses_bounded(trace: RunTrace) -> InvariantResult:
    """No stream pauses for longer than `MAX_PAUSE_S` while a teacher is healthy."""
    broken, checked = [], []
    for name, student_trace in trace.students.items():
        pause = longest_pause(trace, name)
        share = pause.covered_s / max(student_trace.ended_s - student_trace.began_s, 1e-9)
        checked.append(f"{name} {pause.covered_s:.0f} s, longest pause {pause.seconds:.1f} s")
        if pause.seconds > MAX_PAUSE_S:
            if pause.healthy:
                healthy = f"{', '.join(pause.healthy)} healthy"
            else:
                healthy = "enough healthy teachers, none of which it sent to"
            broken.append(
                f"{name}: nothing arrived for {pause.seconds:.1f} s before id {pause.next_id}, from"
                f" {pause.began_s:.1f} s on, with {healthy}"
            )
        if share < MIN_COVERED_SHARE:
            broken.append(f"{name}: had a healthy teacher for only {share:.0%} of the time")
    return InvariantResult(
        f"no pause longer than {MAX_PAUSE_S:g} s", "; ".join(checked), tuple(broken)
    )


def memory_bounded(trace: RunTrace) -> InvariantResult:
    """Memory without the buffer grows no faster than the limits, see `MAX_GROWTH`.

    The slope of trainer plus engine is measured within the life of each engine, because a new
    engine begins smaller. The slope of the trainer alone, whose PSS includes half of the buffer, is
    measured over the whole run.
    """
    broken, checked = [], []
    for name, student_trace in trace.students.items():
        points = [one for one in student_trace.stats if one.trainer_bytes and one.engine_bytes]
        first_seen = {one.engine_pid: one.at_s for one in reversed(student_trace.stats)}
        both_points = [
            (one.at_s, one.trainer_bytes + one.engine_bytes - one.volume_bytes, one.engine_pid)
            for one in points
            if one.at_s - first_seen[one.engine_pid] >= ENGINE_WARM_UP_S
        ]
        trainer_points = [
            (one.at_s, one.trainer_bytes - one.volume_bytes / 2, 0)
            for one in points
            if one.at_s - student_trace.began_s >= WARM_UP_S
        ]
        minutes = max(student_trace.ended_s - student_trace.began_s, 60.0) / 60
        for processes, slope, limit in (
            ("trainer and engine", _median_slope(both_points), MAX_GROWTH),
            (
                "trainer",
                _median_slope(trainer_points),
                max(MAX_GROWTH_OF_LONG_RUN, MAX_GROWTH / minutes),
            ),
        ):
            if slope is None:
                continue
            checked.append(f"{name} {processes} {slope / 1024:+.0f} of {limit / 1024:.0f}")
            if slope > limit:
                broken.append(f"{name}: {processes} grow by {slope / 1024:.0f} KiB/s")
    text = f"KiB/s: {', '.join(checked)}" if checked else "the run was too short"
    return InvariantResult("memory without the buffer does not grow", text, tuple(broken))


def mesh_recovered(trace: RunTrace) -> InvariantResult:
    """At the end every fault is healed, and every student is served.

    Students, and teachers that run from start to end, have leases. A reader may still avoid a
    teacher that lied or failed, if it has others.
    """
    injected = [one for one in trace.faults if not one.skipped]
    broken = [f"{_describe(one)} is not healed" for one in injected if one.healed_s is None]
    broken += [f"{_describe(one)}: {one.trouble}" for one in injected if one.trouble]
    broken += missing_at_end(trace)
    return InvariantResult("the mesh recovers", f"{len(injected)} faults", tuple(broken))


def students_exit_cleanly(trace: RunTrace) -> InvariantResult:
    """No student exits by itself or with an error, or ignores SIGTERM."""
    troubles = [
        f"{name}: {student_trace.trouble}"
        for name, student_trace in trace.students.items()
        if student_trace.trouble
    ]
    checked = f"{len(trace.students)} students"
    return InvariantResult("students exit cleanly", checked, tuple(troubles))


def wrong_seed_refused(trace: RunTrace) -> InvariantResult:
    """The elastic training refuses a node with another seed, and continues."""
    name, result = "only the node with another seed is refused", trace.training
    if result is None:
        return InvariantResult(name, "not checked: Paddle is not installed")
    broken = [f"the training {result.trouble}"] if result.trouble else []
    if result.second_exit_code != EXIT_REFUSED or "seed" not in result.second_output:
        broken.append(
            f"the second node exited with {result.second_exit_code}: {result.second_output}"
        )
    return InvariantResult(name, f"{result.steps} steps trained", tuple(broken))


def nothing_left_behind(trace: RunTrace) -> InvariantResult:
    """No process and no shared memory of the run is left."""
    return InvariantResult("nothing is left behind", "processes and shared memory", trace.leftovers)


def _may_be_undetected(trace: RunTrace, student_trace: StudentTrace, times: Array) -> Array:
    """Return for each time of arrival whether wrong labels are excused.

    The wrong labels of a fault that only comparisons reveal are excused from the start of the fault
    until the student's reader has ejected the teacher, at most until the buffer has drained after
    the fault.
    """
    mask = np.zeros(len(times), bool)
    for fault in trace.wrong_label_faults:
        end = fault.ends_s + BUFFER_DRAINED_S
        detected = (
            one.at_s + STATS_LAG_S
            for one in student_trace.stats
            if one.at_s >= fault.at_s and fault.fault.target in one.liars
        )
        mask |= (times >= fault.at_s) & (times < min(end, next(detected, np.inf)))
    return mask


def _median_slope(points: Sequence[tuple[float, float, int]]) -> float | None:
    """Return the Theil-Sen estimate of growth; None: there are too few pairs of measurements.

    It is the median slope over pairs, which is robust against steps and outliers.

    Args:
        points: time in seconds, bytes, and a number; only points with equal numbers form pairs.
    """
    if len(points) < MIN_POINTS:
        return None
    times_s, sizes, engines = np.array(points).T
    slopes = []
    for at in range(1, len(points)):
        distance_s = times_s[at] - times_s[:at]
        usable = (engines[:at] == engines[at]) & (distance_s >= MIN_DISTANCE_S)
        slopes.append((sizes[at] - sizes[:at][usable]) / distance_s[usable])
    all_slopes = np.concatenate(slopes)
    return float(np.median(all_slopes)) if len(all_slopes) >= MIN_POINTS else None


def _describe(one: FaultRecord) -> str:
    return f"{one.fault.kind} of {one.fault.target} at {one.at_s:.1f} s"


def _sample_counts(trace: RunTrace) -> str:
    counts = (
        f"{name} {len(student_trace.samples)}" for name, student_trace in trace.students.items()
    )
    return f"samples: {', '.join(counts)}"


def _wrong_rows(student_trace: StudentTrace) -> Iterator[list[int]]:
    """Yield the indices of records with wrong digests, in chunks, which bounds the memory."""
    for start in range(0, len(student_trace.samples), _CHUNK_ROWS):
        chunk = student_trace.samples[start : start + _CHUNK_ROWS]
        wrong = np.flatnonzero(chunk["digest"] != expected_digests(chunk["id"]))
        yield [start + int(at) for at in wrong]


def _arrival(student_trace: StudentTrace, at: int) -> str:
    return f"{student_trace.samples['at_s'][at]:.1f} s"
