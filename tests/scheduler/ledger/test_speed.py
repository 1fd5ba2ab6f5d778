"""The ledger takes at least 100,000 events a second, the making of the events included."""

from __future__ import annotations

import time
from collections import deque

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.events import (
    Answered,
    Deliver,
    Disbelieve,
    Queued,
    Recall,
    Recalled,
    Send,
    Taken,
    TeacherJoined,
)

TEACHERS, WINDOW, READ_AHEAD, ROWS = 8, 2, 16, 32
EVENTS_PER_S = 100_000


@pytest.mark.serial
@pytest.mark.parametrize("most_rows", [None, 24, 100])
def test_events_per_second(most_rows: int | None) -> None:
    rates = [events_per_cpu_s(batches=10_000, most_rows=most_rows) for _ in range(5)]
    print(f"ledger: {max(rates):,.0f} events/s")
    assert max(rates) >= EVENTS_PER_S


@pytest.mark.serial
@pytest.mark.parametrize("ordered", [True, False])
def test_an_event_costs_no_more_however_long_the_line_is(ordered: bool) -> None:
    """A head that nobody labels for long, and thousands of labelled batches behind it."""
    short = min(cost_behind_a_late_head(1_000, ordered) for _ in range(5))
    long = min(cost_behind_a_late_head(30_000, ordered) for _ in range(3))
    assert long < 5 * short  # a scan of the line would make it 30


@pytest.mark.serial
def test_a_batch_that_is_handed_back_costs_no_more_however_many_there_are() -> None:
    """To find what a liar labelled, all that is held is looked at once, not for each batch."""
    short = min(cost_of_handing_back(1_000) for _ in range(5))
    long = min(cost_of_handing_back(30_000) for _ in range(3))
    assert long < 5 * short


def events_per_cpu_s(batches: int, most_rows: int | None) -> float:
    """Batches from the source to the student, as fast as it goes."""
    ledger = Ledger()
    for index in range(TEACHERS):
        seconds_per_row = 0.001 + 0.0001 * index
        ledger.handle(TeacherJoined(f"teacher-{index}", WINDOW, most_rows, seconds_per_row))
    in_flight: deque[Send] = deque()
    handle = ledger.handle
    queued = answered = taken = 0
    began = time.process_time()
    while taken < batches:
        while ledger.queued < READ_AHEAD:
            in_flight.extend(i for i in handle(Queued(queued, 1000, ROWS)) if isinstance(i, Send))
            queued += 1
        done = in_flight.popleft()
        answered += 1
        for instruction in handle(Answered(done.teacher, done.request, 10, 0.1)):
            if isinstance(instruction, Send):
                in_flight.append(instruction)
            elif isinstance(instruction, Deliver):
                handle(Taken(instruction.batch))
                taken += 1
    return (queued + answered + taken) / (time.process_time() - began)


def cost_behind_a_late_head(batches: int, ordered: bool) -> float:
    """CPU seconds of one batch when this many are labelled and not taken."""
    ledger = Ledger(ordered=ordered)
    ledger.handle(TeacherJoined("late", 1))
    ledger.handle(Queued(0, 1000, ROWS))
    ledger.handle(TeacherJoined("quick", 1))
    began = time.process_time()
    for batch in range(1, batches + 1):
        ledger.handle(Queued(batch, 1000, ROWS))
        ledger.handle(Answered("quick", batch + 1, 10, 0.1))
    out = ledger.handle(Answered("late", 1, 10, 9.9))
    assert sum(isinstance(i, Deliver) for i in out) == (batches + 1 if ordered else 1)
    return (time.process_time() - began) / batches


def cost_of_handing_back(batches: int) -> float:
    """CPU seconds of one batch when this many of a liar's are recalled, and labelled anew."""
    ledger = Ledger()
    ledger.handle(TeacherJoined("liar", 1))
    for batch in range(batches):
        ledger.handle(Queued(batch, 1000, ROWS))
        ledger.handle(Answered("liar", batch + 1, 10, 0.1))
    began = time.process_time()
    recalled = [i.batch for i in ledger.handle(Disbelieve("liar")) if isinstance(i, Recall)]
    ledger.handle(TeacherJoined("honest", 1))
    for batch in recalled:
        ledger.handle(Recalled(batch))
        ledger.handle(Answered("honest", batches + batch + 1, 10, 0.1))
    assert ledger.deliverable == batches
    return (time.process_time() - began) / batches
