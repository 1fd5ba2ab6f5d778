"""What a plan says of a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .buffering import Thresholds


@dataclass(frozen=True, slots=True)
class Costs:
    """What is fixed per batch, in seconds; measured on loopback between processes.

    Attributes:
        teacher_s: hand-over between the network and the device of a teacher.
        student_s: hand-over from the reader to the training loop.
    """

    teacher_s: float = 0.3e-3
    student_s: float = 0.1e-3


@dataclass(frozen=True, slots=True)
class Team:
    """Teachers of one kind.

    Attributes:
        kind: name of their devices.
        count: how many; for one student of several, a part.
    """

    kind: str
    count: float


@dataclass(frozen=True, slots=True)
class Mesh:
    """Who does what.

    Attributes:
        student: the kind of devices that train.
        students: how many.
        teams: who labels.
        rows: of a student's batch.
    """

    student: str
    students: int
    teams: tuple[Team, ...]
    rows: int

    @property
    def teachers(self) -> int:
        """How many there are."""
        return int(sum(team.count for team in self.teams))


@dataclass(frozen=True, slots=True)
class Stage:
    """What limits the rate, and where to.

    Attributes:
        name: in words: "teachers", "the student's step", ...
        samples_per_s: what it would allow, of the whole job.
        remedy: what would lift it.
    """

    name: str
    samples_per_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a mesh in its steady state.

    Attributes:
        samples_per_s: of all students together.
        stages: slowest first: the first is the bottleneck, the second the next one.
        thresholds: `ut` and `lt` of the student with the fewest teachers, in batches.
        first_batch_s: from the first pull to the first labelled batch.
        lost: share of what the slowest stage allows that is lost by jitter or by waiting for a
            student with fewer teachers.
    """

    samples_per_s: float
    stages: tuple[Stage, ...]
    thresholds: Thresholds
    first_batch_s: float
    lost: float


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
