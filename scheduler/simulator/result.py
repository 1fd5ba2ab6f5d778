"""Results of a simulated run: students, teachers, curves, and events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StudentResult:
    """One student over the whole run.

    Attributes:
        name: its id, `group/number`.
        group: name of its group.
        batches: number of trained batches.
        samples: number of their samples.
        began_s, ended_s: its arrival, and when it was done or left. The end of the run stands for
            either if it did not happen.
        batches_per_s, samples_per_s: rates from `warm_up_s`, or from its arrival if that is later.
            They count finished steps; if the student is done, the time ends with its last step.
        training_s: time in steps, including waits for other ranks.
        starved_s: time of waiting for labels.
        blocked_s: time in which pulling was paused because enough was labelled (Algorithm 1).
        source_wait_s: time of waiting for the source.
        resends, hedges: number of requests that were sent again, or also to a second teacher.
        want: number of teachers that it wanted at the end.
        most_volume: largest number of batches that were labelled and not taken.
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
        group: name of the group.
        started: number of teachers that ever served.
        lost: number of expired leases: of teachers that crashed, or hung for longer than the TTL.
        there_s: teacher-seconds from serving until gone; a hung teacher counts until its lease
            expires.
        busy_s: device-seconds of work.
        utilization: `busy_s` divided by the device-seconds of `there_s`; 0 if there are none.
        batches: number of used batches that they labelled; a part of a batch is a fraction.
        cost: price of `there_s`.
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
    """The mesh at one moment, all services together.

    Attributes:
        at_s: the moment.
        students: number of present students.
        serving: number of serving teachers.
        assigned: sum of the teachers assigned to students.
        wanted: sum of the students' wants.
        desired: number of teachers that autoscaling wants; None: it has not decided, or is off.
        volume: number of labelled batches that are not taken, of all students.
        samples_per_s: rate of trained samples since the previous point.
        starved: number of students that starve; see `debounce.Starvation`.
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
    """An event of the mesh.

    Attributes:
        at_s: its time.
        kind: "join", "serve", "crash", "hang", "wake", "drain", "leave", "lost", "slow", "pace",
            "assign", "desired", "done". "pace": the speed of a group changed as planned.
        subject: the student, teacher, group or service.
        text: details, for display.
    """

    at_s: float
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class LabelledRequest:
    """An answered request; kept only on demand.

    Attributes:
        teacher, student: the teacher that labelled it, and the student.
        batch: its first batch, counted by the student from 0.
        rows: number of rows.
        sent_s: when the student sent it.
        began_s, ended_s: when the device worked on it.
        answered_s: when its labels arrived.
        used: its labels were used.
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
class StudentStep:
    """A step of a student; kept only on demand."""

    student: str
    batch: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a run.

    Attributes:
        virtual_s: its virtual duration.
        students, teachers: in the order of the scenario.
        points: the mesh at regular moments, for curves.
        mesh_events: the events of the mesh, in order.
        requests, steps: all answered requests and all steps, if they were kept.
        trace_hash: hash of all events in order, batches included (16 hex digits).
        events: number of actions that the virtual clock executed.
        samples_per_s: rate of all students together, from `warm_up_s`, or from the first arrival if
            that is later, until the last student is done or the run ends.
    """

    virtual_s: float
    students: tuple[StudentResult, ...]
    teachers: tuple[TeachersResult, ...]
    points: tuple[MeshSample, ...]
    mesh_events: tuple[SimulatedEvent, ...]
    requests: tuple[LabelledRequest, ...]
    steps: tuple[StudentStep, ...]
    trace_hash: str
    events: int
    samples_per_s: float

    @property
    def cost(self) -> float:
        """Cost of all teachers, in the currency of the scenario."""
        return sum(group.cost for group in self.teachers)

    def group(self, name: str) -> tuple[StudentResult, ...]:
        """Return the students of one group."""
        return tuple(student for student in self.students if student.group == name)
