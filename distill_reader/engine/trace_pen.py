"""How a timeline is drawn: its groups and tracks, and the kinds of events that stand in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..trace_file import Event, TraceFile

SOURCE, BUFFER, TEACHERS, STUDENT = 1, 2, 3, 4
_GROUPS: Final = {SOURCE: "source", BUFFER: "buffer", TEACHERS: "teachers", STUDENT: "student"}
#: Tracks with numbers of their own: viewers take a track that bears its group's for a main thread.
PULLS, PAUSES, WANTS, HEDGES, LOOP, STATE = 11, 12, 31, 32, 41, 42
_TRACKS: Final = {
    PULLS: (SOURCE, "pulls"),
    PAUSES: (SOURCE, "pauses"),
    WANTS: (TEACHERS, "wants"),
    HEDGES: (TEACHERS, "hedges"),
    LOOP: (STUDENT, "training loop"),
    STATE: (STUDENT, "state"),
}
_LANES: Final = 101

#: What is shown of an event that is chosen.
Args = Mapping[str, Any]
NONE: Final[Args] = {}


class Pen:
    """Draws into `file`. Times are seconds of the machine's monotonic clock."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._counts: dict[str, float] = {}
        for group, name in _GROUPS.items():
            file.name_track("process_name", name, group)
        for track, (group, name) in _TRACKS.items():
            file.name_track("thread_name", name, group, track)
        self.lanes = Lanes(file)

    def slice(self, track: int, name: str, begin: float, end: float, args: Args = NONE) -> None:
        """Something that lasted, on one of the tracks above; they do not overlap there."""
        self._add(name, "X", _TRACKS[track][0], track, begin, dur=_dur(begin, end), args=args)

    def moment(self, track: int, name: str, at: float, args: Args = NONE) -> None:
        """Something that happened, on one of the tracks above."""
        self._add(name, "i", _TRACKS[track][0], track, at, s="t", args=args)

    def request(self, teacher: str, name: str, begin: float, end: float, args: Args = NONE) -> None:
        """What a teacher was busy with, on the first of its tracks that was free for it."""
        lane = self.lanes.of(teacher, begin, end)
        self._add(name, "X", TEACHERS, lane, begin, dur=_dur(begin, end), args=args)

    def news(self, teacher: str, name: str, at: float, args: Args = NONE) -> None:
        """Something that happened to a teacher, on its first track."""
        self._add(name, "i", TEACHERS, self.lanes.first(teacher), at, s="t", args=args)

    def life(self, name: str, number: int, begin: float, end: float, args: Args = NONE) -> None:
        """Something of the buffer that lasted; many may at once. Those within come behind it."""
        known = {"cat": "batch", "id": number}
        self._file.add(
            _event(name, "b", BUFFER, 0, begin, **known, args=args),
            _event(name, "e", BUFFER, 0, max(begin, end), **known),
        )

    def count(self, name: str, value: float, at: float) -> None:
        """A number that goes up and down; it is drawn when it has changed."""
        if self._counts.get(name) != value:
            self._counts[name] = value
            self._add(name, "C", BUFFER, 0, at, args={"value": value})

    def flush(self) -> None:
        """Have it written."""
        self._file.flush()

    def end(self, at: float) -> None:
        """Nothing comes behind this."""
        self._file.close(_event("the end", "i", BUFFER, 0, at, s="g"))

    def _add(self, name: str, phase: str, group: int, track: int, at: float, **more: Any) -> None:
        self._file.add(_event(name, phase, group, track, at, **more))


class Lanes:
    """Tracks for the requests to each teacher: as many as it has under way at once.

    Slices of one track must not overlap. Requests are drawn as they end, so that a track is free
    for one that began behind the end of the last one there.
    """

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._ends: dict[str, list[tuple[int, float]]] = {}  # of each: (track, end of its last)
        self._next = _LANES

    def of(self, teacher: str, begin: float, end: float) -> int:
        """The track for a request; it is taken until `end`."""
        self.first(teacher)
        lanes = self._ends[teacher]
        # The one that was busy last: the others may be free for what began before that.
        free = [(free_at, index) for index, (_, free_at) in enumerate(lanes) if free_at <= begin]
        if not free:
            self._open(teacher, end)
            return lanes[-1][0]
        index = max(free)[1]
        track = lanes[index][0]
        lanes[index] = (track, end)
        return track

    def first(self, teacher: str) -> int:
        """The first track of a teacher."""
        if teacher not in self._ends:
            self._ends[teacher] = []
            self._open(teacher, 0.0)
        return self._ends[teacher][0][0]

    def _open(self, teacher: str, end: float) -> None:
        lanes = self._ends[teacher]
        name = f"{teacher} ({len(lanes) + 1})" if lanes else teacher
        self._file.name_track("thread_name", name, TEACHERS, self._next)
        lanes.append((self._next, end))
        self._next += 1


def _event(name: str, phase: str, group: int, track: int, at: float, **more: Any) -> Event:
    return {"name": name, "ph": phase, "pid": group, "tid": track, "ts": _us(at), **more}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _dur(begin: float, end: float) -> float:
    return round(max(end - begin, 0.0) * 1e6, 1)
