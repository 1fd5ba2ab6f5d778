"""Events per second of CPU time that the ledger takes in, with 8 teachers of window 2."""

from __future__ import annotations

import time
from collections import deque
from functools import partial

from ..scheduler.ledger import Ledger
from ..scheduler.ledger_events import (
    Answered,
    Event,
    Queued,
    Send,
    Taken,
    TeacherJoined,
    TeacherLost,
)
from .report import Estimate, Goal, Report, Row, interleaved

TEACHERS = tuple(f"teacher-{i}" for i in range(8))
WINDOW = 2
BATCH_BYTES = 1 << 20
LABEL_BYTES = 1 << 12
#: In the second case a teacher is lost, and comes back, once in this many batches.
LOSS_EVERY = 100
LIMIT_EVENTS_PER_S = 100_000


def run(quick: bool) -> Report:
    """Both cases, each a whole stream of batches per round; the creation of events counts."""
    batches = 2_000 if quick else 10_000
    cases = {"steady": 0, f"a teacher lost every {LOSS_EVERY} batches": LOSS_EVERY}
    rounds = interleaved(*(partial(events_per_s, batches, every) for every in cases.values()))
    rows: list[Row] = []
    goals = []
    for case, figures in zip(cases, zip(*rounds, strict=True), strict=True):
        estimate = Estimate.of(figures)
        rows.append(
            {
                "case": case,
                "batches": batches,
                "events_per_s": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
            }
        )
        goals.append(Goal.judge(f"events/s, {case}", estimate, ">=", LIMIT_EVENTS_PER_S))
    return Report(rows, goals)


def events_per_s(batches: int, loss_every: int) -> float:
    """Events per CPU second over a stream of `batches`; `loss_every` 0: no teacher is lost."""
    began = time.process_time()
    events = Stream(batches, loss_every).drive()
    return events / (time.process_time() - began)


class Stream:
    """A source, teachers and a student that keep one ledger busy from beginning to end."""

    def __init__(self, batches: int, loss_every: int) -> None:
        self._batches = batches
        self._loss_every = loss_every
        self._ledger = Ledger()
        self._in_flight: deque[Send] = deque()
        self._events = 0

    def drive(self) -> int:
        """Every batch from the source to the student; returns the number of events."""
        for teacher in TEACHERS:
            self._handle(TeacherJoined(teacher, WINDOW, 0.1))
        queued = taken = 0
        while taken < self._batches:
            while queued < self._batches and self._ledger.queued < 2:
                self._handle(Queued(queued, BATCH_BYTES))
                queued += 1
                if self._loss_every and queued % self._loss_every == 0:
                    self._lose(TEACHERS[queued // self._loss_every % len(TEACHERS)])
            send = self._in_flight.popleft()
            self._handle(Answered(send.teacher, send.batch, LABEL_BYTES, 0.1))
            while self._ledger.deliverable:
                self._handle(Taken(taken))
                taken += 1
        return self._events

    def _lose(self, teacher: str) -> None:
        self._in_flight = deque(send for send in self._in_flight if send.teacher != teacher)
        self._handle(TeacherLost(teacher))
        self._handle(TeacherJoined(teacher, WINDOW, 0.1))

    def _handle(self, event: Event) -> None:
        self._events += 1
        for instruction in self._ledger.handle(event):
            if type(instruction) is Send:
                self._in_flight.append(instruction)
