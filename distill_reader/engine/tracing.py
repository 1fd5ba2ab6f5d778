"""The timeline of a reader's work and waiting, for Perfetto.

Times are of the machine's monotonic clock, which the trainer's messages also use.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...proto.channel import Message
from ...scheduler.circuit_breakers import IN_WORDS, Cause
from ..trace_file import TraceEvent, TraceFile
from .reporting import waiting_for
from .teacher_requests import Outcome, RequestDone, RequestOrProbeFailure, TeacherRequest

if TYPE_CHECKING:
    from .ensemble_member import EnsembleMember

SOURCE, BUFFER, TEACHERS, STUDENT, CALLS = 1, 2, 3, 4, 5
_GROUPS: Final = {
    SOURCE: "source",
    BUFFER: "buffer",
    TEACHERS: "teachers",
    STUDENT: "student",
    CALLS: "calls",
}
#: Numbers of tracks. They differ from the numbers of groups, because viewers show a track with the
#: number of its group as a main thread.
PULLS, PAUSES, WANTS, HEDGES, LOOP, STATE = 11, 12, 31, 32, 41, 42
_TRACKS: Final = {
    PULLS: (SOURCE, "pulls"),
    PAUSES: (SOURCE, "pauses"),
    WANTS: (TEACHERS, "wants"),
    HEDGES: (TEACHERS, "hedges"),
    LOOP: (STUDENT, "training loop"),
    STATE: (STUDENT, "state"),
}
_FIRST_TEACHER_TRACK: Final = 101

#: Details of an event.
Args = Mapping[str, Any]
_NO_ARGS: Final[Args] = {}


class TraceWriter:
    """Writes trace events to a file. Times are seconds of the monotonic clock."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._counts: dict[str, float] = {}
        for group, name in _GROUPS.items():
            file.name_track("process_name", name, group)
        for track, (group, name) in _TRACKS.items():
            file.name_track("thread_name", name, group, track)
        self.tracks = TeacherTracks(file)

    def slice(self, track: int, name: str, begin: float, end: float, args: Args = _NO_ARGS) -> None:
        """Write a slice on one of the tracks above; slices of a track must not overlap."""
        self._add(
            name, "X", _TRACKS[track][0], track, begin, dur=_duration_us(begin, end), args=args
        )

    def moment(self, track: int, name: str, at: float, args: Args = _NO_ARGS) -> None:
        """Write an instant event on one of the tracks above."""
        self._add(name, "i", _TRACKS[track][0], track, at, s="t", args=args)

    def request(
        self, teacher: str, name: str, begin: float, end: float, args: Args = _NO_ARGS
    ) -> None:
        """Write a slice for a request, on a free track of its teacher."""
        track = self.tracks.occupy(teacher, begin, end)
        self._add(name, "X", TEACHERS, track, begin, dur=_duration_us(begin, end), args=args)

    def teacher_event(self, teacher: str, name: str, at: float, args: Args = _NO_ARGS) -> None:
        """Write an instant event of a teacher, on its first track."""
        self._add(name, "i", TEACHERS, self.tracks.first_track(teacher), at, s="t", args=args)

    def batch(
        self, name: str, number: int, begin: float, end: float, args: Args = _NO_ARGS
    ) -> None:
        """Write an async slice of a batch, or of a call if `name` is "call".

        A slice that contains others must be written before them.
        """
        group, category = (CALLS, "call") if name == "call" else (BUFFER, "batch")
        identity = {"cat": category, "id": number}
        self._file.add(
            _event(name, "b", group, 0, begin, **identity, args=args),
            _event(name, "e", group, 0, max(begin, end), **identity),
        )

    def count(self, name: str, value: float, at: float) -> None:
        """Write the value of a counter if it has changed."""
        if self._counts.get(name) != value:
            self._counts[name] = value
            self._add(name, "C", BUFFER, 0, at, args={"value": value})

    def flush(self) -> None:
        self._file.flush()

    def end(self, at: float) -> None:
        """Write the last event and close the file."""
        self._file.close(_event("the end", "i", BUFFER, 0, at, s="g"))

    def _add(self, name: str, phase: str, group: int, track: int, at: float, **more: Any) -> None:
        self._file.add(_event(name, phase, group, track, at, **more))


