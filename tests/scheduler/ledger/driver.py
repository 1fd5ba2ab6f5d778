"""Send events to a ledger, and read its instructions."""

from __future__ import annotations

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev


def after(ledger: Ledger, *events: ev.Event) -> list[ev.Instruction]:
    """Handle events and return all instructions; the ledger is checked after each event."""
    out: list[ev.Instruction] = []
    for event in events:
        out += ledger.handle(event)
        ledger.validate()
    return out


def answer(teacher: str, request: int, device_s: float = 0.1) -> ev.Answered:
    return ev.Answered(teacher, request, row_nbytes=1, device_s=device_s)


def queued(*batches: int, rows: int = 10) -> tuple[ev.Queued, ...]:
    """Batches of 100 bytes."""
    return tuple(ev.Queued(batch, 100, rows) for batch in batches)


def take(*batches: int) -> tuple[ev.Event, ...]:
    """The student may take these batches, and does so."""
    return tuple(event for batch in batches for event in (ev.Released(batch), ev.Taken(batch)))


def whole(batch: int, rows: int = 10) -> tuple[ev.Span, ...]:
    """The spans of a request that is all of one batch."""
    return (ev.Span(batch, 0, rows),)


def sends(out: list[ev.Instruction]) -> list[ev.Send]:
    return [instruction for instruction in out if isinstance(instruction, ev.Send)]


def rows_sent(out: list[ev.Instruction]) -> list[list[tuple[int, int, int]]]:
    """The spans of each `Send`, as plain tuples."""
    return [[(s.batch, s.start, s.stop) for s in send.spans] for send in sends(out)]
