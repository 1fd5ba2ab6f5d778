"""What the control plane asks of a data plane, exact or fluid, and what it offers to it.

A data plane moves batches: students pull, teachers label, students train. The control plane
(`control.py`) is the same for both: who is there, who is assigned to whom, what fails. A plane is
told what changes, at the moment when those concerned notice it; between two such moments it is on
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .cast import Student, Teacher
from .chance import Seeding
from .clock import Clock
from .result import PlaneName
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


class Plane(Protocol):
    """A data plane; everything is asked of it at the clock's `now`."""

    @property
    def name(self) -> PlaneName:
        """Which one."""

    def begin(self, mesh: Mesh) -> None:
        """The run begins; nobody is there yet."""

    def advance(self) -> None:
        """The clock shows another time, and the control plane is about to read or change things."""

    def join(self, student: Student) -> None:
        """A student begins; it has no teacher yet."""

    def leave(self, student: Student) -> None:
        """A student is gone at this moment, done or not; nothing more is heard of it."""

    def assign(self, student: Student, teachers: Sequence[str], lost: Sequence[str]) -> None:
        """A student hears of its new set.

        Those missing from it and not in `lost` are revoked: they finish what they have for it.
        Those `lost` are dead as far as the coordinator knows: what they had goes to others.
        """

    def turned(self, teacher: Teacher) -> None:
        """A teacher's `state` or speed is another one.

        "serving": it works (again). "draining": it works; `Mesh.rested` is to be called as soon as
        it has nothing more to do, at once if that is so. "hung": its device stands still with what
        it has. "gone": what it had is lost, and students that are connected notice at once.
        """

    def paced(self, student: Student) -> None:
        """A student's own speed is another one."""

    def is_idle(self, teacher: Teacher) -> bool:
        """Whether a teacher has nothing to do, and nothing is on its way to it."""

    def report(self, student: Student) -> Report:
        """What a student that is there tells now."""

    def tally(self, student: Student) -> Tally:
        """What a student has done so far, also one that has left."""

    def work(self, teacher: Teacher) -> Work:
        """What a teacher has done so far, also one that is gone."""

    def waits(self, student: Student) -> tuple[float, float, float]:
        """Seconds that a student starved, was blocked, waited for its source, so far."""
