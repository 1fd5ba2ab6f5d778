"""What a simulated mesh is: its students, teachers, links, and what happens to them, and when.

A scenario says all that a run depends on: the same one with the same seed gives the same run, event
by event. Times are virtual seconds since its beginning; a batch is a student's, of `batch` samples.

The jitter of any time is its standard deviation relative to its mean: the times drawn are
log-normal with that mean, so that jitter alone makes nothing slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..autoscale import AutoscaleConfig
from ..units import (
    Bytes,
    BytesOrZero,
    BytesPerSecond,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Seconds,
    SecondsOrZero,
    Share,
)

#: How a teacher ends. "crash": its process dies, connections break, its lease runs out. "hang": it
#: says nothing any more, as after SIGSTOP. "drain": it takes nothing new, finishes, and leaves.
TeacherEnding = Literal["crash", "hang", "drain"]
#: What can be done to a group: an ending of some of its members, or "slow": they work slower.
FaultKind = Literal["crash", "hang", "drain", "slow"]


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """The network of one machine; what several send over it at once is sent in turn.

    Attributes:
        bandwidth_bytes_per_s: in each direction; None: transfers take no time but the latency.
        latency_s: from one machine to another, one way; of two machines the greater counts.
        jitter: of that latency.
    """

    bandwidth_bytes_per_s: BytesPerSecond | None = None
    latency_s: SecondsOrZero = 0.0005
    jitter: NotNegative = 0.0


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """From a moment on another speed.

    Attributes:
        at_s: the moment.
        to_s: seconds per sample from then on: `t_s_s` of a student, `t_t_s` of a teacher.
    """

    at_s: SecondsOrZero
    to_s: Seconds


@dataclass(frozen=True, slots=True)
class StudentGroup:
    """Students that are alike, each with a stream of its own.

    A step of a student takes `overhead_s + connection_s * (teachers connected) + batch * t_s_s`.

    Attributes:
        name: of the group; a student's id is `name/number`. Names of all groups differ.
        t_s_s: seconds per sample of the training step.
        count: how many there are.
        batch: samples of a batch.
        overhead_s: of each step, besides its samples: what is the same for any batch size.
        connection_s: of each step, for each teacher that it is connected to: the process that
            trains also polls, receives and copies. So teachers beyond those it needs cost a little.
        jitter: of a step's time.
        source_s: time that the source needs for a batch, while no other is being yielded.
        batches: so many are trained, then the student leaves; None: as many as the scenario says.
        request_samples: of a request at most, cut and joined from batches; None: a request is one
            batch.
        upper, lower: `ut` and `lt` of Algorithm 1, in batches that are labelled and not taken.
        teachers_min, teachers_max: bounds of the want; equal ones pin it.
        priority: the greater goes first.
        needs_labels: False: it trains on hard labels alone, and asks for no teacher (N-training;
            or Online, where its own device labels: `t_s_s` is then of both models together).
        together: the students of the group are ranks of one job: a step of each ends with the
            slowest one's, as gradients are summed over all.
        input_bytes, label_bytes: of one sample: to the teacher, and back.
        link: of each student's machine; None: the scenario's.
        service: whose teachers it asks for.
        join_s: when the first one begins.
        join_every_s: time from each one's beginning to the next one's.
        leave_s: when all of them leave; None: when they are done.
        changes: of `t_s_s`, in the order of time.
    """

    name: str
    t_s_s: Seconds
    count: Count = 1
    batch: Count = 32
    overhead_s: SecondsOrZero = 0.0
    connection_s: SecondsOrZero = 0.0
    jitter: NotNegative = 0.0
    source_s: SecondsOrZero = 0.0
    batches: Count | None = None
    request_samples: Count | None = None
    upper: Positive = 16.0
    lower: NotNegative = 8.0
    teachers_min: Count = 1
    teachers_max: Count = 64
    priority: int = 0
    needs_labels: bool = True
    together: bool = False
    input_bytes: Bytes = 150_528.0
    label_bytes: BytesOrZero = 4_000.0
    link: NetworkLink | None = None
    service: str = "teachers"
    join_s: SecondsOrZero = 0.0
    join_every_s: SecondsOrZero = 0.0
    leave_s: Seconds | None = None
    changes: tuple[SpeedChange, ...] = ()

    def __post_init__(self) -> None:
        _require_name(self.name)
        if self.lower >= self.upper:
            raise ValueError(f"needs lower < upper, not {self.lower:g} and {self.upper:g}")
        if self.teachers_min > self.teachers_max:
            raise ValueError(
                "needs teachers_min <= teachers_max,"
                f" not {self.teachers_min} and {self.teachers_max}"
            )
        if self.leave_s is not None and self.leave_s <= self.join_s:
            raise ValueError(f"leaves at {self.leave_s:g} s, joins at {self.join_s:g} s")
        _require_order(self.changes)

    def t_s_at(self, now: float) -> float:
        """Seconds per sample at a moment."""
        return _at(self.t_s_s, self.changes, now)

    def step_s(self, now: float, connected: int) -> float:
        """Seconds of a step that begins now, with so many teachers connected, without jitter."""
        return self.overhead_s + self.connection_s * connected + self.batch * self.t_s_at(now)

    @property
    def batch_bytes(self) -> int:
        """Bytes of a labelled batch in the student's buffer (at least 1)."""
        return max(round(self.batch * (self.input_bytes + self.label_bytes)), 1)


