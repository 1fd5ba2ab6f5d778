"""Events per CPU second of the ledger and the reader core, with 8 teachers of window 2."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..scheduler.canaries import CanaryConfig
from ..scheduler.flow import FlowConfig
from ..scheduler.ledger import Ledger
from ..scheduler.ledger.events import (
    Answered,
    BatchConsumed,
    Event,
    Queued,
    Released,
    Send,
    TeacherGone,
    TeacherJoined,
)
from ..scheduler.reader_core import CoreConfig, ReaderCore
from ..scheduler.reader_core import events as ev
from ..scheduler.reader_core import instructions as do
from ..scheduler.reader_core.delivery import Delivery
from ..scheduler.reader_core.windows import WindowConfig
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved

TEACHERS: Final = tuple(f"teacher-{i}" for i in range(8))
EVERYBODY: Final = frozenset(TEACHERS)
WINDOW: Final = 2
ROWS: Final = 32
BATCH_BYTES: Final = 1 << 20
ROW_LABEL_BYTES: Final = 1 << 7
SECONDS_PER_ROW: Final = 0.1 / ROWS
LIMIT_EVENTS_PER_S: Final = 100_000
LIMIT_CORE_EVENTS_PER_S: Final = 50_000
CORE: Final = "the whole core, steady"


@dataclass(frozen=True, slots=True)
class StreamCase:
    """A kind of stream.

    Attributes:
        name: name in the report.
        loss_every: a teacher is lost and joins again after this many batches; 0: never.
        most_rows: greatest number of rows of a request; None: each request is one batch.
        read_ahead: batches that the source keeps queued.
    """

    name: str
    loss_every: int = 0
    most_rows: int | None = None
    read_ahead: int = 2


CASES: Final = (
    StreamCase("steady"),
    StreamCase("a teacher lost every 100 batches", loss_every=100),
    StreamCase("a batch cut into 4 requests", most_rows=ROWS // 4),
    StreamCase("4 batches joined to a request", most_rows=4 * ROWS, read_ahead=8),
)


def run(quick: bool) -> BenchmarkReport:
    """Measure each case; in each round it processes a whole stream of batches.

    Creating the events is part of the measured time.
    """
    batches = 2_000 if quick else 10_000
    runs = [partial(events_per_s, batches, case) for case in CASES]
    samples = interleaved(*runs, partial(core_events_per_s, batches))
    limits = dict.fromkeys((case.name for case in CASES), LIMIT_EVENTS_PER_S)
    limits[CORE] = LIMIT_CORE_EVENTS_PER_S
    rows: list[Row] = []
    goals = []
    for (name, limit), rates in zip(limits.items(), samples, strict=True):
        estimate = Estimate.of(rates)
        rows.append({"case": name, "batches": batches, **estimate.columns("events_per_s")})
        goals.append(Goal.judge_speed(f"events/s, {name}", estimate, ">=", limit))
    return BenchmarkReport(rows, goals)


def events_per_s(batches: int, case: StreamCase) -> float:
    """Return the events per CPU second of a ledger over a stream of `batches`."""
    began = time.process_time()
    events = Stream(batches, case).drive()
    return events / (time.process_time() - began)


def core_events_per_s(batches: int) -> float:
    """Return the events per CPU second of a whole reader core over a stream of `batches`.

    The core decides after each answer, as in a live engine.
    """
    began = time.process_time()
    events = CoreStream(batches).drive()
    return events / (time.process_time() - began)


class CoreStream:
    """A source, teachers and a student that drive one reader core, in virtual time."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        flow = FlowConfig(upper_bytes=64 * BATCH_BYTES, lower_bytes=32 * BATCH_BYTES)
        config = CoreConfig("s", flow, WindowConfig(WINDOW, WINDOW), canaries=CanaryConfig(0.0))
        self._core = ReaderCore(config, random.Random(1))
        self._delivery = Delivery({"s": self._core.ledger})
        self._released = deque[int]()
        self._requests: deque[do.SendRequest] = deque()
        self._events = 0
        self._now = 0.0

    def drive(self) -> int:
        """Move every batch from the source to the student; return the number of events."""
        self._handle(ev.Assigned(tuple(ev.Peer(name, name, "m") for name in TEACHERS)))
        for number, name in enumerate(TEACHERS, start=1):
            self._handle(ev.Probed(name, number))
        self._handle(ev.Tick())
        delivery, pulled, consumed = self._delivery, 0, 0
        while consumed < self._batches:
            for _ in range(min(self._core.decision.pull, self._batches - pulled)):
                self._handle(ev.Pulled(0.0, ROWS, ROWS))
                delivery.queue(pulled)
                self._handle(ev.Queued(pulled, BATCH_BYTES, ROWS))
                pulled += 1
            if self._requests:
                self._answer(self._requests.popleft())
            self._handle(ev.Tick())
            self._deliver(delivery.tick(self._now))
            while self._released:
                delivery.taken(consumed, 0.01)
                self._handle(ev.BatchTaken(self._released.popleft(), ROWS, 0.01))
                consumed += 1
        return self._events

    def _answer(self, request: do.SendRequest) -> None:
        self._now += 0.1 / len(TEACHERS)
        answer = ev.AnswerCame(
            request.send.teacher,
            request.link,
            request.send.request,
            ROWS,
            ROW_LABEL_BYTES,
            0.1,
            ROWS,
            agrees=EVERYBODY,
        )
        self._handle(answer)

    def _handle(self, event: ev.Event) -> None:
        self._events += 1
        for instruction in self._core.handle(event, self._now):
            if type(instruction) is do.SendRequest:
                self._requests.append(instruction)
            elif type(instruction) is do.BatchLabelled:
                self._deliver(self._delivery.handle("s", instruction))

    def _deliver(self, instructions: list[do.StreamInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.ForwardEvent(_, event):
                    self._handle(event)
                case do.Release(batches):
                    self._released += batches


class Stream:
    """A source, teachers and a student that drive one ledger."""

    def __init__(self, batches: int, case: StreamCase) -> None:
        self._batches = batches
        self._case = case
        self.ledger = Ledger()
        self._in_flight: deque[Send] = deque()
        self._events = 0

    def drive(self) -> int:
        """Move every batch from the source to the student; return the number of events."""
        for teacher in TEACHERS:
            self._join(teacher)
        case, ledger = self._case, self.ledger
        queued = consumed = 0
        while consumed < self._batches:
            while queued < self._batches and ledger.queued < case.read_ahead:
                self._handle(Queued(queued, BATCH_BYTES, ROWS))
                queued += 1
                if case.loss_every and queued % case.loss_every == 0:
                    self._lose(TEACHERS[queued // case.loss_every % len(TEACHERS)])
            send = self._in_flight.popleft()
            self._handle(Answered(send.teacher, send.request, ROW_LABEL_BYTES, 0.1))
            while ledger.has_next(ordered=True):
                self._handle(Released(consumed))
                self._handle(BatchConsumed(consumed))
                consumed += 1
        return self._events

    def _join(self, teacher: str) -> None:
        self._handle(TeacherJoined(teacher, WINDOW, self._case.most_rows, SECONDS_PER_ROW))

    def _lose(self, teacher: str) -> None:
        self._in_flight = deque(send for send in self._in_flight if send.teacher != teacher)
        self._handle(TeacherGone(teacher))
        self._join(teacher)

    def _handle(self, event: Event) -> None:
        self._events += 1
        for instruction in self.ledger.handle(event):
            if type(instruction) is Send:
                self._in_flight.append(instruction)
