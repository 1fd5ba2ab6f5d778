"""The check of the ledger's invariants catches each way to break them, and names it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from edl.scheduler.ledger import LedgerInvariant
from edl.scheduler.ledger.check import check
from edl.scheduler.ledger.instructions import Span
from edl.scheduler.ledger.state import Batch, Request, Stage, Teacher
from edl.scheduler.ledger.tables import Tables


def batch_of(batch_id: int, rows: int = 4) -> Batch:
    return Batch(batch_id, rows, 100, 0, [(0, rows, 0)], rows)


def sound_tables(*, ordered: bool = True) -> Tables:
    """Batch 0 is the student's, 1 in flight, 2 labelled, 3 refused by a and queued."""
    tables = Tables(ordered)
    busy, refuser = Teacher("busy", 1, 1), Teacher("refuser", 2, 1)
    for teacher in (busy, refuser):
        tables.teachers[teacher.name] = teacher
    for batch_id in range(4):
        tables.admit(batch_of(batch_id))
    batches = tables.batches
    tables.unlabelled = 4
    for batch_id in (0, 2):
        batches[batch_id].waiting.clear()
        tables.label(Span(batch_id, 0, 4), "busy", 0)
    tables.line.clear()
    tables.deliver(batches[0])
    if ordered:
        tables.line.extend(batches[batch_id] for batch_id in (1, 2, 3))
    else:
        tables.deliver(batches[2])
    batches[1].waiting.clear()
    busy.in_flight[7] = Request(7, (Span(1, 0, 4),), (batches[1],), 4, 1, {"busy"})
    busy.rows_in_flight = 4
    batches[3].refusals = {"refuser": "bad"}
    tables.refused[3] = batches[3]
    tables.queue.append(3)
    for teacher in (busy, refuser):
        tables.refresh(teacher)
    return tables


@pytest.mark.parametrize("ordered", [True, False])
def test_sound_tables_pass(ordered: bool) -> None:
    check(sound_tables(ordered=ordered))
    check(Tables(ordered))


def forget_one_in_the_line(tables: Tables) -> None:
    tables.line.remove(tables.batches[2])


def swap_the_line(tables: Tables) -> None:
    tables.line.reverse()


def leave_the_head_undelivered(tables: Tables) -> None:
    tables.line.popleft()


def deliver_out_of_order(tables: Tables) -> None:
    tables.line.remove(tables.batches[2])
    tables.deliver(tables.batches[2])


def settle_without_order(tables: Tables) -> None:
    tables.ordered = False
    tables.line.clear()


def lose_a_request(tables: Tables) -> None:
    tables.teachers["busy"].in_flight.clear()


def lose_a_holder(tables: Tables) -> None:
    tables.teachers["busy"].in_flight[7].holders.clear()


def name_a_stranger(tables: Tables) -> None:
    tables.teachers["busy"].in_flight[7].holders.add("refuser")


def miscount_rows_in_flight(tables: Tables) -> None:
    tables.teachers["busy"].rows_in_flight = 3


def queue_what_is_in_flight(tables: Tables) -> None:
    tables.batches[1].waiting.append((2, 4, 0))


def queue_what_is_labelled(tables: Tables) -> None:
    tables.batches[2].waiting.append((0, 1, 0))


def swap_what_waits(tables: Tables) -> None:
    tables.batches[3].waiting[:] = [(2, 4, 0), (0, 2, 0)]


def invent_a_row(tables: Tables) -> None:
    tables.batches[3].waiting.append((4, 5, 0))


def lack_nothing(tables: Tables) -> None:
    tables.batches[3].waiting.clear()
    tables.batches[3].unlabelled_rows = 0
    tables.queue.clear()


def miscount_what_is_lacking(tables: Tables) -> None:
    tables.batches[3].unlabelled_rows = 3


def queue_one_twice(tables: Tables) -> None:
    tables.queue.append(3)


def drop_one_from_the_queue(tables: Tables) -> None:
    tables.queue.clear()


def unlist_a_refused_one(tables: Tables) -> None:
    tables.refused.clear()


def miscount_the_volume(tables: Tables) -> None:
    tables.volume_bytes -= 1


