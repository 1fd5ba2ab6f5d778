"""Settings of chaos runs, kinds of faults, and the plan: start, kind and target of each fault.

Planning is pure: the same settings, including the seed, give the same plan. The stream must keep
moving while each student has a healthy teacher, so the plan limits the number of teachers that are
faulty at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from random import Random

from ...runtime.errors import UsageError

#: A shorter run ends before faults can have an effect.
MIN_SECONDS = 10.0
#: Upper limit of `ChaosSettings.max_concurrent_faults`.
MAX_CONCURRENT_FAULTS = 2
#: Name of the teacher that serves a different model, which ends in a softmax.
PROBABILITIES = "probabilities"


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """Size, duration and seed of a chaos run.

    Attributes:
        seed: seed of the fault plan and of the corrupted answers.
        seconds: seconds during which faults are injected.
        teachers: number of teachers that run from start to end.
        guests: number of temporary teachers, which join and drain.
        refusing: number of misconfigured teachers that refuse every sample.
        students: number of students, each a job of one rank.
        ttl_s: TTL of leases, in seconds.
        grace_s: seconds that a teacher has to drain.
        teacher_rate: samples per second of one teacher.
        student_rate: samples per second of one student.
        deceive: also inject wrong labels that only a comparison with another teacher reveals.
    """

    seed: int
    seconds: float
    teachers: int = 4
    guests: int = 2
    refusing: int = 3
    students: int = 2
    ttl_s: float = 2.0
    grace_s: float = 5.0
    teacher_rate: float = 400.0
    student_rate: float = 200.0
    deceive: bool = False

    def __post_init__(self) -> None:
        if not MIN_SECONDS <= self.seconds < inf:
            raise UsageError(
                f"a chaos run of {self.seconds:g} s is not possible: --minutes is a finite number"
                f" of at least {MIN_SECONDS / 60:.2g}"
            )

    @property
    def teacher_names(self) -> tuple[str, ...]:
        return tuple(f"teacher-{number + 1}" for number in range(self.teachers))

    @property
    def guest_names(self) -> tuple[str, ...]:
        return tuple(f"guest-{number + 1}" for number in range(self.guests))

    @property
    def refusing_names(self) -> tuple[str, ...]:
        return tuple(f"refusing-{number + 1}" for number in range(self.refusing))

    @property
    def misconfigured_names(self) -> tuple[str, ...]:
        """Teachers with labels that no student may use: they refuse, or serve another model."""
        return (*self.refusing_names, PROBABILITIES)

    @property
    def student_names(self) -> tuple[str, ...]:
        return tuple(f"student-{number + 1}" for number in range(self.students))

    @property
    def max_concurrent_faults(self) -> int:
        """Number of teachers and control-plane processes that may be faulty at once.

        It leaves at least one healthy teacher for each student.
        """
        return min(self.teachers - self.students, MAX_CONCURRENT_FAULTS)


#: Bounds of the seconds between the starts of two faults, unless limits of the plan delay the next.
MIN_GAP_S = 0.6
MAX_GAP_S = 2.2
#: Start of the first fault, in seconds since the run began; the mesh settles until then.
FIRST_FAULT_S = 3.0
#: Share of a run after which the engine of the last student is not killed: only an engine that runs
#: for minutes shows whether its memory grows.
SPARE_LAST_ENGINE_AFTER = 1 / 3
#: Seconds to the next attempt if the limits allow no fault.
RETRY_S = 0.25


class FaultTarget(Enum):
    """Target of a kind of fault."""

    TEACHER = "teacher"
    #: A temporary teacher.
    GUEST = "guest"
    STUDENT = "student"
    #: The manager or Redis.
    CONTROL_PLANE = "control"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        name: name in reports.
        target: what the fault strikes.
        description: description for reports.
        min_duration_s: shortest duration; 0 if nothing has to be undone.
        max_duration_s: longest duration; 0 if nothing has to be undone.
        settle_s: seconds after the fault in which the plan still counts the target as faulty; the
            invariants count it as healthy.
        cooldown_s: minimum seconds from its start to the start of the target's next fault.
        outlives_ttl: add the TTL of leases to the duration.
        weight: relative frequency of the kind.
        needs_comparison: no check of a single response can detect the fault.
        effect_unit: unit of `FaultRecord.effects`; empty for faults of processes.
    """

    name: str
    target: FaultTarget
    description: str
    min_duration_s: float = 0.0
    max_duration_s: float = 0.0
    settle_s: float = 2.0
    cooldown_s: float = 0.0
    outlives_ttl: bool = False
    weight: int = 2
    needs_comparison: bool = False
    effect_unit: str = ""


