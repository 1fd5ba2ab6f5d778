"""How labels that were good are made anew: the model is exchanged, or who made them is doubted."""

from __future__ import annotations

from dataclasses import replace

from .events import Doubt, Found, Recalled, Relabel
from .instructions import Instruction, LookUp, Recall, Span, Void
from .pieces import count, pieces_of
from .state import DELIVERED, LABELLED, UNLABELLED, Batch
from .tables import Tables


def relabel(tables: Tables, event: Relabel, out: list[Instruction]) -> None:
    """Label anew all that is not delivered, and what was delivered out of its turn."""
    _start_over(tables, event.stored)
    if tables.ordered:
        _recall_what_is_ahead(tables, out)
    for batch in tables.recalled.values():
        batch.disown_all()
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


def doubt(tables: Tables, event: Doubt, out: list[Instruction]) -> None:
    """No label of a batch that is delivered is to be believed."""
    batch = tables.batches.get(event.batch)
    if batch is not None and batch.stage is DELIVERED:
        batch.disown_all()
        recall(tables, batch, out)
        recall_what_is_outdated(tables, out)


def recall(tables: Tables, batch: Batch, out: list[Instruction]) -> None:
    """Have a delivered batch handed back, of which rows are doubted; once."""
    if batch.id not in tables.recalled:
        tables.recalled[batch.id] = batch
        out.append(Recall(batch.id))


def recall_what_is_outdated(tables: Tables, out: list[Instruction]) -> None:
    """In order, behind a batch that gets labels of the new model none keeps those of the old."""
    outdated = [batch for batch in tables.recalled.values() if batch.outdated]
    if not (tables.ordered and outdated):
        return
    first = min(batch.id for batch in outdated)
    for batch in tables.batches.values():
        if batch.stage is DELIVERED and batch.outdated and batch.id > first:
            batch.disown_all()
            recall(tables, batch, out)


def take_back(tables: Tables, event: Recalled, out: list[Instruction]) -> None:
    """A batch is handed back: in line with it, where its id belongs.

    Raises:
        ValueError: nobody has recalled it.
    """
    if (batch := tables.batches.get(event.batch)) is None:
        return  # of an epoch that was left
    if batch.id not in tables.recalled:
        raise ValueError(f"batch {batch.id} was handed back, but nobody has recalled it")
    del tables.recalled[batch.id]
    tables.deliverable -= 1
    doubted = batch.doubted
    # A new object: a request from before its delivery may still be in flight, and refers to the
    # old one. Its answer must not label rows that are sent anew now.
    batch = replace(batch, waiting=[], doubted=(), outdated=False)
    tables.batches[batch.id] = batch
    if sum(span.rows for span in doubted) == batch.rows:
        out.append(Void(batch.id))
    if batch.stored:
        batch.stored = False
        tables.withhold(batch)
        out.append(LookUp(batch.id))
    else:
        tables.unsettle(batch, doubted)
    tables.line_up(batch)


def _start_over(tables: Tables, stored: bool) -> None:
    """Queue, or withhold, all that is not delivered as if it had just come; the rest is outdated.

    Requests that are in flight run out unheard.
    """
    tables.void_requests()
    tables.queue.clear()
    tables.refused.clear()
    tables.withheld.clear()
    for batch in tables.batches.values():
        if batch.stage is DELIVERED:
            batch.outdate(stored)
            continue
        batch.waiting.clear()
        batch.labels, batch.refusals, batch.alone = (), None, False
        if stored:
            tables.withhold(batch)
        else:
            batch.unlabelled_rows = 0  # of those before
            tables.unsettle(batch, (Span(batch.id, 0, batch.rows),), sent=0)


def _recall_what_is_ahead(tables: Tables, out: list[Instruction]) -> None:
    """Delivered batches behind one that gets new labels: the stream changes over at one place."""
    first = min(
        (
            batch.id
            for batch in tables.batches.values()
            if batch.stage is UNLABELLED or batch.id in tables.recalled
        ),
        default=None,
    )
    if first is None:
        return
    for batch in tables.batches.values():
        if batch.stage is DELIVERED and batch.id > first:
            recall(tables, batch, out)
