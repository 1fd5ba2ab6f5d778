"""What control plane and data plane tell each other.

The data plane (`data_plane.py`) moves batches: students pull, teachers label, students train. The
control plane (`control.py`) knows who is there, who is assigned to whom, what fails. The data plane
is told what changes, at the moment when those concerned notice it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .cast import Student, Teacher
from .chance import Seeding
from .clock import Clock
from .scenario import Scenario
from .trace import Trace


class Report(NamedTuple):
    """What a student tells the coordinator; `StudentReported` and `ServiceLoad` are made of it.

    Attributes:
        want: teachers that it asks for.
        needed: n = ceil(t_t / t_s); 0 while unknown.
        t_t_s, t_s_s: measured seconds per sample; 0 while unknown.
        starves: as `scheduler.hunger` finds it.
        unreachable: teachers that were given to it and do not answer.
        starved_s, blocked_s, source_wait_s: sums that grow.
        samples: taken so far.
        volume: batches that are labelled and not taken.
    """

    want: int
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    starves: bool = False
    unreachable: int = 0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    source_wait_s: float = 0.0
    samples: int = 0
    volume: float = 0.0


class Tally(NamedTuple):
    """What a student has done, for the result: see `StudentResult`.

    Attributes:
        measured: batches whose step was over at `warm_up_s` or later.
        last_s: when its last step was over.
    """

    batches: int
    measured: int
    last_s: float
    training_s: float
    resends: int = 0
    hedges: int = 0
    most_volume: float = 0.0


class Work(NamedTuple):
    """What a teacher has done: lane-seconds that its device worked, and batches it labelled."""

    busy_s: float
    batches: float


class Mesh(Protocol):
    """What a data plane finds around it: the control plane offers it.

    Attributes:
        clock: of both planes.
        scenario: that is run.
        seeding: makes generators; a plane names its streams by who draws and for what.
        trace: what has happened is told to it.
    """

    clock: Clock
    scenario: Scenario
    seeding: Seeding
    trace: Trace

    @property
    def teachers(self) -> dict[str, Teacher]:
        """All teachers that there are or were, by name."""

    def news(self, student: Student) -> None:
        """The student's report is another one in what is acted on: it is read at the next look.

        That is its want, what is unreachable, and that it starves. Everything else is read once in
        `report_s` anyway.
        """

    def rested(self, teacher: Teacher) -> None:
        """A draining teacher has nothing to do any more."""

    def done(self, student: Student) -> None:
        """The student has trained its last batch; no `leave` follows."""