@dataclass(frozen=True, slots=True)
class TeacherGroup:
    """Teachers that are alike.

    A request takes its device `batch_overhead_s + samples * t_t_s`.

    Attributes:
        name: of the group; a teacher's id is `name/number`. Names of all groups differ.
        t_t_s: seconds per sample, of one lane.
        count: how many there are without autoscaling, and at first with it.
        batch_overhead_s: of each request, besides its samples.
        lanes: devices of one teacher, each of which works on a request of its own.
        jitter: of the device's time.
        link: of each teacher's machine; None: the scenario's.
        service: which students it serves.
        join_s: when the first one serves.
        join_every_s: time from each one's coming to the next one's.
        start_s: from the order for one more (autoscaling; one that comes back) until it serves.
        leave_per_minute: share of those there that leave in a minute, at random moments, as spot
            machines do; 0: none.
        leaves_by: how these end.
        back_after_s: so long after one has left another one is ordered in its place; None: never.
        price_per_hour: of each, while it is there; any currency.
        changes: of `t_t_s`, in the order of time.
    """

    name: str
    t_t_s: Seconds
    count: CountOrZero = 1
    batch_overhead_s: SecondsOrZero = 0.0
    lanes: Count = 1
    jitter: NotNegative = 0.0
    link: NetworkLink | None = None
    service: str = "teachers"
    join_s: SecondsOrZero = 0.0
    join_every_s: SecondsOrZero = 0.0
    start_s: SecondsOrZero = 10.0
    leave_per_minute: Share = 0.0
    leaves_by: TeacherEnding = "crash"
    back_after_s: SecondsOrZero | None = None
    price_per_hour: NotNegative = 0.0
    changes: tuple[SpeedChange, ...] = ()

    def __post_init__(self) -> None:
        _require_name(self.name)
        _require_order(self.changes)

    def t_t_at(self, now: float) -> float:
        """Seconds per sample at a moment."""
        return _at(self.t_t_s, self.changes, now)

    def device_s(self, now: float, samples: int) -> float:
        """Seconds of a request that begins now, on an idle lane, without jitter."""
        return self.batch_overhead_s + samples * self.t_t_at(now)


