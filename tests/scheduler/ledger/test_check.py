"""The check of the ledger's invariants, and how the work per event grows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.ledger.events import Span
from edl.scheduler.ledger.state import (
    BatchStage,
    LedgerBatch,
    LedgerRequest,
    LedgerTeacher,
    Refusal,
    Tables,
)

from .invariants import check_tables


def valid_tables() -> Tables:
    """Batch 0 is the student's, 1 in flight, 2 labelled, 3 refused by `refuser` and queued."""
    tables = Tables()
    busy, refuser = LedgerTeacher("busy", 1, 1), LedgerTeacher("refuser", 2, 1)
    for teacher in (busy, refuser):
        tables.teachers[teacher.name] = teacher
    for batch_id in range(4):
        tables.admit(LedgerBatch(batch_id, 4, 100, 0, [(0, 4, 0)], 4))
    batches = tables.batches
    tables.unlabelled = 4
    for batch_id in (0, 2):
        batches[batch_id].waiting.clear()
        tables.label(Span(batch_id, 0, 4), "busy", 0)
    tables.batch_instructions.clear()
    batches[0].stage = BatchStage.RELEASED
    batches[1].waiting.clear()
    busy.in_flight[7] = LedgerRequest(7, (Span(1, 0, 4),), (batches[1],), 4, 1, {"busy"})
    busy.rows_in_flight = 4
    batches[3].refusals = {"refuser": Refusal("bad", blames_batch=True)}
    tables.refused[3] = batches[3]
    tables.queue.append(3)
    for teacher in (busy, refuser):
        tables.refresh(teacher)
    return tables


@contextmanager
def broken(message: str) -> Iterator[Tables]:
    """Tables that the caller breaks; the check has to fail with `message`."""
    tables = valid_tables()
    yield tables
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_tables(tables)


class TestInvariants:
    def test_valid_tables_pass(self) -> None:
        check_tables(valid_tables())
        check_tables(Tables())

    def test_rows(self) -> None:
        with broken("batch 1 lacks 0 rows, counted are 4") as tables:
            tables.teachers["busy"].in_flight.clear()
        with broken("batch 1 lacks 0 rows, counted are 4") as tables:
            tables.teachers["busy"].in_flight[7].holders.clear()
        with broken("batch 1 of 4 rows has rows twice or too many") as tables:
            tables.batches[1].waiting.append((2, 4, 0))
        with broken("batch 2 is labelled, and rows of it wait") as tables:
            tables.batches[2].waiting.append((0, 1, 0))
        with broken("batch 3 has rows that wait out of order") as tables:
            tables.batches[3].waiting[:] = [(2, 4, 0), (0, 2, 0)]
        with broken("batch 3 of 4 rows has rows twice or too many") as tables:
            tables.batches[3].waiting.append((4, 5, 0))
        with broken("batch 3 is unlabelled, but no row waits or is in flight") as tables:
            tables.batches[3].waiting.clear()
            tables.batches[3].unlabelled_rows = 0
            tables.queue.clear()
        with broken("batch 3 lacks 4 rows, counted are 3") as tables:
            tables.batches[3].unlabelled_rows = 3

    def test_counts(self) -> None:
        with broken("the queue is [3, 3]") as tables:
            tables.queue.append(3)
        with broken("the queue is []") as tables:
            tables.queue.clear()
        with broken("refused are {3}") as tables:
            tables.refused.clear()
        with broken("the volume is 200 bytes, counted are 199") as tables:
            tables.volume_bytes -= 1
        with broken("2 batches are unlabelled, counted are 3") as tables:
            tables.unlabelled += 1
        with broken("batches are listed out of order: [1, 2, 3, 0]") as tables:
            tables.batches[0] = tables.batches.pop(0)
        with broken("instructions were not returned: [BatchLabelled(batch=2)]") as tables:
            tables.batch_instructions.append(ev.BatchLabelled(2))

    def test_teachers_and_requests(self) -> None:
        with broken("request 7 is in flight at {'busy'}, but names") as tables:
            tables.teachers["busy"].in_flight[7].holders.add("refuser")
        with broken("4 rows are in flight at busy, not 3") as tables:
            tables.teachers["busy"].rows_in_flight = 3
        with broken("gone is revoked and done") as tables:
            tables.teachers["gone"] = LedgerTeacher("gone", 3, 1, revoked=True)
        with broken("listed are") as tables:
            tables.with_room["busy"] = tables.teachers["busy"]
        with broken("have room, listed are {'refuser'}") as tables:
            tables.teachers["free"] = LedgerTeacher("free", 3, 1)
        with broken("batch 3 is queued while ['free'] could take it") as tables:
            tables.teachers["free"] = LedgerTeacher("free", 3, 1)
            tables.refresh(tables.teachers["free"])
        with broken("batch 3 was refused by all teachers") as tables:
            tables.teachers["busy"].revoked = True
            tables.refresh(tables.teachers["busy"])
        with broken("teacher busy is usable: True") as tables:
            tables.teachers["busy"].revoked = True
        with broken("request 7 waits to be hedged while ['refuser'] could take it") as tables:
            tables.hedges.append((tables.teachers["busy"].in_flight[7], None))


def lines_executed(act: Callable[[], object]) -> int:
    """Count the lines of Python that `act` runs: its work, whatever the machine does besides."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


class TestWork:
    """The work per batch must not grow with the number of batches that the ledger holds."""

    def test_a_late_head(self) -> None:
        def work(batches: int) -> int:
            ledger = Ledger()
            ledger.handle(ev.TeacherJoined("late", 1))
            ledger.handle(ev.Queued(0, 1000, 32))
            ledger.handle(ev.TeacherJoined("quick", 1))

            def run() -> None:
                for batch in range(1, batches + 1):
                    ledger.handle(ev.Queued(batch, 1000, 32))
                    ledger.handle(ev.Answered("quick", batch + 1, 10, 0.1))
                ledger.handle(ev.Answered("late", 1, 10, 9.9))
                assert ledger.labelled == batches + 1
                for batch in range(batches + 1):
                    ledger.handle(ev.Released(batch))
                    ledger.handle(ev.BatchConsumed(batch))

            return lines_executed(run)

        assert work(300) < 15 * work(30)  # a scan for each batch would make it 100

    def test_labels_that_are_void(self) -> None:
        """All batches are searched once for labels of an ejected teacher, not for each batch."""

        def work(batches: int) -> int:
            ledger = Ledger()
            ledger.handle(ev.TeacherJoined("liar", 1))
            for batch in range(batches):
                ledger.handle(ev.Queued(batch, 1000, 32))
                ledger.handle(ev.Answered("liar", batch + 1, 10, 0.1))

            def run() -> None:
                ledger.handle(ev.InvalidateTeacher("liar"))
                assert ledger.labelled == 0
                ledger.handle(ev.TeacherJoined("honest", 1))
                for request in range(batches + 1, 2 * batches + 1):
                    ledger.handle(ev.Answered("honest", request, 10, 0.1))
                assert ledger.labelled == batches

            return lines_executed(run)

        assert work(300) < 15 * work(30)