class TeacherTracks:
    """Tracks for the requests to each teacher, as many as are in flight at once.

    Slices of a track must not overlap. Requests are written when they end, so a track is free for
    each request that began after the end of the last request on the track.
    """

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._ends: dict[str, list[tuple[int, float]]] = {}  # (track, end of its last slice)
        self._next = _FIRST_TEACHER_TRACK

    def occupy(self, teacher: str, begin: float, end: float) -> int:
        """Return the track for a request, and occupy it until `end`."""
        self.first_track(teacher)
        tracks = self._ends[teacher]
        # Choose the free track that ended last; the others remain for requests that began earlier.
        free = [(free_at, index) for index, (_, free_at) in enumerate(tracks) if free_at <= begin]
        if not free:
            self._open(teacher, end)
            return tracks[-1][0]
        index = max(free)[1]
        track = tracks[index][0]
        tracks[index] = (track, end)
        return track

    def first_track(self, teacher: str) -> int:
        """Return the first track of a teacher."""
        if teacher not in self._ends:
            self._ends[teacher] = []
            self._open(teacher, 0.0)
        return self._ends[teacher][0][0]

    def _open(self, teacher: str, end: float) -> None:
        tracks = self._ends[teacher]
        name = f"{teacher} ({len(tracks) + 1})" if tracks else teacher
        self._file.name_track("thread_name", name, TEACHERS, self._next)
        tracks.append((self._next, end))
        self._next += 1


def _event(name: str, phase: str, group: int, track: int, at: float, **more: Any) -> TraceEvent:
    return {"name": name, "ph": phase, "pid": group, "tid": track, "ts": _us(at), **more}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _duration_us(begin: float, end: float) -> float:
    return round(max(end - begin, 0.0) * 1e6, 1)


@dataclass(slots=True)
class _TracedBatch:
    since: float
    samples: int
    is_call: bool
    labelled_at: float | None = None


class BatchTracer:
    """Traces each batch and call when it ends, so that one file has both ends of a slice.

    The slice "batch" of a batch contains the slice "ready", which begins when the batch has its
    labels. If the batch was pulled before this engine started, its slice begins when the engine
    received it.
    """

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._batches: dict[int, _TracedBatch] = {}
        self._now = 0.0

    def add(self, number: int, at: float, samples: int, *, is_call: bool = False) -> None:
        self._batches[number] = _TracedBatch(at, samples, is_call)

    def labelled(self, number: int) -> None:
        """Record that a batch has the labels of a service, or goes without them.

        With several services, the last of them counts.
        """
        if (batch := self._batches.get(number)) is not None:
            batch.labelled_at = time.monotonic()

    def unlabelled(self, number: int) -> None:
        """Record that the labels of a batch were withdrawn."""
        if (batch := self._batches.get(number)) is not None:
            batch.labelled_at = None

    def ended(self, number: int, at: float, outcome: str) -> None:
        """Write a batch that the training loop took, or a call that has ended."""
        if (batch := self._batches.pop(number, None)) is not None:
            self._draw(number, batch, at, outcome)

    def tick(self, now: float) -> None:
        """Set the end time of the batches that `leave` writes."""
        self._now = now

    def leave(self, outcome_of_calls: str = "left") -> None:
        """Write all batches and calls, because the epoch or the stream ends.

        The outcome of batches is "left".
        """
        for number, batch in self._batches.items():
            outcome = outcome_of_calls if batch.is_call else "left"
            self._draw(number, batch, max(self._now, batch.since), outcome)
        self._batches.clear()

    def _draw(self, number: int, batch: _TracedBatch, end: float, outcome: str) -> None:
        args = {"number": number, "samples": batch.samples, "outcome": outcome}
        self._writer.batch("call" if batch.is_call else "batch", number, batch.since, end, args)
        if batch.labelled_at is not None and not batch.is_call:
            self._writer.batch("ready", number, min(batch.labelled_at, end), end)


