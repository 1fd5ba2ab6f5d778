"""A ledger that has one healthy teacher moves its line, whatever has become of the others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import ceil

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev

from .ledger_books import ROW_NBYTES
from .ledger_world import World


def check_liveness(world: World, names: Sequence[str]) -> None:
    """Liveness: the head is out after k answers of one healthy teacher, all others lost.

    Stores that are asked answer, too. k = its window, which others' lost rows may fill before the
    head itself is lost, and as many requests as the head is cut into. Poison is a way out as well,
    where the teacher itself has refused the head.
    """
    for name, worker in world.workers.items():
        if world.line and worker.usable:
            head = len(world.books[world.line[0]].rows)
            pieces = ceil(head / (worker.most_rows or head))
            answers = _answers_until_the_head_is_out(copy.deepcopy(world.ledger), name, names)
            assert answers <= max(worker.window, len(worker.requests)) + pieces


def _answers_until_the_head_is_out(ledger: Ledger, healthy: str, names: Sequence[str]) -> int:
    """Lose all of `names` but one, let that answer in order: how many answers bring the line on."""
    others = [name for name in names if name != healthy]
    out = [i for name in others for i in ledger.handle(ev.TeacherLost(name))]
    out += [i for batch in tuple(ledger.withheld) for i in ledger.handle(ev.Found(batch))]
    out += ledger.handle(ev.Awaited(0))
    answers = 0
    while not any(isinstance(instruction, ev.Deliver | ev.Poison) for instruction in out):
        oldest = ledger.in_flight_at(healthy)
        assert oldest, "the healthy teacher idles while the head of the line waits"
        out = ledger.handle(ev.Answered(healthy, oldest[0], ROW_NBYTES, 0.1))
        ledger.validate()
        answers += 1
    return answers
