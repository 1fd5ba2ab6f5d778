"""What the assignment rule knows: the teachers and what each is worth, the students, the plan.

Speeds and needs are in one unit: the service's usual teacher. A student needs samples per second,
not heads. But measured speeds are never equal twice, and a rule that went by them as they are would
move teachers for nothing. So a speed is taken as a class relative to the first one known, and a
class is kept until the speed is clearly another. A time per sample that is taken on a loaded
machine is off by half, to either side. So a class gives way when every speed of the last `HOLD_S`
lay on the same side, outside of it: then to their mean. It gives way at once where it stands on no
measurement, and to a speed that is no noise any more. A speed stands until the next one comes, so
time alone can bring a lasting one into force.

All of it is frozen between events. Who holds whom while the rule works is the board's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ..debounce import Debounced, Run, longer
from .events import StudentReported, When

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
    doubt: Run | None = None

    @property
    def due(self) -> float | None:
        """When the speeds that speak against it have lasted long enough."""
        return None if self.doubt is None else self.doubt.since + HOLD_S


def follow_speed(pace: SpeedClass, speed: float, anchor: float, now: float) -> SpeedClass:
    """Take in a speed, in samples per second; `anchor` is that of the usual teacher."""
    pace = elapse_speed(pace, now)  # what stood until now comes into force first
    if not (is_known(speed) and is_known(anchor)):
        return pace
    if not pace.measured:
        return SpeedClass(power_class(speed, anchor), measured=True)
    return _weigh(pace, min(max(speed / anchor, 1 / FASTEST), FASTEST), now)


def elapse_speed(pace: SpeedClass, now: float) -> SpeedClass:
    """Bring into force what has lasted long enough by `now`."""
    if pace.doubt is None or now < pace.doubt.since + HOLD_S:
        return pace
    power = power_class(1 / pace.doubt.mean(now), 1.0)
    return _weigh(SpeedClass(power, True), 1 / pace.doubt.latest, now)


def _weigh(pace: SpeedClass, speed: float, now: float) -> SpeedClass:
    """Count a speed to those that lie on the same side of the class, or drop them."""
    power = power_class(speed, 1.0, pace.power)
    if power == pace.power:
        return SpeedClass(pace.power, True) if pace.doubt else pace
    if max(speed / pace.power, pace.power / speed) >= FAR:
        return SpeedClass(power, True)
    doubt = pace.doubt
    if doubt is not None and (1 / doubt.latest > pace.power) != (speed > pace.power):
        doubt = None
    return SpeedClass(pace.power, True, longer(doubt, 1 / speed, now))


@dataclass(frozen=True, slots=True)
class TeacherEntry:
    """What is known of a teacher.

    Attributes:
        pace: the class of its speed.
    """

    incarnation: int = 0
    pace: SpeedClass = field(default_factory=SpeedClass)
    content_id: str = ""
    host: str = ""
    draining: bool = False

    @property
    def power(self) -> float:
        """How many of the service's usual teachers it is worth."""
        return self.pace.power


def pools(teachers: Mapping[str, TeacherEntry]) -> dict[str, dict[str, float]]:
    """The teachers that may be assigned, with their power, by content; no pool is empty."""
    found: dict[str, dict[str, float]] = {}
    for name, entry in teachers.items():
        if not entry.draining:
            found.setdefault(entry.content_id, {})[name] = entry.pace.power
    return found


@dataclass(frozen=True, slots=True)
class StudentEntry:
    """What is known of a student.

    Attributes:
        want: how many teachers it asks for.
        need: power that it is to have: what the rule goes by.
        wish: the power that it asks for, debounced.
        unit: power of the teachers that it counts in `want`.
        unavailable: teachers that give it no labels, and so do not count in its share.
        content_id: what it is labelled with.
        labelled: whether it may have labels of it already: else it is still free to choose.
        next_told: the content that it was told to expect.
        upgrading: an upgrade was on once, so it may wait for an answer between two epochs.
        teachers: those assigned to it, the longest held first.
        finishing: those revoked from it and still there: it may have requests in flight at them,
            and must hear when one is lost.
    """

    want: int
    need: float
    wish: Debounced
    min: int = 1
    priority: int = 0
    unit: float = 1.0
    unavailable: frozenset[str] = frozenset()
    host: str = ""
    data_epoch: int = 0
    content_id: str = ""
    labelled: bool = False
    next_told: str = ""
    upgrading: bool = False
    teachers: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
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
    plan: Plan = Plan()
    recovering: bool = False
