"""Who takes part in a run, and what control plane and data plane tell each other.

The data plane (`data_plane.py`) moves batches: students pull, teachers label, students train. The
control plane (`control.py`) knows who is there, who is assigned to whom, what fails. The data plane
is told what changes, at the moment when those concerned notice it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from .clock import Clock, Seeding
from .scenario import Scenario, StudentGroup, TeacherGroup
from .trace import Trace

#: "starting": ordered, and not there yet. "serving". "draining": takes nothing new. "hung": says
#: nothing, but its lease may still run. "gone": its process is over; its lease may still run.
TeacherState = Literal["starting", "serving", "draining", "hung", "gone"]


@dataclass(eq=False, slots=True)
class Teacher:
    """One teacher.

    Attributes:
        name: its id.
        group: what it is like.
        number: within its group; later ones have greater numbers.
        state: what it is.
        slowed: its work takes so many times as long as the group's does.
        leased: the registry believes that it is there.
        life: of its lease; what was planned for an earlier one is void.
        registered_at: when its lease began.
        beats_from: it beats then, and every TTL / 2.5 after that.
        served_from: since when it has been there; None: it has not come, or is gone.
        there_s: how long it was there, up to then.
        drain_heard: students have been told that it takes nothing new.
    """

    name: str
    group: TeacherGroup
    number: int
    state: TeacherState = "starting"
    slowed: float = 1.0
    leased: bool = False
    life: int = 0
    registered_at: float = 0.0
    beats_from: float = 0.0
    served_from: float | None = None
    there_s: float = 0.0
    drain_heard: bool = False

    @property
    def works(self) -> bool:
        """Whether its device works on what it is sent."""
        return self.state in ("serving", "draining")

    def device_s(self, now: float, samples: int) -> float:
        """Seconds of a request that begins now, without jitter."""
        return self.slowed * self.group.device_s(now, samples)

    def there_until(self, now: float) -> float:
        """Seconds that it was there until now."""
        return self.there_s + (0.0 if self.served_from is None else now - self.served_from)


@dataclass(eq=False, slots=True)
class Student:
    """One student.

    Attributes:
        name: its id.
        group: what it is like.
        batches: that it trains; None: no end.
        began_s: when it came; None: it has not come yet.
        ended_s: when it was done or left; None: it is there.
        slowed: its steps take so many times as long as the group's do.
    """

    name: str
    group: StudentGroup
    batches: int | None
    began_s: float | None = None
    ended_s: float | None = None
    slowed: float = 1.0

    @property
    def is_there(self) -> bool:
        """Whether it has come and has not left."""
        return self.began_s is not None and self.ended_s is None

    def step_s(self, now: float, connected: int) -> float:
        """Seconds of a step that begins now, without jitter."""
        return self.slowed * self.group.step_s(now, connected)


class Report(NamedTuple):
    """What a student tells the coordinator; `StudentReported` and `ServiceLoad` are made of it.

    Attributes:
        want: teachers that it asks for.
        needed: n = ceil(t_t / t_s); 0 while unknown.
        t_t_s, t_s_s: measured seconds per sample; 0 while unknown.
        starves: as `scheduler.debounce.Starvation` finds it.
        unavailable: teachers that were given to it and give it no labels.
        starved_s, blocked_s, source_wait_s: sums that grow.
        samples: taken so far.
        volume: batches that are labelled and not taken.
    """

    want: int
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    starves: bool = False
    unavailable: frozenset[str] = frozenset()
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

        That is its want, its unavailable teachers, and that it starves. Everything else is read
        once in `report_s` anyway.
        """

    def rested(self, teacher: Teacher) -> None:
        """A draining teacher has nothing to do any more."""

    def done(self, student: Student) -> None:
        """The student has trained its last batch; no `leave` follows."""