def miscount_the_unlabelled(tables: Tables) -> None:
    tables.unlabelled += 1


def miscount_the_deliverable(tables: Tables) -> None:
    tables.deliverable += 1


def doubt_without_a_recall(tables: Tables) -> None:
    tables.batches[0].doubted = (Span(0, 0, 1),)


def recall_what_is_not_out(tables: Tables) -> None:
    tables.batches[2].doubted = (Span(2, 0, 1),)
    tables.recalled[2] = tables.batches[2]


def keep_a_teacher_that_is_done(tables: Tables) -> None:
    tables.teachers["gone"] = Teacher("gone", 3, 1, revoked=True)


def list_a_busy_teacher_as_open(tables: Tables) -> None:
    tables.open["busy"] = tables.teachers["busy"]


def overlook_a_free_teacher(tables: Tables) -> None:
    tables.teachers["free"] = Teacher("free", 3, 1)


def let_a_free_teacher_idle(tables: Tables) -> None:
    overlook_a_free_teacher(tables)
    tables.refresh(tables.teachers["free"])


def spare_the_poison(tables: Tables) -> None:
    tables.teachers["busy"].revoked = True


def hold_back_a_hedge(tables: Tables) -> None:
    tables.hedges.append((tables.teachers["busy"].in_flight[7], None))


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (forget_one_in_the_line, "the line is not the batches that wait"),
        (swap_the_line, "out of order"),
        (leave_the_head_undelivered, "batch 2 is first in line, labelled, and not delivered"),
        (deliver_out_of_order, "batch 2 was delivered before batch 1"),
        (settle_without_order, "batches [2] are settled and not delivered"),
        (lose_a_request, "batch 1 lacks 0 rows, counted are 4"),
        (lose_a_holder, "batch 1 lacks 0 rows, counted are 4"),
        (name_a_stranger, "request 7 is in flight at {'busy'}, but names"),
        (miscount_rows_in_flight, "4 rows are in flight at busy, not 3"),
        (queue_what_is_in_flight, "batch 1 of 4 rows has rows twice or too many"),
        (queue_what_is_labelled, "batch 2 is labelled, and rows of it wait"),
        (swap_what_waits, "batch 3 has rows that wait out of order"),
        (invent_a_row, "batch 3 of 4 rows has rows twice or too many"),
        (lack_nothing, "batch 3 is unlabelled, and nobody is to label it"),
        (miscount_what_is_lacking, "batch 3 lacks 4 rows, counted are 3"),
        (queue_one_twice, "the queue is [3, 3]"),
        (drop_one_from_the_queue, "the queue is []"),
        (unlist_a_refused_one, "refused are {3}"),
        (miscount_the_volume, "the volume is 200 bytes, counted are 199"),
        (miscount_the_unlabelled, "2 batches are unlabelled, counted are 3"),
        (miscount_the_deliverable, "1 batches are deliverable, counted are 2"),
        (doubt_without_a_recall, "doubted are {0}, recalled are set()"),
        (recall_what_is_not_out, "batch 2 is recalled, but it is labelled"),
        (keep_a_teacher_that_is_done, "gone is revoked and done"),
        (list_a_busy_teacher_as_open, "listed are"),
        (overlook_a_free_teacher, "are free, listed are {'refuser'}"),
        (let_a_free_teacher_idle, "batch 3 is queued while ['free'] could take it"),
        (spare_the_poison, "batch 3 was refused by all there are"),
        (hold_back_a_hedge, "request 7 waits to be hedged while ['refuser'] could take it"),
    ],
)
def test_it_names_what_is_broken(breakage: Callable[[Tables], None], words: str) -> None:
    tables = sound_tables()
    breakage(tables)
    with pytest.raises(LedgerInvariant, match=re.escape(words)):
        check(tables)


def test_one_that_was_handed_back_may_be_behind_later_ones() -> None:
    tables = sound_tables()
    tables.line.remove(tables.batches[2])
    tables.deliver(tables.batches[2])
    tables.batches[1].returned = True
    assert tables.batches[2].stage is Stage.DELIVERED
    check(tables)
