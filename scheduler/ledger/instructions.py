"""What the ledger tells the shell to do, and the spans of rows that requests are made of.

What is made anew for every batch is a named tuple, which takes half the time of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Rows [start, stop) of a batch, at least one."""

    batch: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


class Send(NamedTuple):
    """Send these rows to the teacher as one request.

    Attributes:
        request: its number; a hedge has that of the request it is a copy of.
        teacher: where it goes.
        spans: what it is made of, by batch and row; adjacent rows are one span.
        attempt: 1 the first time that these rows are sent; more for a resend or a hedge.
    """

    request: int
    teacher: str
    spans: tuple[Span, ...]
    attempt: int


class Accept(NamedTuple):
    """The answer counts: write the labels of `spans` into their batches.

    Spans of the request that are not among them are of batches that are over.
    """

    request: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the labels that this teacher sent: late, not the first, on trial, or of no use any more.

    It ends a copy; another teacher may still be at work on the request.
    """

    request: int
    teacher: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the labelled batch to the student; each once, unless it was recalled.

    In order of ids, or as soon as it is labelled where the ledger was made so.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """The batch will never be labelled: raise in its place in the line, and forget it.

    It comes instead of the batch's `Deliver`; in an ordered stream when every earlier batch has
    been delivered. `reasons` are "teacher: what it said", in the order in which they refused.
    """

    batch: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Ask the student's side to hand back a delivered batch, as some of its labels are doubted.

    It answers `Recalled`, or `Taken` if it was too late.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class Void:
    """Drop what there is of the labels of a batch that was handed back: it gets others, whole.

    They may be of another shape, if the model was exchanged meanwhile.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the store which rows of the batch it has labels for, and answer `Found`.

    Until then the batch is withheld from teachers. One that is looked up already is looked up anew:
    what was found before is of another model.
    """

    batch: int


Instruction = Send | Accept | Discard | Deliver | Poison | Recall | Void | LookUp
