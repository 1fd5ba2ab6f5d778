"""What has to hold of a run, checked over its trace: pure, each promise by a function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .deceit import may_be_lies, wrongly_convicted
from .growth import TRAINER, growth
from .liveness import longest_pause
from .recovery import not_whole
from .samples import expected_digests
from .trace import FIGURES_EVERY_S, Done, RunTrace, Seen

#: While a student has a healthy teacher, something comes at least so often.
MOST_PAUSE_S = 3.0
#: Of the time that a run lasts, a student has to have had a healthy teacher for so much at least,
#: else the check of that says too little.
LEAST_SHARE = 0.5
#: Bytes that may seem to be added in each second, less the buffer. A student is given 1000 KiB/s,
#: 200 of it labels. Within the short lives of engines, and within a minute, less cannot be told
#: from what is a mere filling of caches; of a trainer's memory over five minutes more can be said.
SEEN_GROWTH = 100 << 10
LEAST_SEEN_GROWTH = 20 << 10
#: A teacher that refuses every sample is ejected before a student has had it for so long, all times
#: together: an engine that replaces a killed one knows nothing of refusals.
REFUSALS_S = 30.0
#: Exit code of a node whose settings are not those of the job.
REFUSED = 2
_CHUNK = 1 << 8
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One invariant, checked.

    Attributes:
        name: which.
        checked: what was looked at, in words.
        broken: where it does not hold, in words; none: it holds.
    """

    name: str
    checked: str
    broken: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether it holds."""
        return not self.broken


def check_invariants(trace: RunTrace, *, interrupted: bool = False) -> tuple[Finding, ...]:
    """Every invariant, in the order in which a report has them.

    Args:
        trace: what was seen.
        interrupted: the run was ended in the midst of it: the mesh had no time to be whole again.
    """
    checks = (
        once_in_order,
        right_labels,
        honest_believed,
        misconfigured_unused,
        moving,
        memory,
        *(() if interrupted else (whole_again,)),
        in_order_to_the_end,
        refused_alone,
        nothing_left,
    )
    return tuple(one(trace) for one in checks)


def once_in_order(trace: RunTrace) -> Finding:
    """Every id once, in order, none left out."""
    broken = []
    for name, seen in trace.students.items():
        ids = seen.samples["id"]
        wrong = np.flatnonzero(ids != np.arange(len(ids), dtype=np.uint64))
        if len(wrong):
            at = int(wrong[0])
            broken.append(
                f"{name}: id {ids[at]} came at {_at(seen, at)} in the place of id {at}"
                f" ({len(ids) - len(np.unique(ids))} ids came twice)"
            )
        if not len(ids):
            broken.append(f"{name}: nothing came")
    return Finding("each id once, in order", _samples(trace), tuple(broken))


def right_labels(trace: RunTrace) -> Finding:
    """Sample and label are f(id), byte for byte, but for lies that are not found out yet."""
    broken, deceived = [], 0
    for name, seen in trace.students.items():
        differ = np.array([at for part in _chunks(seen) for at in part], np.int64)
        excused = may_be_lies(trace, seen, seen.samples["at_s"][differ])
        deceived += int(excused.sum())
        wrong = differ[~excused]
        if len(wrong):
            ids = seen.samples["id"]
            named = ", ".join(f"id {ids[at]} at {_at(seen, at)}" for at in wrong[:_NAMED])
            broken.append(f"{name}: {len(wrong)} samples, the first: {named}")
    lies = f"; {deceived} with lies that were not found out yet" if deceived else ""
    return Finding("label = f(id)", _samples(trace) + lies, tuple(broken))


def honest_believed(trace: RunTrace) -> Finding:
    """No teacher is convicted of lies that has told none."""
    called = {name: wrongly_convicted(trace, seen) for name, seen in trace.students.items()}
    broken = [f"{name}: {', '.join(found)}" for name, found in called.items() if found]
    liars = {name for seen in trace.students.values() for one in seen.figures for name in one.liars}
    return Finding("the honest are believed", f"{len(liars)} teachers convicted", tuple(broken))


def misconfigured_unused(trace: RunTrace) -> Finding:
    """No label comes from a misconfigured teacher; readers eject those that refuse every sample."""
    there = {name for one in trace.snapshots for name in one.teachers}
    broken = [f"{name} never had a lease" for name in trace.misconfigured if name not in there]
    ejected = set()
    for name, seen in trace.students.items():
        used = {one for told in seen.figures for one in told.labelling}
        broken += [f"{name} used labels of {one}" for one in trace.misconfigured if one in used]
        for teacher in trace.refusing:
            asked = [one for one in seen.figures if teacher in one.teachers]
            if any((teacher, "refused") in one.ejected for one in asked):
                ejected.add(teacher)
            elif len(asked) * FIGURES_EVERY_S > REFUSALS_S:
                broken.append(
                    f"{name} had {teacher} for over {REFUSALS_S:g} s and did not eject it"
                )
    words = f"{len(ejected)} of {len(trace.refusing)} that refuse were assigned and ejected"
    return Finding("misconfigured teachers label nothing", words, tuple(broken))


def moving(trace: RunTrace) -> Finding:
    """Something comes at least every `MOST_PAUSE_S` while a healthy teacher is there."""
    broken, looked = [], []
    for name, seen in trace.students.items():
        pause = longest_pause(trace, name)
        share = pause.covered_s / max(seen.ended_s - seen.began_s, 1e-9)
        looked.append(f"{name} {pause.covered_s:.0f} s, longest pause {pause.seconds:.1f} s")
        if pause.seconds > MOST_PAUSE_S:
            healthy = ", ".join(pause.healthy) or "enough that it does not send to"
            broken.append(
                f"{name}: nothing came for {pause.seconds:.1f} s before id {pause.next_id}, from"
                f" {pause.began_s:.1f} s on, with {healthy} healthy"
            )
        if share < LEAST_SHARE:
            broken.append(f"{name}: had a healthy teacher for {share:.0%} of the time only")
    return Finding(
        f"never still for more than {MOST_PAUSE_S:g} s", "; ".join(looked), tuple(broken)
    )


def memory(trace: RunTrace) -> Finding:
    """The slope of (PSS - volume) is not above zero, by more than can be told from zero."""
    broken, looked = [], []
    for name, seen in trace.students.items():
        for what, slope in growth(seen):
            most = tolerated_growth(what, seen.ended_s - seen.began_s)
            looked.append(f"{name} {what} {slope / 1024:+.0f} of {most / 1024:.0f}")
            if slope > most:
                broken.append(f"{name}: {what} grow by {slope / 1024:.0f} KiB/s")
    words = f"KiB/s: {', '.join(looked)}" if looked else "too short a run"
    return Finding("memory less volume does not grow", words, tuple(broken))


def tolerated_growth(what: str, seconds: float) -> float:
    """The slope that counts as none in a run of so many seconds, in bytes per second."""
    if what != TRAINER:
        return SEEN_GROWTH
    return max(LEAST_SEEN_GROWTH, SEEN_GROWTH * min(1.0, 60.0 / max(seconds, 1.0)))


def whole_again(trace: RunTrace) -> Finding:
    """At the end every fault is over, everyone has a lease, and every student is served.

    A teacher that has lied or failed may still be shut out by a reader that has others.
    """
    done = [one for one in trace.faults if not one.skipped]
    broken = [f"{_named(one)} is not over" for one in done if one.healed_s is None]
    broken += [f"{_named(one)}: {one.trouble}" for one in done if one.trouble]
    broken += not_whole(trace)
    return Finding("the mesh is whole again", f"{len(done)} faults", tuple(broken))


def in_order_to_the_end(trace: RunTrace) -> Finding:
    """No training loop was ended by an error, or did not end when it was told to."""
    troubles = [f"{name}: {seen.trouble}" for name, seen in trace.students.items() if seen.trouble]
    return Finding("students end in order", f"{len(trace.students)} students", tuple(troubles))


def refused_alone(trace: RunTrace) -> Finding:
    """A node with another seed is refused by the elastic training, which goes on to the end."""
    name, seen = "a node with another seed is refused alone", trace.training
    if seen is None:
        return Finding(name, "not checked: Paddle is not installed")
    broken = [f"the training {seen.trouble}"] if seen.trouble else []
    if seen.other_code != REFUSED or "seed" not in seen.other_said:
        broken.append(f"the other node ended with {seen.other_code}: {seen.other_said}")
    return Finding(name, f"{seen.steps} steps trained", tuple(broken))


def nothing_left(trace: RunTrace) -> Finding:
    """No process and no shared memory is left."""
    return Finding("nothing is left behind", "processes, shared memory", trace.left)


def _named(one: Done) -> str:
    return f"{one.fault.kind} of {one.fault.target} at {one.at_s:.1f} s"


def _samples(trace: RunTrace) -> str:
    counts = (f"{name} {len(seen.samples)}" for name, seen in trace.students.items())
    return f"samples: {', '.join(counts)}"


def _chunks(seen: Seen) -> Iterator[list[int]]:
    for start in range(0, len(seen.samples), _CHUNK):
        part = seen.samples[start : start + _CHUNK]
        wrong = np.flatnonzero(part["digest"] != expected_digests(part["id"]))
        yield [start + int(at) for at in wrong]


def _at(seen: Seen, at: int) -> str:
    return f"{seen.samples['at_s'][at]:.1f} s"
