"""A mesh that is planned: who does what, what that allows, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass

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
