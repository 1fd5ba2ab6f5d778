"""Traces of chaos runs that are made up: one in order, and what it is changed by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edl.mesh.chaos.faults import Fault
from edl.mesh.chaos.samples import expected_digests
from edl.mesh.chaos.trace import RECORD, Done, Figures, Seen, Snapshot, Trace
from edl.proto.arena import Array

SECONDS = 60.0
TEACHERS = ("t1", "t2")
MIB = 1 << 20


def samples(count: int = 600) -> Array:
    rows = np.empty(count, RECORD)
    rows["id"] = np.arange(count)
    rows["at_s"] = rows["id"] * SECONDS / count
    rows["digest"] = expected_digests(rows["id"])
    return rows


def figures(
    teachers: Sequence[str] = TEACHERS, *, grows: int = 0, engines: Sequence[float] = ()
) -> tuple[Figures, ...]:
    """Five a second; one engine dies at each time of `engines`, and the next begins small."""
    told = []
    for at_s in np.arange(0.0, SECONDS, 0.2):
        life = sum(bool(at_s >= death) for death in engines)
        age_s = at_s - max([death for death in engines if at_s >= death], default=0.0)
        volume = int(MIB * (1 + at_s % 3))
        told.append(
            Figures(
                float(at_s),
                tuple(teachers),
                100 + life,
                volume,
                trainer_bytes=50 * MIB + volume,
                engine_bytes=60 * MIB + int(grows * age_s),
            )
        )
    return tuple(told)


def student(**changes: Any) -> Seen:
    return replace(Seen(samples(), figures(), 0.0, SECONDS), **changes)


def trace(*students: Seen, faults: Sequence[Done] = (), **changes: Any) -> Trace:
    named = {f"s{number + 1}": seen for number, seen in enumerate(students or (student(),))}
    assigned = {name: frozenset(TEACHERS) for name in named}
    looks = tuple(
        Snapshot(float(at_s), frozenset(TEACHERS), frozenset(named), assigned)
        for at_s in np.arange(0.0, SECONDS, 0.25)
    )
    return replace(Trace(TEACHERS, named, tuple(faults), looks), **changes)


def done(kind: str, target: str, at_s: float, healed_s: float | None, **changes: Any) -> Done:
    return replace(Done(Fault(1, at_s, kind, target, 1.0), at_s, healed_s), **changes)


def without(rows: Array, begin_s: float, end_s: float) -> Array:
    """The same samples, those that came in between late."""
    late = rows.copy()
    held = (late["at_s"] >= begin_s) & (late["at_s"] < end_s)
    late["at_s"][held] = end_s
    return late
