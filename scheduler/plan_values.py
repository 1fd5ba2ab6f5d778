"""What a plan says: each way to train, what it brings and costs, and which to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .mesh_values import Mesh, Prediction

#: N-training does without a teacher; Online runs it on the student's device; the store has teachers
#: label the first epoch, and keeps the labels; the mesh has them label each.
Method = Literal["N-training", "Online", "offline store", "mesh"]
#: What is asked of a plan, within its deadline and budget.
Aim = Literal["fastest", "cheapest"]


def money(amount: float) -> str:
    """A sum of money: cents where it is not small, else three digits."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.3g}"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train the job.

    Attributes:
        method: which.
        why_not: why it cannot be; empty: it can, and what follows says how.
        samples_per_s: in the steady state; of the store, the mean over all epochs.
        epoch_s: of one epoch, on average.
        total_s: of all epochs.
        cost_per_hour: of all devices that it uses, while it uses them.
        cost: of all epochs.
        teachers: how many devices label.
    """

    method: Method
    why_not: str = ""
    samples_per_s: float = 0.0
    epoch_s: float = 0.0
    total_s: float = 0.0
    cost_per_hour: float = 0.0
    cost: float = 0.0
    teachers: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the mesh is worth it.

    Attributes:
        worth: whether to take it.
        take: the method to take, of those that distil; None: none can be.
        reasons: sentences, the most important first.
    """

    worth: bool
    take: Method | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to "how many teachers, what will it cost, is it worth it?".

    Attributes:
        job: its name.
        currency: of costs.
        student: kind of devices that train.
        students: how many.
        rows: of a student's batch.
        mesh: who does what; None where no mesh can be.
        prediction: of that mesh.
        needed: n = ceil(t_t / t_s), teachers for one student by the paper's ratio; 0: no mesh.
        micro_batches: rows that each kind of teachers should take at once, as far as known.
        upper_bytes: `ut` of a reader.
        lower_bytes: `lt`.
        ways: all four, to compare.
        verdict: which to take.
    """

    job: str
    currency: str
    student: str
    students: int
    rows: int
    mesh: Mesh | None
    prediction: Prediction | None
    needed: int
    micro_batches: Mapping[str, int]
    upper_bytes: int
    lower_bytes: int
    ways: tuple[Way, ...]
    verdict: Verdict

    def way(self, method: Method) -> Way:
        """The way of that method."""
        return next(way for way in self.ways if way.method == method)
