"""Events, changes and state of the assignment rule: teachers and their speeds, students, contents.

Speeds and needs have one unit: the *reference teacher*, the first teacher of the service with a
known speed. Measured speeds scatter, so a rule that used them directly would move teachers
needlessly. Instead, a speed is rounded to a class relative to the reference teacher, and the class
stays until the speed has clearly changed. On a loaded machine a measured time per sample can be
wrong by half in either direction. So a class changes only when every speed of the last `HOLD_S` was
outside of it on the same side; the mean of these speeds then gives the new class. The class changes
at once if it does not rest on a measurement, or if the new speed is too far away to be noise. Each
report holds until the next one, so a lasting speed can take effect without another report.

The state is immutable. While the rule is applied, the mutable `AssignmentTable` has the
assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ..debounce import Debounced, DeviationRun, extend_run

#: When students move to the next content: at the end of their epoch, or at once.
When = Literal["epoch", "now"]


@dataclass(frozen=True, slots=True)
class TeacherUp:
    """A teacher serves. Another incarnation of a known teacher replaces it.

    Attributes:
        speed: samples per second of all its predictors together; 0: unknown.
        content_id: the content that it serves; only students of the same content may have it.
        host: where it runs; among equal teachers, one on the student's host is preferred.
    """

    teacher_id: str
    incarnation: int = 0
    speed: float = 0.0
    content_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class TeacherDraining:
    """A teacher finishes its requests and takes nothing new; `TeacherDown` follows."""

    teacher_id: str


@dataclass(frozen=True, slots=True)
class TeacherDown:
    """A teacher is gone. If `lost`, it gave no notice: its requests must be sent again at once."""

    teacher_id: str
    lost: bool


@dataclass(frozen=True, slots=True)
class StudentReported:
    """A student reports what it needs and which teachers it holds.

    Attributes:
        want: number of teachers that it asks for, including replacements for its `unreachable`
            teachers; 0: none now.
        holding: its teachers; used only for an unknown student, so that a manager without a state
            moves no teachers.
        min: number of teachers guaranteed to it, as far as it asks for them.
        priority: students with a higher one are served first.
        needed: n = ceil(t_t / t_s); 0: unknown.
        t_t_s, t_s_s: seconds per sample of its average teacher and of its own step; 0: unknown.
        urgent: it starves, so its demand must rise at once.
        unreachable: number of its teachers that give it no labels.
        unavailable: ids of these teachers; older readers do not send them.
        cut_off: it reaches no teacher, or none accepts it, so replacements would hardly help.
        data_epoch: epoch of its data that is being labelled; a new content may begin with a new
            epoch.
        content_id: content of its labels; "": any content will do, because it has no label yet, or
            waits between two epochs for the content of the next one.
    """

    student_id: str
    want: int
    holding: tuple[str, ...] = ()
    min: int = 1
    priority: int = 0
    needed: int = 0
    t_t_s: float = 0.0
    t_s_s: float = 0.0
    urgent: bool = False
    unreachable: int = 0
    unavailable: tuple[str, ...] = ()
    cut_off: bool = False
    host: str = ""
    data_epoch: int = 0
    content_id: str = ""


@dataclass(frozen=True, slots=True)
class StudentGone:
    """A student has left, or its lease has expired."""

    student_id: str


@dataclass(frozen=True, slots=True)
class ContentPlanned:
    """The content of the service, and the content that is to replace it.

    Attributes:
        current: "": choose it by `prevailing_content`.
        next: "": no upgrade.
        at: students move at the end of their "epoch", or "now".
    """

    current: str
    next: str = ""
    at: When = "epoch"


@dataclass(frozen=True, slots=True)
class RecoveryBegan:
    """A new term began, so members that the leader does not know may still return.

    Until `RecoveryEnded` the rule takes no teacher that serves from a student. The exception is a
    student that the rule moves to another content between two epochs.
    """


@dataclass(frozen=True, slots=True)
class RecoveryEnded:
    """All members had time to return: students may lose teachers again."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Only time has passed: lasting demands and speeds come into force."""