_TEACHER, _CONTROL = FaultTarget.TEACHER, FaultTarget.CONTROL_PLANE
_HELD, _DELAYED, _CLOSED = "chunks held back", "chunks delayed", "connections closed"
#: Duration (minimum, maximum) and settle time of corrupted responses, in seconds.
_CORRUPTION_S = (1.0, 2.0, 1.0)

FAULT_KINDS: tuple[FaultKind, ...] = (
    FaultKind("kill-teacher", _TEACHER, "SIGKILL, then a restart", 0.3, 1.5, 5.0, weight=4),
    FaultKind(
        "suspend-teacher", _TEACHER, "SIGSTOP for longer than its TTL", 1.0, 2.0, outlives_ttl=True
    ),
    FaultKind(
        "silence-teacher",
        _TEACHER,
        "partitioned from readers and managers",
        1.5,
        4.0,
        effect_unit=_HELD,
    ),
    FaultKind(
        "partition-teacher",
        _TEACHER,
        "partitioned from Redis",
        1.0,
        2.0,
        outlives_ttl=True,
        effect_unit=_HELD,
    ),
    FaultKind(
        "break-teacher", _TEACHER, "its connections closed", settle_s=1.0, effect_unit=_CLOSED
    ),
    FaultKind(
        "delay-teacher",
        _TEACHER,
        "each chunk delayed by 0.2 s",
        1.5,
        3.0,
        1.0,
        effect_unit=_DELAYED,
    ),
    *(
        FaultKind(
            name,
            _TEACHER,
            description,
            *_CORRUPTION_S,
            needs_comparison=name == "answer-other",
            effect_unit="responses corrupted",
        )
        for name, description in (
            ("answer-nan", "labels with a NaN"),
            ("answer-flip", "responses with a flipped bit outside the labels"),
            ("answer-shape", "labels without one row"),
            ("answer-instance", "responses of another incarnation"),
            ("answer-other", "labels of other samples"),
        )
    ),
    FaultKind("drain-teacher", _TEACHER, "SIGTERM, then a restart", settle_s=6.0),
    FaultKind("add-teacher", FaultTarget.GUEST, "a teacher joins, then drains", 8.0, 15.0, 6.0),
    FaultKind(
        "kill-engine",
        FaultTarget.STUDENT,
        "SIGKILL of its engine",
        settle_s=4.0,
        cooldown_s=16.0,
        weight=3,
    ),
    FaultKind("kill-manager", _CONTROL, "SIGKILL, then a restart", 0.3, 1.5, 4.0),
    FaultKind("kill-redis", _CONTROL, "SIGKILL, then a restart with no data", 0.3, 1.5, 5.0),
    FaultKind(
        "silence-manager", _CONTROL, "partitioned from students", 1.5, 4.0, effect_unit=_HELD
    ),
)