@dataclass(frozen=True, slots=True)
class ScenarioFault:
    """Something that is done to some members of a group.

    Attributes:
        at_s: when.
        group: of teachers, or of students: these "crash" (without a word), "drain" (leave in good
            order) or are "slow".
        kind: what is done.
        count: to how many, drawn from those that are there; more than there are is all.
        for_s: "hang" and "slow": how long; None: for good.
        factor: "slow": their work takes so many times as long.
    """

    at_s: SecondsOrZero
    group: str
    kind: FaultKind = "crash"
    count: Count = 1
    for_s: Seconds | None = None
    factor: Positive = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A mesh, and what happens to it.

    It ends after `duration_s`; without it, when every student has trained its batches or left. With
    `autoscale` the teachers of a service that are started beside those that groups have at first
    are of the service's first group.

    Attributes:
        students: the groups of students.
        teachers: the groups of teachers.
        name: for people.
        seed: of all that is drawn.
        duration_s: virtual seconds, exactly; None: until the students are done.
        batches: of each student that does not say itself how many; None: no end.
        link: of machines that do not say themselves.
        autoscale: rules by which teachers are started and drained, for each service by itself;
            None: there are those there are.
        faults: what is done, besides what groups say of themselves.
        warm_up_s: rates are measured from then on; everything else is counted from the beginning.
        sample_s: time between two points of the curves.
        ttl_s: lease of a teacher or student in the registry; it is prolonged 2.5 times in it.
        look_s: time between two looks of the leading manager, from what is known to what it means.
        report_s: time between two reports of a student; what matters is reported at once.
        connect_s: from hearing of a teacher until it can be sent to.
        window: requests in flight per teacher at first.
        window_max: the most that a teacher is given which is not busy with fewer.
    """

    students: tuple[StudentGroup, ...]
    teachers: tuple[TeacherGroup, ...] = ()
    name: str = ""
    seed: CountOrZero = 0
    duration_s: Seconds | None = None
    batches: Count | None = None
    link: NetworkLink = field(default_factory=NetworkLink)
    autoscale: AutoscaleConfig | None = None
    faults: tuple[ScenarioFault, ...] = ()
    warm_up_s: SecondsOrZero = 0.0
    sample_s: Seconds = 1.0
    ttl_s: Seconds = 6.0
    look_s: Seconds = 0.05
    report_s: Seconds = 1.0
    connect_s: SecondsOrZero = 0.02
    window: Count = 2
    window_max: Count = 8

    def __post_init__(self) -> None:
        if not self.students:
            raise ValueError("a scenario needs at least one group of students")
        names = [one.name for one in self.students] + [one.name for one in self.teachers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two groups are called {twice[0]!r}; names of all groups differ")
        if self.duration_s is None and any(
            group.batches is None and self.batches is None and group.leave_s is None
            for group in self.students
        ):
            raise ValueError(
                "it would never end: say duration_s, or how many batches each student trains"
            )
        if self.duration_s is not None and self.warm_up_s >= self.duration_s:
            raise ValueError("needs warm_up_s < duration_s: else nothing is measured")
        for number, fault in enumerate(self.faults):
            self._check(number, fault)

    def _check(self, number: int, fault: ScenarioFault) -> None:
        students = {group.name for group in self.students}
        if fault.group not in students | {group.name for group in self.teachers}:
            raise ValueError(f"faults[{number}]: there is no group {fault.group!r}")
        if fault.group in students and fault.kind == "hang":
            raise ValueError(f"faults[{number}]: students crash, drain or are slow; none hangs")

    @property
    def services(self) -> tuple[str, ...]:
        """All services, in the order in which they are named."""
        named = [one.service for one in self.students] + [one.service for one in self.teachers]
        return tuple(dict.fromkeys(named))

    @property
    def quiet_from_s(self) -> float:
        """From when on nothing more happens that is written here, but for its consequences."""
        moments = [fault.at_s + (fault.for_s or 0.0) for fault in self.faults]
        for group in self.students:
            moments += [group.join_s + group.count * group.join_every_s, group.leave_s or 0.0]
            moments += [change.at_s for change in group.changes]
        moments += [change.at_s for group in self.teachers for change in group.changes]
        return max(moments)

    def batches_of(self, group: StudentGroup) -> int | None:
        """How many batches each student of a group trains; None: no end."""
        return self.batches if group.batches is None else group.batches


def _at(first_s: float, changes: tuple[SpeedChange, ...], now: float) -> float:
    for change in reversed(changes):
        if now >= change.at_s:
            return change.to_s
    return first_s


def _require_order(changes: tuple[SpeedChange, ...]) -> None:
    times = [change.at_s for change in changes]
    if times != sorted(times):
        raise ValueError("changes stand in the order of their at_s")


def _require_name(name: str) -> None:
    if not name or "/" in name:
        raise ValueError(f"a group needs a name without '/', not {name!r}")
