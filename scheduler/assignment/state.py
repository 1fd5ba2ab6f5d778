"""Events, changes and state of the assignment rule: teachers and their speeds, students, contents.

Speeds and needs have one unit: the service's usual teacher. Measured speeds scatter, and a rule
that used them directly would move teachers for nothing. So a speed is rounded to a class relative
to the first known speed, and the class stays until the speed has clearly changed. On a loaded
machine a time per sample is off by half in either direction. A class therefore changes when every
speed of the last `HOLD_S` was outside of it on the same side: then to the class of their mean. It
changes at once if it rests on no measurement, or if the new speed is too far away to be noise. A
speed holds until the next report, so time alone can bring a lasting speed into force.

The state is immutable. While the rule works, `AssignmentTable` holds the assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ..debounce import Debounced, DeviationRun, extend_run

When = Literal["epoch", "now"]


@dataclass(frozen=True, slots=True)
class TeacherUp:
    """A teacher serves. Of a known one with another incarnation, the old life is over.

    Attributes:
        speed: samples per second that it labels, all its lanes together; 0 is unknown.
        content_id: what it serves; only students of the same content may have it.
        host: where it runs; of equal teachers, one on the student's own host is preferred.
    """

    teacher_id: str
    incarnation: int = 0
    speed: float = 0.0
    content_id: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class TeacherDraining:
    """A teacher finishes what it has and takes nothing new; `TeacherDown` follows."""

    teacher_id: str


@dataclass(frozen=True, slots=True)
class TeacherDown:
    """A teacher is gone: `lost` without a word, so that what it had must be sent again at once."""

    teacher_id: str
    lost: bool


@dataclass(frozen=True, slots=True)
class StudentReported:
    """A student says what it needs and which teachers it holds.

    Attributes:
        want: how many teachers it asks for, the `unreachable` ones included; 0 is none now.
        holding: counts when the student is new here: a manager that starts anew strips nobody.
        min: how many its job is guaranteed (never more than it wants).
        priority: the greater goes first.
        needed: n = ceil(t_t / t_s); 0 is unknown.
        t_t_s, t_s_s: seconds per sample of its teachers and of its own step; 0 is unknown.
        urgent: it starves: more is given without waiting whether the wish lasts.
        unreachable: how many of its teachers give it no labels.
        unavailable: which of its teachers these are; an older reader does not say.
        cut_off: it reaches no teacher, or none lets it in: others may not help.
        data_epoch: the epoch of its data that it labels; a new content may begin with a new one.
        content_id: what it is labelled with; "" when it is bound to nothing: it has no label yet,
            or it stands between two epochs and waits to be moved.
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
    """A student has left, or its lease is over."""

    student_id: str


@dataclass(frozen=True, slots=True)
class ContentPlanned:
    """What the service is to serve, and the content that is to take its place.

    Attributes:
        current: "" is whatever its students and its first teacher have.
        next: "" is no upgrade.
        at: students move at the end of their "epoch", or "now".
    """

    current: str
    next: str = ""
    at: When = "epoch"


@dataclass(frozen=True, slots=True)
class RecoveryBegan:
    """Teachers register anew: until `RecoveryEnded`, sets only grow."""


@dataclass(frozen=True, slots=True)
class RecoveryEnded:
    """Whoever is to be known is known: sets may shrink again."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Nothing but time has passed: wishes that lasted long enough come into force."""


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
    """A student's new set of teachers, and why.

    A teacher that is absent from `teachers` and not in `lost` is revoked: the student lets it
    finish what it has. Those in `lost` are dead, and what they had is to be sent again. One in both
    came back as another incarnation.

    Attributes:
        content_id: what the student is labelled with from here on.
        next_content_id: what it is to be labelled with from its next epoch on; "" is the same.
        data_epoch: the epoch of the report that this answers.
    """

    student_id: str
    teachers: tuple[str, ...]
    lost: tuple[str, ...]
    content_id: str
    next_content_id: str
    data_epoch: int
    reason: str


#: Below this, two amounts of power are the same.
EPS = 1e-6
#: A speed must leave its class by this factor to be of another one.
CLASS_NOISE = 1.35
#: Beyond this many usual teachers, or below one of so many parts, a speed is no speed.
FASTEST = 1000.0
#: The least part of a teacher that a student is taken to need.
LEAST = 0.05


def is_known(figure: float) -> bool:
    """Whether a speed or a time was measured: others may say anything."""
    return 0.0 < figure < inf


def power_class(speed: float, anchor: float, known: float | None = None) -> float:
    """A speed in usual teachers: 1, 2, 3, ... or 1/2, 1/3, ...; `known` is the class until now."""
    if not (is_known(speed) and is_known(anchor)):
        return 1.0 if known is None else known
    ratio = min(max(speed / anchor, 1 / FASTEST), FASTEST)
    if known is not None and known / CLASS_NOISE <= ratio <= known * CLASS_NOISE:
        return known
    return float(round(ratio)) if ratio >= 1 else 1.0 / round(1 / ratio)


def own_heads(report: StudentReported) -> int:
    """Teachers that a student asks for, apart from those that stand in for others."""
    return max(report.want - report.unreachable, 1)


