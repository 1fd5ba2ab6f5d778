"""Timeline of a simulation as Chrome trace events, for https://ui.perfetto.dev.

Times are virtual. The file contains counters and events of the mesh; also steps of students and
requests of teachers if the simulation kept them (`keep_batches`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

from ...distill_reader.trace_file import TraceEvent, TraceFile, create_trace
from ...runtime.errors import UsageError
from ...scheduler.simulator.result import LabelledRequest, MeshSample, SimulationResult, StudentStep

#: Groups of tracks.
MESH, STUDENTS, TEACHERS = 1, 2, 3
_GROUPS: Final = {MESH: "mesh", STUDENTS: "students", TEACHERS: "teachers"}
#: Track of events in the group `MESH`.
_EVENTS: Final = 11
#: First number of other tracks. No track has the number of a group: viewers would show the track
#: as the main thread of that group.
_FIRST_TRACK: Final = 101
#: Size limit of a part of the file in bytes; the whole timeline is one part.
_PART_BYTES: Final = 1 << 62


def write_timeline(result: SimulationResult, path: Path) -> None:
    """Write the timeline to `path`; replace an existing file.

    Raises:
        UsageError: the file cannot be written.
    """
    create_trace(path)
    file = TraceFile(path, _PART_BYTES)
    for group, name in _GROUPS.items():
        file.name_track("process_name", name, group)
    file.name_track("thread_name", "events", MESH, _EVENTS)
    for event in _events(result, _Tracks(file)):
        file.add(event)
    file.close(_event("the end", "i", MESH, _EVENTS, result.virtual_s, s="g"))
    if not path.read_bytes().endswith(b"]\n"):  # `TraceFile` has logged the reason
        raise UsageError(f"the trace {path} is incomplete: it could not be written")


class _Tracks:
    """Numbers tracks: one for each student, and one for each concurrent request of a teacher."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._known: dict[tuple[int, str, int], int] = {}
        # Times from which the tracks of each teacher are free.
        self._free_s: dict[str, list[float]] = {}

    def student(self, name: str) -> int:
        return self._track(STUDENTS, name, 0)

    def teacher(self, name: str, began_s: float, ended_s: float) -> int:
        """Return the first track of a teacher that is free when a request begins.

        Call it in the order in which requests begin.
        """
        free_s = self._free_s.setdefault(name, [])
        for number, track_free_s in enumerate(free_s):
            if track_free_s <= began_s:
                free_s[number] = ended_s
                return self._track(TEACHERS, name, number)
        free_s.append(ended_s)
        return self._track(TEACHERS, name, len(free_s) - 1)

    def _track(self, group: int, name: str, number: int) -> int:
        key = group, name, number
        if key not in self._known:
            self._known[key] = _FIRST_TRACK + len(self._known)
            track_name = f"{name} ({number + 1})" if number else name
            self._file.name_track("thread_name", track_name, group, self._known[key])
        return self._known[key]


def _events(result: SimulationResult, tracks: _Tracks) -> Iterator[TraceEvent]:
    """Return all events, ordered by time."""
    event_time, start_time = itemgetter("ts"), attrgetter("began_s")
    streams: list[Iterable[TraceEvent]] = [
        sorted(_counters(result.points), key=event_time),
        sorted(_mesh_events(result), key=event_time),
        (_request(request, tracks) for request in sorted(result.requests, key=start_time)),
        (_step(step, tracks) for step in sorted(result.steps, key=start_time)),
    ]
    return heapq.merge(*streams, key=event_time)


def _counters(points: Iterable[MeshSample]) -> Iterator[TraceEvent]:
    last: dict[str, float] = {}
    for point in points:
        counters = {
            "students": point.students,
            "teachers serving": point.serving,
            "teachers assigned": point.assigned,
            "teachers wanted": point.wanted,
            "teachers desired": point.desired,
            "volume (batches)": point.volume,
            "samples/s": point.samples_per_s,
            "students that starve": point.starved,
        }
        for name, value in counters.items():
            if value is not None and last.get(name) != value:
                last[name] = value
                yield _event(name, "C", MESH, 0, point.at_s, args={"value": value})


def _mesh_events(result: SimulationResult) -> Iterator[TraceEvent]:
    for event in result.mesh_events:
        name, args = f"{event.kind} {event.subject}", {"subject": event.subject, "text": event.text}
        yield _event(name, "i", MESH, _EVENTS, event.at_s, s="t", cat=event.kind, args=args)


def _request(item: LabelledRequest, tracks: _Tracks) -> TraceEvent:
    track = tracks.teacher(item.teacher, item.began_s, item.ended_s)
    args = {
        "student": item.student,
        "batch": item.batch,
        "rows": item.rows,
        "waited_s": round(item.began_s - item.sent_s, 6),
        "travelled_s": round(item.answered_s - item.ended_s, 6),
        "used": item.used,
    }
    return _slice(f"{item.student} batch {item.batch}", TEACHERS, track, item, args)


def _step(item: StudentStep, tracks: _Tracks) -> TraceEvent:
    track = tracks.student(item.student)
    return _slice(f"step {item.batch}", STUDENTS, track, item, {"batch": item.batch})


def _slice(
    name: str, group: int, track: int, item: LabelledRequest | StudentStep, args: Mapping[str, Any]
) -> TraceEvent:
    dur = _us(max(item.ended_s - item.began_s, 0.0))
    return _event(name, "X", group, track, item.began_s, dur=dur, args=args)


def _event(name: str, phase: str, group: int, track: int, at: float, **more: Any) -> TraceEvent:
    return {"name": name, "ph": phase, "pid": group, "tid": track, "ts": _us(at), **more}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
