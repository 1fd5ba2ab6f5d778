"""The check of the ledger's invariants catches each way to break them, and names it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from edl.scheduler.ledger_check import LedgerInvariant, check
from edl.scheduler.ledger_state import Batch, Stage, Tables, Teacher


def sound_tables() -> Tables:
    """Batch 0 taken by a student soon, 1 in flight, 2 labelled, 3 refused by a and queued."""
    tables = Tables()
    busy, refuser = Teacher("busy", 1, 1, None), Teacher("refuser", 2, 1, None)
    for teacher in (busy, refuser):
        tables.teachers[teacher.name] = teacher
    for batch_id in range(4):
        tables.admit(batch_id, nbytes=100)
    batches = tables.batches
    tables.deliver(batches[0])
    tables.line.extend(batches[batch_id] for batch_id in (1, 2, 3))
    batches[1].stage = Stage.IN_FLIGHT
    batches[1].holders.add("busy")
    busy.in_flight[1] = batches[1]
    batches[2].stage = Stage.LABELLED
    batches[3].refusals = {"refuser": "bad"}
    tables.refused[3] = batches[3]
    tables.enqueue(batches[3])
    tables.unlabelled = 2
    tables.volume_bytes = 200
    for teacher in (busy, refuser):
        tables.refresh(teacher)
    return tables


def test_sound_tables_pass() -> None:
    check(sound_tables())
    check(Tables())


def forget_one_in_the_line(tables: Tables) -> None:
    tables.line.remove(tables.batches[2])


def swap_the_line(tables: Tables) -> None:
    tables.line.reverse()


def leave_the_head_undelivered(tables: Tables) -> None:
    tables.line.popleft()


def deliver_out_of_order(tables: Tables) -> None:
    tables.line.remove(tables.batches[2])
    tables.deliver(tables.batches[2])


def lose_a_request(tables: Tables) -> None:
    tables.teachers["busy"].in_flight.clear()


def lose_a_holder(tables: Tables) -> None:
    tables.batches[1].holders.clear()


def in_flight_at_nobody(tables: Tables) -> None:
    lose_a_request(tables)
    lose_a_holder(tables)
    tables.refresh(tables.teachers["busy"])
    tables.batches[3].refusals = None


def queue_what_is_in_flight(tables: Tables) -> None:
    tables.enqueue(tables.batches[1])


def queue_one_twice(tables: Tables) -> None:
    tables.queue.append(3)


def drop_one_from_the_queue(tables: Tables) -> None:
    tables.queue.clear()


def send_it_to_the_refuser(tables: Tables) -> None:
    tables.batches[1].refusals = {"busy": "bad"}
    tables.refused[1] = tables.batches[1]


def unlist_a_refused_one(tables: Tables) -> None:
    tables.refused.clear()


def miscount_the_volume(tables: Tables) -> None:
    tables.volume_bytes -= 1


def miscount_the_unlabelled(tables: Tables) -> None:
    tables.unlabelled += 1


def miscount_the_deliverable(tables: Tables) -> None:
    tables.deliverable += 1


def keep_a_forgotten_one(tables: Tables) -> None:
    tables.batches[9] = Batch(9, 100, Stage.FORGOTTEN)


def keep_a_teacher_that_is_done(tables: Tables) -> None:
    tables.teachers["gone"] = Teacher("gone", 3, 1, None, revoked=True)


def list_a_busy_teacher_as_open(tables: Tables) -> None:
    tables.open["busy"] = tables.teachers["busy"]


def overlook_a_free_teacher(tables: Tables) -> None:
    tables.teachers["free"] = Teacher("free", 3, 1, None)


def let_a_free_teacher_idle(tables: Tables) -> None:
    overlook_a_free_teacher(tables)
    tables.refresh(tables.teachers["free"])


def spare_the_poison(tables: Tables) -> None:
    tables.teachers["busy"].revoked = True


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (forget_one_in_the_line, "the line is not the batches that wait"),
        (swap_the_line, "out of order"),
        (leave_the_head_undelivered, "batch 2 is first in line, labelled, and not delivered"),
        (deliver_out_of_order, "batch 2 was delivered before batch 1"),
        (lose_a_request, "batch 1 is in flight at set(), but names {'busy'}"),
        (lose_a_holder, "batch 1 is in flight at {'busy'}, but names set"),
        (in_flight_at_nobody, "batch 1 is in flight at nobody"),
        (queue_what_is_in_flight, "batch 1 is queued and in flight"),
        (queue_one_twice, "the queue is [3, 3]"),
        (drop_one_from_the_queue, "the queue is []"),
        (send_it_to_the_refuser, "batch 1 is in flight at a teacher that refused it"),
        (unlist_a_refused_one, "refused are {3}"),
        (miscount_the_volume, "the volume is 200 bytes, counted are 199"),
        (miscount_the_unlabelled, "2 batches are unlabelled, counted are 3"),
        (miscount_the_deliverable, "1 batches are deliverable, counted are 2"),
        (keep_a_forgotten_one, "batch 9 is forgotten and still listed"),
        (keep_a_teacher_that_is_done, "gone is revoked and done"),
        (list_a_busy_teacher_as_open, "listed are"),
        (overlook_a_free_teacher, "are free, listed are {'refuser'}"),
        (let_a_free_teacher_idle, "batch 3 is queued while ['free'] could take it"),
        (spare_the_poison, "batch 3 was refused by all there are"),
    ],
)
def test_it_names_what_is_broken(breakage: Callable[[Tables], None], words: str) -> None:
    tables = sound_tables()
    breakage(tables)
    with pytest.raises(LedgerInvariant, match=re.escape(words)):
        check(tables)
