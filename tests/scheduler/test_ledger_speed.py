"""The ledger takes at least 100,000 events a second, the making of the events included."""

from __future__ import annotations

import time
from collections import deque

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger_events import Answered, Deliver, Queued, Send, Taken, TeacherJoined

TEACHERS, WINDOW, READ_AHEAD = 8, 2, 16
EVENTS_PER_S = 100_000


@pytest.mark.serial
def test_events_per_second() -> None:
    rates = [events_per_cpu_s(batches=10_000) for _ in range(5)]
    print(f"ledger: {max(rates):,.0f} events/s")
    assert max(rates) >= EVENTS_PER_S


@pytest.mark.serial
def test_an_event_costs_no_more_however_long_the_line_is() -> None:
    """A head that nobody labels for long, and thousands of labelled batches behind it."""
    short = min(cost_behind_a_late_head(batches=1_000) for _ in range(5))
    long = min(cost_behind_a_late_head(batches=30_000) for _ in range(3))
    assert long < 5 * short  # a scan of the line would make it 30


def events_per_cpu_s(batches: int) -> float:
    """Batches from the source to the student, as fast as it goes."""
    ledger = Ledger()
    for index in range(TEACHERS):
        ledger.handle(TeacherJoined(f"teacher-{index}", WINDOW, 0.1 + 0.01 * index))
    in_flight: deque[Send] = deque()
    handle = ledger.handle
    queued = taken = 0
    began = time.process_time()
    while taken < batches:
        while ledger.queued < READ_AHEAD:
            in_flight.extend(i for i in handle(Queued(queued, 1000)) if isinstance(i, Send))
            queued += 1
        done = in_flight.popleft()
        for instruction in handle(Answered(done.teacher, done.batch, 10, 0.1)):
            if isinstance(instruction, Send):
                in_flight.append(instruction)
            elif isinstance(instruction, Deliver):
                handle(Taken(instruction.batch))
                taken += 1
    answered = queued - READ_AHEAD - len(in_flight)
    return (queued + answered + taken) / (time.process_time() - began)


def cost_behind_a_late_head(batches: int) -> float:
    """CPU seconds of one batch when the line grows to this many batches."""
    ledger = Ledger()
    ledger.handle(TeacherJoined("late", 1))
    ledger.handle(Queued(0, 1000))
    ledger.handle(TeacherJoined("quick", 1))
    began = time.process_time()
    for batch in range(1, batches + 1):
        ledger.handle(Queued(batch, 1000))
        ledger.handle(Answered("quick", batch, 10, 0.1))
    assert len(ledger.handle(Answered("late", 0, 10, 9.9))) == batches + 1
    return (time.process_time() - began) / batches
