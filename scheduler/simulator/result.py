"""What a simulated run gives: how each student fared, what the teachers did, curves, events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StudentResult:
    """One student over the whole run.

    Attributes:
        name: its id, `group/number`.
        group: of the scenario.
        batches: that it has trained.
        samples: of these.
        began_s, ended_s: when it began, and when its last step was over or the run ended.
        batches_per_s, samples_per_s: from `warm_up_s`, or its beginning if that is later, on. Of
            batches whose step is over; the time ends with the last of them where the student is
            done.
        training_s: it was at work on a step.
        starved_s: it waited for labels.
        blocked_s: pulling was paused, as enough was labelled (Algorithm 1).
        source_wait_s: it waited for the source.
        resends, hedges: requests that were sent again, or to another one besides.
        want: teachers that it asked for at the end.
        most_volume: most batches that lay labelled and not taken.
    """

    name: str
    group: str
    batches: int
    samples: int
    began_s: float
    ended_s: float
    batches_per_s: float
    samples_per_s: float
    training_s: float
    starved_s: float
    blocked_s: float
    source_wait_s: float
    resends: int
    hedges: int
    want: int
    most_volume: float


@dataclass(frozen=True, slots=True)
class TeachersResult:
    """All teachers of one group.

    Attributes:
        group: of the scenario.
        started: how many there were in all.
        lost: that crashed, hung for good, or were cut off.
        there_s: teacher-seconds that they were there, from serving until they were gone.
        busy_s: lane-seconds that their devices worked.
        utilization: `busy_s` over lane-seconds there; 0 without any.
        batches: whose labels were used, in batches of the student (parts count as parts).
        cost: of the time that they were there.
    """

    group: str
    started: int
    lost: int
    there_s: float
    busy_s: float
    utilization: float
    batches: float
    cost: float


@dataclass(frozen=True, slots=True)
class MeshSample:
    """The mesh at one moment; all services together.

    Attributes:
        at_s: the moment.
        students: that are there.
        serving: teachers that serve.
        assigned: places of teachers at students.
        wanted: the sum of the students' wants.
        desired: teachers that autoscaling wants; None without it.
        volume: batches that are labelled and not taken, of all students.
        samples_per_s: that students took since the point before.
        starved: students that wait for labels now.
    """

    at_s: float
    students: int
    serving: int
    assigned: int
    wanted: int
    desired: int | None
    volume: float
    samples_per_s: float
    starved: int


@dataclass(frozen=True, slots=True)
class SimulatedEvent:
    """Something that happened to the mesh.

    Attributes:
        at_s: when.
        kind: "join", "serve", "crash", "hang", "wake", "drain", "leave", "lost", "slow", "pace",
            "assign", "want", "order", "desired", "done".
        subject: the student, teacher or service.
        text: for people.
    """

    at_s: float
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class LabelledRequest:
    """A request at a teacher's device; kept only if that is asked for.

    Attributes:
        teacher, student: who for whom.
        batch: the first batch that it has rows of, counted by the student from 0.
        rows: how many.
        sent_s: when the student sent it.
        began_s, ended_s: when the device worked on it.
        answered_s: when its labels were there.
        used: whether they counted.
    """

    teacher: str
    student: str
    batch: int
    rows: int
    sent_s: float
    began_s: float
    ended_s: float
    answered_s: float
    used: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step of a student; kept like `LabelledRequest`."""

    student: str
    batch: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A run.

    Attributes:
        virtual_s: how long it took.
        students, teachers: how they fared, in the order of the scenario.
        points: the curves.
        happenings: the events, in order.
        labelled, stepped: every request and step, if they were asked for; else empty.
        trace_hash: of all that happened, batches included, in order (16 hex digits).
        events: how many events the run took.
    """

    virtual_s: float
    students: tuple[StudentResult, ...]
    teachers: tuple[TeachersResult, ...]
    points: tuple[MeshSample, ...]
    happenings: tuple[SimulatedEvent, ...]
    labelled: tuple[LabelledRequest, ...]
    stepped: tuple[Stepped, ...]
    trace_hash: str
    events: int

    @property
    def samples_per_s(self) -> float:
        """Of all students together."""
        return sum(student.samples_per_s for student in self.students)

    @property
    def cost(self) -> float:
        """Of all teachers, in the currency of the scenario."""
        return sum(group.cost for group in self.teachers)

    def group(self, name: str) -> tuple[StudentResult, ...]:
        """The students of one group."""
        return tuple(student for student in self.students if student.group == name)