AssignmentEvent = (
    TeacherUp
    | TeacherDraining
    | TeacherDown
    | StudentReported
    | StudentGone
    | ContentPlanned
    | RecoveryBegan
    | RecoveryEnded
    | Ticked
)


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """A student's new set of teachers, and the reason.

    A teacher missing from `teachers` and not in `lost` is revoked: it finishes the student's
    requests. Teachers in `lost` are dead: the student sends their requests again. A teacher in both
    has returned as another incarnation.

    Attributes:
        content_id: content of the student's labels from now on.
        next_content_id: content from its next epoch on; "": the same.
        data_epoch: epoch in the student's latest report.
        reason: explanation for users.
    """

    student_id: str
    teachers: tuple[str, ...]
    lost: tuple[str, ...]
    content_id: str
    next_content_id: str
    data_epoch: int
    reason: str


#: Amounts of power that differ by less count as equal.
EPS = 1e-6
#: A speed must differ from its class by this factor to change the class.
CLASS_NOISE = 1.35
#: Speeds are clipped to between 1 / `FASTEST` and `FASTEST` reference teachers.
FASTEST = 1000.0
#: The smallest part of a teacher that a student can need.
SMALLEST_PART = 0.05


def is_known(figure: float) -> bool:
    """Whether a speed or time was measured: positive and finite. Peers may report anything."""
    return 0.0 < figure < inf


def power_class(speed: float, anchor: float, current: float | None = None) -> float:
    """Round a speed to 1, 2, ... or 1/2, 1/3, ... reference teachers.

    Args:
        speed: samples per second.
        anchor: samples per second of the reference teacher.
        current: the class in force, which is kept if the speed hardly differs or is unknown; None:
            there is none, and an unknown speed counts as 1.
    """
    if not (is_known(speed) and is_known(anchor)):
        return 1.0 if current is None else current
    ratio = min(max(speed / anchor, 1 / FASTEST), FASTEST)
    if current is not None and current / CLASS_NOISE <= ratio <= current * CLASS_NOISE:
        return current
    return float(round(ratio)) if ratio >= 1 else 1.0 / round(1 / ratio)


def want_without_replacements(report: StudentReported) -> int:
    """Return the `want` without replacements of unreachable teachers, at least 1."""
    return max(report.want - report.unreachable, 1)


def need_of(report: StudentReported, unit: float) -> float:
    """Return the power that a student needs, without replacements of unreachable teachers.

    If the ratio t_t / t_s is known, the student may need only a part of its last teacher: one
    teacher can feed several students with t_t < t_s. A student that wants fewer than n teachers
    uses all of them fully. `unit` is the power of the student's average teacher.
    """
    if report.want == 0:
        return 0.0
    n = report.needed
    want = want_without_replacements(report)
    if not 1 <= n <= want or not (is_known(report.t_t_s) and is_known(report.t_s_s)):
        return want * unit
    part = min(max(report.t_t_s / report.t_s_s, n - 1 + SMALLEST_PART), float(n))
    return (want - n + part) * unit


#: Seconds that a speed must stay outside of its class to change the class.
HOLD_S = 30.0
#: A speed that differs from its class by this factor is no noise.
FAR = 4.0


@dataclass(frozen=True, slots=True)
class SpeedClass:
    """The speed class in force, and the latest measurements that contradict it.

    Attributes:
        power: how many reference teachers the class equals.
        measured: the class rests on a measurement.
        deviation: the latest speeds, if all are outside of the class on the same side, as times
            per sample relative to the reference teacher.
    """

    power: float = 1.0
    measured: bool = False
    deviation: DeviationRun | None = None

    @property
    def due(self) -> float | None:
        """When the deviating speeds will change the class; None: there are none."""
        return None if self.deviation is None else self.deviation.since + HOLD_S


