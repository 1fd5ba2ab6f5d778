"""Teacher churn in the demo's EDL-Dist mode: one teacher is killed, and a new one is started."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ...distill_reader import ReaderStats

#: Greatest age of the reader's statistics in seconds: the engine sends them five times a second.
MAX_STATS_AGE_S = 0.25

EventKind = Literal["kill", "resent", "start", "join"]
TeacherAction = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TeacherEvent:
    """An event in the life of a teacher.

    Attributes:
        kind: the teacher was killed, its requests were sent again, it was started, or it joined.
        teacher: teacher_id.
        batch: number of batches trained so far.
        at_s: seconds since the run began.
    """

    kind: EventKind
    teacher: str
    batch: int
    at_s: float


@dataclass(kw_only=True, eq=False, slots=True)
class TeacherChurn:
    """Kills a teacher after two fifths of a run and starts another teacher. Driven by `update`.

    The new teacher starts once the reader has resent requests, or after two thirds of the run.
    While it starts, the student trains from the reader's buffer and with the other teachers.

    The killed teacher should have requests in flight. So a teacher with requests in flight is
    suspended (SIGSTOP) until the reader's statistics are certainly newer than the suspension. If
    they show no requests in flight, because the buffer is full, the teacher is resumed (SIGCONT),
    and the procedure starts again. After three fifths of the run a teacher is killed in any case.

    Args:
        suspend: suspends a teacher by teacher_id.
        resume: resumes a teacher by teacher_id.
        kill: kills a teacher by teacher_id.
        start: starts a new teacher with a teacher_id and returns at once.
        replacement: teacher_id of the new teacher.
        batches: number of batches of the whole run.
        say: called with a line of text for each event.
        clock: returns seconds.

    Attributes:
        events: events so far.
    """

    suspend: TeacherAction
    resume: TeacherAction
    kill: TeacherAction
    start: TeacherAction
    replacement: str
    batches: int
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    events: list[TeacherEvent] = field(default_factory=list, init=False)
    _kill_from: int = field(init=False)
    _kill_at_latest: int = field(init=False)
    _replace_at_latest: int = field(init=False)
    _began: float = field(init=False)
    _suspended_at: float = field(default=0.0, init=False)
    _victim: str = field(default="", init=False)
    _next_step: Callable[[int, ReaderStats], bool] | None = field(init=False)

    def __post_init__(self) -> None:
        self._kill_from = 2 * self.batches // 5
        self._kill_at_latest = 3 * self.batches // 5
        self._replace_at_latest = 2 * self.batches // 3
        self._began, self._next_step = self.clock(), self._suspend

    def update(self, batch: int, stats: ReaderStats) -> None:
        """Take all steps that are due.

        Args:
            batch: number of batches trained so far.
            stats: statistics of the reader.
        """
        while self._next_step is not None and self._next_step(batch, stats):
            pass

    @property
    def replacement_pending(self) -> bool:
        """Whether the new teacher was started but has not joined yet."""
        return self._next_step == self._await_replacement

    # Each step returns whether it was due. It sets the next step before it acts, so that an action
    # that raises is not repeated.

    def _suspend(self, batch: int, stats: ReaderStats) -> bool:
        if batch < self._kill_from or not stats.teachers:
            return False
        in_flight = dict(stats.in_flight)
        victim = max(stats.teachers, key=lambda teacher: in_flight.get(teacher, 0))
        if not in_flight.get(victim) and batch < self._kill_at_latest:
            return False
        self._next_step = self._kill
        self._victim = victim
        self._suspended_at = self.clock()
        self.suspend(self._victim)
        return True

    def _kill(self, batch: int, stats: ReaderStats) -> bool:
        if self.clock() - self._suspended_at < MAX_STATS_AGE_S:
            return False
        in_flight = dict(stats.in_flight).get(self._victim, 0)
        if not in_flight and batch < self._kill_at_latest:
            self._next_step = self._suspend
            self.resume(self._victim)
            return True
        self._next_step = self._replace
        self.kill(self._victim)
        self._record("kill", self._victim, batch, f"killed (SIGKILL) with {in_flight} in flight")
        return True

    def _replace(self, batch: int, stats: ReaderStats) -> bool:
        # Requests may be hedged already while their teacher is suspended, so hedges count too.
        resends = stats.resends + stats.hedges
        if not resends and batch < self._replace_at_latest:
            return False
        self._next_step = self._await_replacement
        if resends:
            text = f"its requests are sent to other teachers (resends: {resends})"
            self._record("resent", self._victim, batch, text)
        self._record("start", self.replacement, batch, "a new teacher starts")
        self.start(self.replacement)
        return True

    def _await_replacement(self, batch: int, stats: ReaderStats) -> bool:
        if self.replacement not in stats.teachers:
            return False
        self._next_step = None
        self._record("join", self.replacement, batch, "has joined")
        return True

    def _record(self, kind: EventKind, teacher: str, batch: int, text: str) -> None:
        event = TeacherEvent(kind, teacher, batch, self.clock() - self._began)
        self.events.append(event)
        self.say(f"  {event.at_s:5.1f} s, batch {batch}: {teacher}: {text}")