KIND_BY_NAME = {kind.name: kind for kind in FAULT_KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan.

    Attributes:
        number: position in the plan, from 1.
        at_s: start, in seconds since the run began.
        kind: name of a `FaultKind`.
        target: name of the struck process.
        lasts_s: seconds until the fault is undone, or the killed process restarted.
    """

    number: int
    at_s: float
    kind: str
    target: str
    lasts_s: float

    @property
    def settled_s(self) -> float:
        """Time from which the target no longer counts as faulty in the plan."""
        return self.at_s + self.lasts_s + KIND_BY_NAME[self.kind].settle_s

    @property
    def target_free_s(self) -> float:
        """Time from which the same target may be struck again."""
        return max(self.settled_s, self.at_s + KIND_BY_NAME[self.kind].cooldown_s)


def make_plan(settings: ChaosSettings) -> tuple[Fault, ...]:
    """Draw the faults of a run, ordered by start; equal settings give equal plans.

    - A target is struck again only once its last fault has settled and its cooldown has passed
      (`Fault.target_free_s`).
    - At most `settings.max_concurrent_faults` teachers and control-plane processes are faulty at
      once.
    - Kinds come in random order; their frequencies are proportional to their weights.
    """
    rng = Random(settings.seed)
    kinds = _draw_kinds(
        rng, [kind for kind in FAULT_KINDS if settings.deceive or not kind.needs_comparison]
    )
    plan: list[Fault] = []
    recent: list[Fault] = []  # faults with targets that are not free yet
    waiting: list[FaultKind] = []  # kinds that are drawn but not planned yet, in order
    now_s = FIRST_FAULT_S
    while now_s < settings.seconds:
        while len(waiting) < len(FAULT_KINDS):
            waiting.append(next(kinds))
        recent = [fault for fault in recent if now_s < fault.target_free_s]
        choice = _first_allowed(rng, waiting, recent, settings, now_s)
        if choice is None:
            now_s = round(now_s + RETRY_S, 2)
            continue
        kind, target = choice
        waiting.remove(kind)
        lasts_s = rng.uniform(kind.min_duration_s, kind.max_duration_s)
        lasts_s += settings.ttl_s * kind.outlives_ttl
        plan.append(Fault(len(plan) + 1, now_s, kind.name, target, round(lasts_s, 2)))
        recent.append(plan[-1])
        now_s = round(now_s + rng.uniform(MIN_GAP_S, MAX_GAP_S), 2)
    return tuple(plan)


def is_allowed(kind: FaultKind, active: Sequence[Fault], settings: ChaosSettings) -> bool:
    """Whether a fault of this kind may begin while the `active` faults have not settled."""
    if kind.target in (FaultTarget.STUDENT, FaultTarget.GUEST):
        return True
    struck = [KIND_BY_NAME[fault.kind].target for fault in active]
    if kind.target is FaultTarget.CONTROL_PLANE and kind.target in struck:
        return False
    faulty = struck.count(FaultTarget.TEACHER) + struck.count(FaultTarget.CONTROL_PLANE)
    return faulty < settings.max_concurrent_faults


def _draw_kinds(rng: Random, kinds: Sequence[FaultKind]) -> Iterator[FaultKind]:
    """Yield kinds without end, in shuffled rounds; a round has each kind `weight` times."""
    while True:
        kinds_of_round = [kind for kind in kinds for _ in range(kind.weight)]
        rng.shuffle(kinds_of_round)
        yield from kinds_of_round


def _first_allowed(
    rng: Random,
    waiting: Sequence[FaultKind],
    recent: Sequence[Fault],
    settings: ChaosSettings,
    now_s: float,
) -> tuple[FaultKind, str] | None:
    struck = {fault.target for fault in recent}
    active = [fault for fault in recent if now_s < fault.settled_s]
    for kind in waiting:
        free = [name for name in _targets(kind, settings, now_s) if name not in struck]
        if free and is_allowed(kind, active, settings):
            return kind, rng.choice(free)
    return None


def _targets(kind: FaultKind, settings: ChaosSettings, now_s: float) -> Sequence[str]:
    match kind.target:
        case FaultTarget.TEACHER:
            return settings.teacher_names
        case FaultTarget.GUEST:
            return settings.guest_names
        case FaultTarget.STUDENT:
            names = settings.student_names
            spare_last = len(names) > 1 and now_s > SPARE_LAST_ENGINE_AFTER * settings.seconds
            return names[:-1] if spare_last else names
        case FaultTarget.CONTROL_PLANE:
            return ("redis",) if kind.name == "kill-redis" else ("manager",)