def follow_speed(speed_class: SpeedClass, speed: float, anchor: float, now: float) -> SpeedClass:
    """Apply a measured speed; `speed` and `anchor` (see `power_class`) are samples per second."""
    speed_class = elapse_speed(speed_class, now)  # an earlier speed that lasted takes effect first
    if not (is_known(speed) and is_known(anchor)):
        return speed_class
    if not speed_class.measured:
        return SpeedClass(power_class(speed, anchor), measured=True)
    return _weigh(speed_class, min(max(speed / anchor, 1 / FASTEST), FASTEST), now)


def elapse_speed(speed_class: SpeedClass, now: float) -> SpeedClass:
    """Apply a deviation that has lasted long enough by `now`."""
    if speed_class.deviation is None or now < speed_class.deviation.since + HOLD_S:
        return speed_class
    power = power_class(1 / speed_class.deviation.mean(now), 1.0)
    return _weigh(SpeedClass(power, True), 1 / speed_class.deviation.latest, now)


def _weigh(speed_class: SpeedClass, speed: float, now: float) -> SpeedClass:
    """Apply a speed in reference teachers: extend, restart or drop the deviation."""
    power = power_class(speed, 1.0, speed_class.power)
    if power == speed_class.power:
        return SpeedClass(speed_class.power, True) if speed_class.deviation else speed_class
    if max(speed / speed_class.power, speed_class.power / speed) >= FAR:
        return SpeedClass(power, True)
    run, before = speed_class.deviation, speed_class.power
    if run is not None and (1 / run.latest > before) != (speed > before):
        run = None
    return SpeedClass(before, True, extend_run(run, 1 / speed, now))


@dataclass(frozen=True, slots=True)
class TeacherEntry:
    incarnation: int = 0
    speed_class: SpeedClass = field(default_factory=SpeedClass)
    content_id: str = ""
    host: str = ""
    draining: bool = False

    @property
    def power(self) -> float:
        """How many reference teachers it equals."""
        return self.speed_class.power


def pools(teachers: Mapping[str, TeacherEntry]) -> dict[str, dict[str, float]]:
    """Return by content the power of each teacher that may be assigned, for contents with any."""
    by_content: dict[str, dict[str, float]] = {}
    for name, entry in teachers.items():
        if not entry.draining:
            by_content.setdefault(entry.content_id, {})[name] = entry.speed_class.power
    return by_content


@dataclass(frozen=True, slots=True)
class StudentEntry:
    """State of a student.

    Attributes:
        want: number of teachers that it asks for.
        need: power that the rule gives it if possible: `demand`, plus the power of its teachers
            that give it no labels but count in its share.
        demand: the power that it asks for without replacements, debounced.
        unit: power of its average teacher: the unit of `want`.
        unavailable: teachers that give it no labels and do not count in its share.
        content_id: content of its labels.
        labelled: it may have labels of this content already. If not, any content will do.
        announced: the next content, of which it was notified; "": none.
        upgrading: an upgrade was planned since it came, so it may wait for an answer between two
            epochs.
        teachers: assigned teachers, the longest held first.
        finishing: revoked teachers that still exist. It may have requests in flight there, so it
            must be notified if such a teacher is lost.
    """

    want: int
    need: float
    demand: Debounced
    min: int = 1
    priority: int = 0
    unit: float = 1.0
    unavailable: frozenset[str] = frozenset()
    host: str = ""
    data_epoch: int = 0
    content_id: str = ""
    labelled: bool = False
    announced: str = ""
    upgrading: bool = False
    teachers: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContentPlan:
    """Contents of the service: see `ContentPlanned`.

    Attributes:
        declared: a user chose `current`; else the rule did.
    """

    current: str = ""
    next: str = ""
    at: When = "epoch"
    declared: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentState:
    """The teachers and students of one service, each in the order of arrival.

    Attributes:
        anchor: samples per second of the reference teacher; 0 until a speed is known.
        recovering: members may still return; see `RecoveryBegan`.
    """

    teachers: Mapping[str, TeacherEntry] = field(default_factory=dict)
    students: Mapping[str, StudentEntry] = field(default_factory=dict)
    anchor: float = 0.0
    plan: ContentPlan = ContentPlan()
    recovering: bool = False
