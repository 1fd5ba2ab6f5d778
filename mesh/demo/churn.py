"""What happens to teachers during the EDL-Dist run: one is killed, and a new one comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...distill_reader import ReaderStats

#: The reader's figures are at most this old: its engine sends them five times a second.
FIGURES_AGE_S = 0.25

Kind = Literal["kill", "resent", "start", "join"]
Act = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a teacher.

    Attributes:
        kind: it was killed; its batches were sent again; a new one was started; it joined.
        teacher: its teacher_id.
        batch: batches trained by then.
        at_s: seconds since the run began.
    """

    kind: Kind
    teacher: str
    batch: int
    at_s: float


class Churn:
    """Kills a teacher after two fifths of the way and starts another; looks when it is told to.

    The new one starts as soon as the batches of the killed one were sent again. By then the buffer
    covers the time that it takes to start on the core of the others.

    A teacher dies with work in hand: one that has some is held (SIGSTOP) for a quarter of a second,
    until the reader's figures show what is certain to be there when it dies. Should it have nothing
    then, as the buffer is full, it goes on (SIGCONT), and the next moment is waited for; from three
    fifths of the way on one is killed all the same.

    Args:
        hold: suspends the teacher of this teacher_id.
        resume: lets it go on.
        kill: kills it.
        start: starts a new one of this teacher_id, without waiting for it.
        newcomer: teacher_id of the new one.
        batches: batches of the whole run.
        say: where the events are told.
        clock: seconds.

    Attributes:
        events: what happened so far.
    """

    def __init__(
        self,
        *,
        hold: Act,
        resume: Act,
        kill: Act,
        start: Act,
        newcomer: str,
        batches: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.events: list[Event] = []
        self._hold_teacher = hold
        self._resume_teacher = resume
        self._kill_teacher = kill
        self._start_teacher = start
        self._newcomer = newcomer
        self._kill_from = 2 * batches // 5
        self._kill_at_latest = 3 * batches // 5
        self._replace_at_latest = 2 * batches // 3
        self._say = say
        self._clock = clock
        self._began = clock()
        self._held_at = 0.0
        self._victim = ""
        self._due: Callable[[int, ReaderStats], bool] | None = self._hold

    def look(self, batch: int, stats: ReaderStats) -> None:
        """Do what is due after so many batches, the reader's figures being these."""
        while self._due is not None and self._due(batch, stats):
            pass

    @property
    def newcomer_is_late(self) -> bool:
        """Whether the new teacher was started and has not joined yet."""
        return self._due == self._see_newcomer

    # Each of these returns whether it was due. It names the next first: nothing is done twice.

    def _hold(self, batch: int, stats: ReaderStats) -> bool:
        if batch < self._kill_from or not stats.teachers:
            return False
        in_flight = dict(stats.in_flight)
        victim = max(stats.teachers, key=lambda teacher: in_flight.get(teacher, 0))
        if not in_flight.get(victim) and batch < self._kill_at_latest:
            return False
        self._due = self._kill
        self._victim = victim
        self._held_at = self._clock()
        self._hold_teacher(self._victim)
        return True

    def _kill(self, batch: int, stats: ReaderStats) -> bool:
        if self._clock() - self._held_at < FIGURES_AGE_S:
            return False
        in_flight = dict(stats.in_flight).get(self._victim, 0)
        if not in_flight and batch < self._kill_at_latest:
            self._due = self._hold
            self._resume_teacher(self._victim)
            return True
        self._due = self._replace
        self._kill_teacher(self._victim)
        self._tell("kill", self._victim, batch, f"killed (SIGKILL) with {in_flight} in flight")
        return True

    def _replace(self, batch: int, stats: ReaderStats) -> bool:
        sent_again = stats.resends + stats.hedges  # at its death, or before, as it was late
        if not sent_again and batch < self._replace_at_latest:
            return False
        self._due = self._see_newcomer
        if sent_again:
            text = f"its batches go to the others (resends: {sent_again})"
            self._tell("resent", self._victim, batch, text)
        self._tell("start", self._newcomer, batch, "a new teacher starts")
        self._start_teacher(self._newcomer)
        return True

    def _see_newcomer(self, batch: int, stats: ReaderStats) -> bool:
        if self._newcomer not in stats.teachers:
            return False
        self._due = None
        self._tell("join", self._newcomer, batch, "has joined")
        return True

    def _tell(self, kind: Kind, teacher: str, batch: int, text: str) -> None:
        event = Event(kind, teacher, batch, self._clock() - self._began)
        self.events.append(event)
        self._say(f"  {event.at_s:5.1f} s, batch {batch}: {teacher}: {text}")
