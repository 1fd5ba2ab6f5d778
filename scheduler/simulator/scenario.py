"""Scenarios of the simulator: students, teachers, links, and what happens to them.

A scenario, which includes a seed, determines a run event by event. Times are virtual seconds since
the beginning of the run. A student trains on one batch per step: on `batch` samples of its group.

The jitter of a time is its standard deviation relative to its mean. The drawn times are log-normal
with that mean, so jitter alone makes nothing slower on average.
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

#: How a teacher ends. "crash": its process dies, connections break, its lease expires. "hang": it
#: stops answering, as after SIGSTOP. "drain": it takes nothing new, finishes, and leaves.
TeacherEnding = Literal["crash", "hang", "drain"]
#: Kinds of faults: members of a group end in one of these ways, or are "slow".
FaultKind = Literal["crash", "hang", "drain", "slow"]


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """The network of one machine; concurrent transfers are sent one after another.

    Attributes:
        bandwidth_bytes_per_s: in each direction; None: only the latency counts.
        latency_s: one way, to another machine; the greater of both machines' values counts.
        jitter: jitter of the latency.
    """

    bandwidth_bytes_per_s: BytesPerSecond | None = None
    latency_s: SecondsOrZero = 0.0005
    jitter: NotNegative = 0.0


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A change of speed.

    Attributes:
        at_s: time of the change.
        to_s: seconds per sample from then on: `t_s_s` of a student, `t_t_s` of a teacher.
    """

    at_s: SecondsOrZero
    to_s: Seconds


@dataclass(frozen=True, slots=True)
class StudentGroup:
    """Equal students, each with a stream of its own.

    A step takes `overhead_s + connection_s * (teachers connected) + batch * t_s_s`.

    Attributes:
        name: name of the group; a student's id is `name/number`. Names of all groups differ.
        t_s_s: seconds per sample of the training step.
        count: number of students.
        batch: samples of a batch.
        overhead_s: fixed time of each step.
        connection_s: additional time of each step per connected teacher, because the student's
            machine also polls, receives and copies. So unneeded teachers cost a little.
        jitter: jitter of a step's time.
        source_s: time that the source needs for a batch; it makes one batch after another.
        batches: number of batches after which the student leaves; None: the scenario's.
        request_samples: limit of the samples in a request; batches are cut and joined to reach it.
            None: a request is one batch.
        upper, lower: `ut` and `lt` of Algorithm 1, in batches that are labelled and not taken.
        teachers_min, teachers_max: bounds of the wanted number of teachers; equal bounds fix it.
        priority: of students in equal need, those with a higher priority are served first.
        needs_labels: False: the students use no teachers. They train on hard labels alone
            (N-training), or their own device labels (Online); `t_s_s` then covers both models.
        together: the students of the group are ranks of one job: a step ends when the slowest rank
            is done, because gradients are summed over all ranks.
        input_bytes, label_bytes: bytes of one sample to the teacher, and of its labels back.
        link: network of each student's machine; None: the scenario's.
        service: the service that labels for it.
        join_s: arrival of the first student.
        join_every_s: time between arrivals.
        leave_s: when those that are not done leave; None: each leaves when it is done.
        changes: changes of `t_s_s`, in the order of time.
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
            raise ValueError(
                f"needs join_s < leave_s, not {self.join_s:g} and {self.leave_s:g} seconds"
            )
        _require_order(self.changes)

    def t_s_at(self, now: float) -> float:
        """Return the seconds per sample at a moment."""
        return _s_per_sample_at(self.t_s_s, self.changes, now)

    def step_s(self, now: float, connected: int) -> float:
        """Return the seconds of a step that begins now, without jitter."""
        return self.overhead_s + self.connection_s * connected + self.batch * self.t_s_at(now)

    @property
    def batch_bytes(self) -> int:
        """Bytes of a labelled batch in the student's buffer (at least 1)."""
        return max(round(self.batch * (self.input_bytes + self.label_bytes)), 1)