def need_of(report: StudentReported, unit: float) -> float:
    """Power that a student needs, apart from what stands in for unreachable teachers.

    Where n is known as a ratio, the last teacher may be needed in part only: one teacher can feed
    several students whose t_t < t_s. For teachers of power `unit` it is as many as are wanted.
    """
    if report.want == 0:
        return 0.0
    n = report.needed
    heads = own_heads(report)
    if n < 1 or not (is_known(report.t_t_s) and is_known(report.t_s_s)):
        return heads * unit
    part = min(max(report.t_t_s / report.t_s_s, n - 1 + LEAST), float(n))
    return max(heads - n + part, LEAST) * unit


#: Seconds that a speed must stay outside of its class to be of another one.
HOLD_S = 30.0
#: A speed off by this factor is no noise.
FAR = 4.0


@dataclass(frozen=True, slots=True)
class SpeedClass:
    """A class of speed in force, and what speaks against it.

    Attributes:
        power: how many of the service's usual teachers it is worth.
        measured: whether it stands on a measurement.
        doubt: speeds that all lie on one side of the class, as times: of the usual teacher's for a
            sample.
    """

    power: float = 1.0
    measured: bool = False
    doubt: DeviationRun | None = None

    @property
    def due(self) -> float | None:
        """When the speeds that speak against it have lasted long enough."""
        return None if self.doubt is None else self.doubt.since + HOLD_S


def follow_speed(speed_class: SpeedClass, speed: float, anchor: float, now: float) -> SpeedClass:
    """Take in a speed, in samples per second; `anchor` is that of the usual teacher."""
    speed_class = elapse_speed(speed_class, now)  # what stood until now comes into force first
    if not (is_known(speed) and is_known(anchor)):
        return speed_class
    if not speed_class.measured:
        return SpeedClass(power_class(speed, anchor), measured=True)
    return _weigh(speed_class, min(max(speed / anchor, 1 / FASTEST), FASTEST), now)


def elapse_speed(speed_class: SpeedClass, now: float) -> SpeedClass:
    """Bring into force what has lasted long enough by `now`."""
    if speed_class.doubt is None or now < speed_class.doubt.since + HOLD_S:
        return speed_class
    power = power_class(1 / speed_class.doubt.mean(now), 1.0)
    return _weigh(SpeedClass(power, True), 1 / speed_class.doubt.latest, now)


def _weigh(speed_class: SpeedClass, speed: float, now: float) -> SpeedClass:
    """Count a speed to those that lie on the same side of the class, or drop them."""
    power = power_class(speed, 1.0, speed_class.power)
    if power == speed_class.power:
        return SpeedClass(speed_class.power, True) if speed_class.doubt else speed_class
    if max(speed / speed_class.power, speed_class.power / speed) >= FAR:
        return SpeedClass(power, True)
    doubt = speed_class.doubt
    if doubt is not None and (1 / doubt.latest > speed_class.power) != (speed > speed_class.power):
        doubt = None
    return SpeedClass(speed_class.power, True, extend_run(doubt, 1 / speed, now))


@dataclass(frozen=True, slots=True)
class TeacherEntry:
    """What is known of a teacher.

    Attributes:
        speed_class: the class of its speed.
    """

    incarnation: int = 0
    speed_class: SpeedClass = field(default_factory=SpeedClass)
    content_id: str = ""
    host: str = ""
    draining: bool = False

    @property
    def power(self) -> float:
        """How many of the service's usual teachers it is worth."""
        return self.speed_class.power


def pools(teachers: Mapping[str, TeacherEntry]) -> dict[str, dict[str, float]]:
    """The teachers that may be assigned, with their power, by content; no pool is empty."""
    found: dict[str, dict[str, float]] = {}
    for name, entry in teachers.items():
        if not entry.draining:
            found.setdefault(entry.content_id, {})[name] = entry.speed_class.power
    return found


@dataclass(frozen=True, slots=True)
class StudentEntry:
    """What is known of a student.

    Attributes:
        want: how many teachers it asks for.
        need: power that it is to have: what the rule goes by.
        demand: the power that it asks for, debounced.
        unit: power of the teachers that it counts in `want`.
        unavailable: teachers that give it no labels, and so do not count in its share.
        content_id: what it is labelled with.
        labelled: whether it may have labels of it already: else it is still free to choose.
        announced: the content that it was told to expect.
        upgrading: an upgrade was on once, so it may wait for an answer between two epochs.
        teachers: those assigned to it, the longest held first.
        finishing: those revoked from it and still there: it may have requests in flight at them,
            and must hear when one is lost.
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
    """The content of the service: see `ContentPlanned`.

    Attributes:
        declared: whether `current` is an operator's word; else it is what was found.
    """

    current: str = ""
    next: str = ""
    at: When = "epoch"
    declared: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentState:
    """The teachers and students of one service, each in the order of arrival.

    Attributes:
        anchor: samples per second of a teacher of power 1; 0 until one is known.
        recovering: sets only grow.
    """

    teachers: Mapping[str, TeacherEntry] = field(default_factory=dict)
    students: Mapping[str, StudentEntry] = field(default_factory=dict)
    anchor: float = 0.0
    plan: ContentPlan = ContentPlan()
    recovering: bool = False