#: Minimum interval between values of counters.
COUNT_EVERY_S: Final = 0.01


class StateTracer:
    """Traces changes of teachers, ejections, hedges, wanted teachers, pauses and states."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._teachers: frozenset[str] = frozenset()
        self._ejected: dict[str, Cause] = {}
        self._hedged: frozenset[tuple[int, int]] = frozenset()
        self._wants: dict[str, int] = {}
        self._pause: tuple[float, str, str] | None = None  # (since, service, reason)
        self._state: tuple[str, float, str] | None = None  # (state, since, what is waited for)
        self._counted_at = 0.0

    def tick(self, members: Sequence[EnsembleMember], now: float) -> None:
        """Trace what has changed since the last call."""
        self._trace_teachers(members, now)
        self._trace_hedges(members, now)
        for member in members:
            self._trace_want(member, now)
        self._trace_pauses(members, now)
        self._trace_state(members, now)
        if now - self._counted_at >= COUNT_EVERY_S:
            self._counted_at = now
            count = self._writer.count
            count("volume (bytes)", min(m.ledger.volume_bytes for m in members), now)
            count("requests in flight", sum(m.ledger.in_flight for m in members), now)
            count("teachers wanted", sum(m.core.decision.want for m in members), now)

    def end(self, now: float) -> None:
        """End all open slices."""
        self._draw_pause(now)
        self._draw_state(now)

    def _trace_teachers(self, members: Sequence[EnsembleMember], now: float) -> None:
        teachers = frozenset(name for member in members for name in member.ledger.teachers)
        for name in sorted(teachers ^ self._teachers):
            what = "joined" if name in teachers else "gone"
            self._writer.teacher_event(name, f"{name} {what}", now)
        ejected = {
            name: cause
            for member in members
            for name, cause in member.core.teachers.breakers.ejected.items()
        }
        for name, cause in ejected.items():
            if name not in self._ejected:
                self._writer.teacher_event(
                    name, f"{name} ejected: it {IN_WORDS[cause]}", now, {"cause": cause}
                )
        for name in self._ejected.keys() & teachers - ejected.keys():
            self._writer.teacher_event(name, f"{name} readmitted", now)
        self._teachers, self._ejected = teachers, ejected

    def _trace_hedges(self, members: Sequence[EnsembleMember], now: float) -> None:
        hedged = frozenset(
            (index, request)
            for index, member in enumerate(members)
            for request in member.core.teachers.lateness.hedging.paid
        )
        for index, request in sorted(hedged - self._hedged):
            flight = members[index].ledger.request(request)
            args = {"request": request, "teachers": [*flight.teachers] if flight else []}
            self._writer.moment(HEDGES, f"hedge of request {request}", now, args)
        self._hedged = hedged

    def _trace_want(self, member: EnsembleMember, now: float) -> None:
        service, decision = member.config.service, member.core.decision
        if self._wants.get(service) != decision.want:
            self._wants[service] = decision.want
            args = {"service": service, "reason": decision.reason}
            self._writer.moment(WANTS, f"want {decision.want}", now, args)

    def _trace_pauses(self, members: Sequence[EnsembleMember], now: float) -> None:
        for member in members:
            transition = member.core.decision.transition
            if transition is not None and not transition.pulling:
                if self._pause is None:
                    self._pause = (now, member.config.service, transition.why)
                return
        transitions = [member.core.decision.transition for member in members]
        self._draw_pause(now, "; ".join(each.why for each in transitions if each is not None))

    def _draw_pause(self, now: float, resume_reason: str = "") -> None:
        if self._pause is not None:
            since, service, why = self._pause
            args = {"service": service, "reason": why, "goes_on": resume_reason}
            self._writer.slice(PAUSES, "pulling pauses", since, now, args)
            self._pause = None

    def _trace_state(self, members: Sequence[EnsembleMember], now: float) -> None:
        state = members[0].core.decision.state
        if self._state is None or state != self._state[0]:
            self._draw_state(now)
            waits_for = "; ".join(filter(None, map(waiting_for, members)))
            self._state = (state, now, waits_for)

    def _draw_state(self, now: float) -> None:
        if self._state is not None:
            state, since, waits_for = self._state
            args = {"waits_for": waits_for} if waits_for else {}
            self._writer.slice(STATE, state, since, now, args)


#: Maximum delay of writing.
FLUSH_EVERY_S: Final = 0.2


class Timeline:
    """Traces a reader's work and waiting into a file. For the engine's thread.

    Attributes:
        batches: traces the batches.
    """

    def __init__(self, file: TraceFile) -> None:
        self._writer = TraceWriter(file)
        self.batches = BatchTracer(self._writer)
        self._changes = StateTracer(self._writer)
        #: False until "reset" or "resumed": an earlier engine has traced the earlier pulls.
        self._traces_pulls = False
        self._loop_since: float | None = None  # since when the training loop works on a batch
        self._waits_since: float | None = None  # since when the training loop waits
        self._flushed_at = 0.0

    # --- the trainer

    def on_message(self, message: Message) -> None:
        """Trace a message of the trainer."""
        match message["kind"]:
            case "reset":
                self._traces_pulls = True
                self._loop_since = self._waits_since = None
                self.batches.leave("repeated")
            case "resumed":
                self._traces_pulls = True
            case "batch":
                self._on_pulled(message)
            case "call":
                self.batches.add(message["number"], message["at"], message["samples"], is_call=True)
            case "waiting":
                self._waits_since = message["at"]
            case "taken":
                self._on_taken(message)

    def _on_pulled(self, message: Message) -> None:
        number, at, samples = message["number"], message["at"], message["samples"]
        self.batches.add(number, at, samples)
        if self._traces_pulls:
            begin, nbytes = at - message["source_s"], message["nbytes"]
            args = {"samples": samples, "bytes": nbytes}
            self._writer.slice(PULLS, f"pull {number}", begin, at, args)

    def _on_taken(self, message: Message) -> None:
        at, number = message["at"], message["number"]
        called_at = at if self._waits_since is None else self._waits_since
        if self._loop_since is not None:
            self._writer.slice(LOOP, "step", self._loop_since, called_at)
        if self._waits_since is not None:
            self._writer.slice(LOOP, f"wait for {number}", self._waits_since, at)
        self._loop_since, self._waits_since = at, None
        self.batches.ended(number, at, "delivered")

    # --- the teachers

    def on_outcome(self, teacher: str, outcome: Outcome, now: float) -> None:
        """Trace an outcome that a teacher's link has posted."""
        args: dict[str, Any]
        match outcome:
            case RequestDone(request=request):
                name, end = _batches(request), request.created_at + outcome.seconds
                args = {"device_ms": round(outcome.device_s * 1e3, 3)}
            case RequestOrProbeFailure(TeacherRequest() as request, error):
                name, end = f"failed: {_batches(request)}", now
                args = {"error": str(error)[:300]}
            case _:
                return
        args |= {"request": request.number, "samples": request.samples}
        self._writer.request(teacher, name, request.created_at, end, args)

    # --- states

    def tick(self, members: Sequence[EnsembleMember], now: float) -> None:
        """Trace what has changed since the last call."""
        self.batches.tick(now)
        self._changes.tick(members, now)
        if now - self._flushed_at >= FLUSH_EVERY_S:
            self._flushed_at = now
            self._writer.flush()

    def close(self, now: float) -> None:
        """Write all open slices and close the file."""
        self.batches.tick(now)
        self.batches.leave()
        self._changes.end(now)
        self._writer.end(now)


def _batches(request: TeacherRequest) -> str:
    numbers = sorted({span.batch for span in request.spans})
    if len(numbers) == 1:
        return f"batch {numbers[0]}"
    return f"batches {numbers[0]} to {numbers[-1]}"
