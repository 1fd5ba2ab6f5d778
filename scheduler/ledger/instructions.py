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


class Labelled(NamedTuple):
    """All rows of the batch have their labels: it may be released."""

    batch: int


@dataclass(frozen=True, slots=True)
class GoesUnlabelled:
    """The batch goes without labels: drop those that it has; it may be released."""

    batch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """The batch will never be labelled: raise in its place.

    It comes instead of the batch's `Labelled`. `reasons` are "teacher: what it said", in the order
    in which they refused.
    """

    batch: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelsRevoked:
    """A batch that was `Labelled`, `GoesUnlabelled` or `Poison` is to be labelled anew.

    Attributes:
        batch: its id.
        whole: drop all labels that it has: those to come may be of another shape. False: only some
            rows get others.
    """

    batch: int
    whole: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the store which rows of the batch it has labels for, and answer `Found`.

    Until then the batch is withheld from teachers. One that is looked up already is looked up anew:
    what was found before is of another model.
    """

    batch: int


Instruction = Send | Accept | Discard | Labelled | GoesUnlabelled | LabelsRevoked | Poison | LookUp