@dataclass(frozen=True, slots=True)
class TeacherGroup:
    """Equal teachers.

    A request keeps a device busy for `batch_overhead_s + samples * t_t_s`.

    Attributes:
        name: name of the group; a teacher's id is `name/number`. Names of all groups differ.
        t_t_s: seconds per sample of one device.
        count: number of teachers; with autoscaling only at first.
        batch_overhead_s: fixed time of each request.
        lanes: devices of one teacher; each works on its own request.
        jitter: jitter of the device's time.
        link: network of each teacher's machine; None: the scenario's.
        service: the service that it belongs to.
        join_s: when the first teacher serves.
        join_every_s: time between the starts.
        start_s: time from ordering another teacher (autoscaling, replacement) until it serves.
        leave_per_minute: share of the group's teachers that leave per minute, at random moments, as
            spot machines do; 0: none.
        leaves_by: how these teachers end.
        back_after_s: a replacement is ordered this long after a teacher crashed, hung for good or
            began to drain; None: never. With `autoscale`, never: autoscaling orders replacements.
        price_per_hour: price of each teacher from serving until gone, in any currency. A hung
            teacher costs until its lease expires.
        changes: changes of `t_t_s`, in the order of time.
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
        """Return the seconds per sample at a moment."""
        return _s_per_sample_at(self.t_t_s, self.changes, now)

    def device_s(self, now: float, samples: int) -> float:
        """Return the seconds of a request that begins now on an idle lane, without jitter."""
        return self.batch_overhead_s + samples * self.t_t_at(now)


@dataclass(frozen=True, slots=True)
class ScenarioFault:
    """A fault of some members of a group.

    Attributes:
        at_s: time of the fault.
        group: name of a group of teachers or students. Students can "crash" (leave without notice),
            "drain" (leave with notice) or be "slow".
        kind: kind of the fault.
        count: number of members, drawn at random. If fewer can have the fault, all of these.
        for_s: duration of "hang" and "slow"; None: until the end of the run.
        factor: with "slow", their work takes this many times as long.
    """

    at_s: SecondsOrZero
    group: str
    kind: FaultKind = "crash"
    count: Count = 1
    for_s: Seconds | None = None
    factor: Positive = 2.0

    def __post_init__(self) -> None:
        if self.for_s is not None and self.kind in ("crash", "drain"):
            raise ValueError(
                f"for_s is the duration of hang and slow: leave it out with kind {self.kind}"
            )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A mesh, and what happens to it.

    It ends after `duration_s`; without a duration, when every student has trained its batches or
    left. With `autoscale`, additional teachers of a service belong to its first group.

    Attributes:
        students: the groups of students.
        teachers: the groups of teachers.
        name: for display.
        seed: seed of all random numbers.
        duration_s: virtual seconds, exactly; None: until the students are done.
        batches: batches per student, for groups without a number of their own; None: no end.
        link: network of the machines of groups without a `link`.
        autoscale: settings of autoscaling, for each service; None: no autoscaling.
        faults: faults, in addition to those of the groups.
        warm_up_s: the students' rates are measured from this time on; everything else counts from
            the beginning.
        sample_s: time between two points of the curves.
        ttl_s: duration of the lease of a teacher or student; it is renewed 2.5 times per TTL.
        look_s: time from an event until the leading manager decides; then it handles all events
            that came meanwhile.
        report_s: time between two reports of a student; important changes are reported at once.
        connect_s: time from learning of a teacher until requests can be sent to it.
        window: initial number of requests in flight per teacher.
        window_max: limit of the requests in flight per teacher. There are more than `window` only
            if the teacher would otherwise not be busy all the time.
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
        names = [group.name for group in self._groups]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two groups are called {twice[0]!r}: names of all groups must differ")
        if self.duration_s is None and any(
            group.batches is None and self.batches is None and group.leave_s is None
            for group in self.students
        ):
            raise ValueError(
                "the scenario would never end: set duration_s, or the batches of each student"
            )
        if self.duration_s is not None and self.warm_up_s >= self.duration_s:
            raise ValueError("needs warm_up_s < duration_s: otherwise nothing is measured")
        for number, fault in enumerate(self.faults):
            self._check_fault(number, fault)

    def _check_fault(self, number: int, fault: ScenarioFault) -> None:
        students = {group.name for group in self.students}
        if all(fault.group != group.name for group in self._groups):
            raise ValueError(f"faults[{number}]: there is no group {fault.group!r}")
        if fault.group in students and fault.kind == "hang":
            raise ValueError(
                f"faults[{number}]: students cannot hang: use crash, drain or slow as kind"
            )

    @property
    def services(self) -> tuple[str, ...]:
        """All services, in the order in which they are named."""
        return tuple(dict.fromkeys(group.service for group in self._groups))

    @property
    def _groups(self) -> list[StudentGroup | TeacherGroup]:
        return [*self.students, *self.teachers]

    @property
    def quiet_from_s(self) -> float:
        """Time of the last planned event, apart from starts of teachers."""
        moments = [fault.at_s + (fault.for_s or 0.0) for fault in self.faults]
        for group in self.students:
            moments += [group.join_s + group.count * group.join_every_s, group.leave_s or 0.0]
            moments += [change.at_s for change in group.changes]
        moments += [change.at_s for group in self.teachers for change in group.changes]
        return max(moments)

    def batches_of(self, group: StudentGroup) -> int | None:
        """Return the number of batches that each student of a group trains; None: no end."""
        return self.batches if group.batches is None else group.batches


def _s_per_sample_at(first_s: float, changes: tuple[SpeedChange, ...], now: float) -> float:
    for change in reversed(changes):
        if now >= change.at_s:
            return change.to_s
    return first_s


def _require_order(changes: tuple[SpeedChange, ...]) -> None:
    times = [change.at_s for change in changes]
    if times != sorted(times):
        raise ValueError("changes must be in the order of their at_s")


def _require_name(name: str) -> None:
    if not name or "/" in name:
        raise ValueError(f"a group needs a name without '/', not {name!r}")
