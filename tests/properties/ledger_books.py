"""What the world around a ledger writes down: of each teacher, of each request, of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from edl.scheduler.ledger import events as ev

ROW_NBYTES: Final = 7
WAITS: Final = None  # a row that nobody has; an int: in flight in this request; a str: labelled by
STORE: Final = "the store"

Row = int | str | None


@dataclass
class Worker:
    """A teacher as the world sees it."""

    window: int
    most_rows: int | None = None
    revoked: bool = False
    resting: bool = False
    on_trial: bool = False
    requests: list[int] = field(default_factory=list)  # in the order of sending

    @property
    def usable(self) -> bool:
        return not (self.revoked or self.resting or self.on_trial)


@dataclass
class Asked:
    """A request: what it is made of, how often it was sent, whose answer would count."""

    spans: tuple[ev.Span, ...]
    attempt: int
    counts: set[str]
    wished: int = 0  # copies asked for and not sent


@dataclass
class Book:
    """A batch that is not over."""

    rows: list[Row]
    nbytes: int
    kind: int = 0
    said: dict[str, str] = field(default_factory=dict)  # who refused it, and why
    alone: bool = False
    condemned: bool = False  # will be poison
    forgone: bool = False
    doubted: set[int] = field(default_factory=set)  # rows, while it is delivered
    recalled: bool = False  # the student's side is asked for it
    returned: bool = False
    held: bool = False  # from an engine before this one
    withheld: bool = False  # until a store has said what it has
    looked_up: bool = False  # it is asked
    to_look_up: bool = False  # once it is handed back
    makers: set[str] = field(default_factory=set)  # of labels that are doubted together
    outdated: bool = False  # the student has it with labels of a model that was exchanged since
    ages: dict[int, int] = field(default_factory=dict)  # row -> how often it was sent

    @property
    def settled(self) -> bool:
        return self.condemned or self.forgone or all(isinstance(row, str) for row in self.rows)

    @property
    def waits(self) -> bool:
        return not self.settled and not self.withheld and WAITS in self.rows

    def withhold(self) -> None:
        self.withheld, self.looked_up = True, False

    def outdate(self, stored: bool) -> None:
        """Its model is exchanged while the student has it; what was refused is void."""
        self.makers |= {row for row in self.rows if isinstance(row, str) and row != STORE}
        self.rows = [STORE if isinstance(row, str) else row for row in self.rows]
        self.said, self.alone = {}, False
        self.outdated, self.to_look_up = True, stored
        if self.forgone:
            self.makers.clear()

    def doubt(self) -> None:
        self.doubted = set(range(len(self.rows)))
        self.makers.clear()

    @property
    def volume(self) -> int:
        return self.nbytes + ROW_NBYTES * len(self.rows) * (not self.forgone)


def runs_of(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Growing row numbers as runs (start, stop)."""
    starts = [row for row in rows if row - 1 not in rows]
    stops = [row + 1 for row in rows if row + 1 not in rows]
    return tuple(zip(starts, stops, strict=True))
