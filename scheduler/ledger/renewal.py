"""Labels made anew: the model was exchanged, or their teacher or their batch is not trusted."""

from __future__ import annotations

from dataclasses import replace

from .events import Found, InvalidateBatch, Relabel
from .instructions import Instruction, LookUp, Span
from .state import LABELLED, POISONED, RELEASED, Batch, count, pieces_of
from .tables import Tables


def relabel(tables: Tables, event: Relabel, out: list[Instruction]) -> None:
    """Queue, or withhold, all that is not released as if it had just come.

    Requests that are in flight run out unheard.
    """
    tables.void_requests()
    tables.queue.clear()
    tables.refused.clear()
    tables.withheld.clear()
    for batch in tables.batches.values():
        if batch.stage is not RELEASED:
            _start_over(tables, batch, event.stored)
    if event.stored:
        out += [LookUp(number) for number in tables.withheld]


def found(tables: Tables, event: Found) -> None:
    """A store has been asked: the rows that it lacks go to teachers."""
    if (batch := tables.withheld.pop(event.batch, None)) is None:
        return
    waiting = pieces_of(batch.rows, event.missing)
    batch.row_nbytes = event.row_nbytes
    batch.unlabelled_rows = count(waiting)
    if waiting:
        tables.enqueue(batch, waiting)
    else:
        tables.settle(batch, LABELLED)


def invalidate(tables: Tables, event: InvalidateBatch) -> None:
    """Drop all labels of a batch unless it is released; refusals stand."""
    known = tables.batches.get(event.batch)
    if known is not None and known.stage in (LABELLED, POISONED):
        # A new object: where it went without labels, a request may still be in flight, and refers
        # to the old one. Its answer must not label rows that are sent anew now.
        batch = tables.batches[known.id] = replace(known, waiting=[], unlabelled_rows=0)
        tables.unsettle(batch, batch.disown_all())


def _start_over(tables: Tables, batch: Batch, stored: bool) -> None:
    batch.waiting.clear()
    batch.labels, batch.makers, batch.refusals, batch.alone = (), (), None, False
    if stored:
        tables.withhold(batch)
    else:
        batch.unlabelled_rows = 0  # of those before
        tables.unsettle(batch, (Span(batch.id, 0, batch.rows),), sent=0)
