"""What all ranks do at a step, decided by each of them from the votes of all: nobody leads.

Before each step every rank says in a few numbers how it stands. All get all votes, in the order of
ranks, and `decide` is a function of them alone: so all do the same, or none of it would end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final, Literal, Self

#: A rank may be so much later than others before those, waiting in a collective, are cut off.
#: Steps that take this long are waited for in a way that knows no such limit.
PATIENT_FROM_S: Final = 5.0

#: "step": train what is there; "again": some rank has no batch yet, ask once more; "over": nobody
#: has anything left of this epoch.
Verdict = Literal["step", "again", "over"]


@dataclass(frozen=True, slots=True)
class Vote:
    """How one rank stands before a step.

    Attributes:
        rows: of the batch that it holds; 0: it has none left of this epoch.
        waiting: it waits for a batch: `rows` says nothing yet.
        leaving: its supervisor wants it to leave at a safe point.
        save: it is time for a snapshot.
        pulled: the last step for which it may have pulled rows, or may until it is told more.
        row_s: seconds per row of its step before, of its source or of computing, whichever takes
            longer; 0: not known.
        busy_s: seconds between the vote before and this one.
    """

    rows: int = 0
    waiting: bool = False
    leaving: bool = False
    save: bool = False
    pulled: int = -1
    row_s: float = 0.0
    busy_s: float = 0.0

    def to_numbers(self) -> tuple[float, ...]:
        """For a vector of float64, which holds them exactly."""
        return tuple(float(value) for value in astuple(self))

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        rows, waiting, leaving, save, pulled, row_s, busy_s = numbers
        return cls(int(rows), bool(waiting), bool(leaving), bool(save), int(pulled), row_s, busy_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks do now.

    Attributes:
        verdict: of the step.
        rows: of each rank; empty unless it is "step".
        leave: behind this step (at once, where there is none) all leave.
        save: behind this step there is a snapshot.
        free_from: the first step whose shares can still be changed.
        patient: ranks may be far apart at what comes now.
    """

    verdict: Verdict
    rows: tuple[int, ...] = ()
    leave: bool = False
    save: bool = False
    free_from: int = 0
    patient: bool = False

    @property
    def total(self) -> int:
        """Rows of all ranks."""
        return sum(self.rows)


def decide(votes: Sequence[Vote]) -> Decision:
    """What follows from the votes of all ranks, in their order."""
    verdict: Verdict
    if any(vote.waiting for vote in votes):
        verdict = "again"
    else:
        verdict = "step" if any(vote.rows for vote in votes) else "over"
    return Decision(
        verdict,
        tuple(vote.rows for vote in votes) if verdict == "step" else (),
        leave=any(vote.leaving for vote in votes),
        save=verdict == "step" and any(vote.save for vote in votes),
        free_from=max(vote.pulled for vote in votes) + 1,
        patient=any(vote.busy_s > PATIENT_FROM_S for vote in votes),
    )
