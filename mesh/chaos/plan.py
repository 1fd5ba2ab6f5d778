"""What is broken when: a plan drawn from a seed, pure, so that a seed repeats a run's faults.

Not everything may be broken at once: the stream is promised to move while each student has a
healthy teacher, so the plan leaves enough of them for the coordinator to give each student one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from .faults import BY_NAME, KINDS, Fault, Kind, Whom

#: Seconds between the starts of two faults, where nothing forbids one: about one in two seconds.
LEAST_GAP_S = 0.6
MOST_GAP_S = 2.2
#: The first fault, so that the mesh has found itself.
FIRST_S = 3.0
#: Of teachers, manager and Redis so many are struck together at most.
MOST_BURDEN = 2
#: From this part of a run on the engine of the last student is spared: whether an engine's memory
#: grows can be told only of one that lives for minutes.
SPARED_FROM = 1 / 3
#: When nothing may be broken now, look again after so long.
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Stage:
    """What a plan is made for.

    Attributes:
        seconds: how long faults begin.
        teachers: names of those that are always there.
        guests: names for those that come and go.
        students: their names.
        ttl_s: of leases, in seconds.
        deceive: have lies, too, that only a comparison with another teacher can find.
    """

    seconds: float
    teachers: tuple[str, ...]
    guests: tuple[str, ...]
    students: tuple[str, ...]
    ttl_s: float
    deceive: bool = False

    @property
    def burden(self) -> int:
        """How much may be broken at once, of teachers and of what all share."""
        return min(len(self.teachers) - len(self.students), MOST_BURDEN)


def make_plan(seed: int, stage: Stage) -> tuple[Fault, ...]:
    """The faults of a run, in the order in which they begin; equal arguments give equal plans.

    - What is struck is left alone until the fault is settled, and it has rested (`Fault.rested_s`).
    - Of teachers and of manager and Redis together no more than `stage.burden` are struck at once.
    - Kinds come by their weights, each again and again, in a random order.
    """
    rng = Random(seed)
    kinds = _endless(rng, [kind for kind in KINDS if stage.deceive or not kind.deceives])
    plan: list[Fault] = []
    recent: list[Fault] = []  # those of the plan whose targets do not stand free yet
    waiting: list[Kind] = []  # drawn, and forbidden until now: they go first
    now_s = FIRST_S
    while now_s < stage.seconds:
        while len(waiting) < len(KINDS):
            waiting.append(next(kinds))
        recent = [fault for fault in recent if now_s < fault.rested_s]
        found = _first_allowed(rng, waiting, recent, stage, now_s)
        if found is None:
            now_s = round(now_s + LOOK_S, 2)
            continue
        kind, target = found
        waiting.remove(kind)
        lasts_s = rng.uniform(kind.least_s, kind.most_s) + stage.ttl_s * kind.outlives_ttl
        plan.append(Fault(len(plan) + 1, now_s, kind.name, target, round(lasts_s, 2)))
        recent.append(plan[-1])
        now_s = round(now_s + rng.uniform(LEAST_GAP_S, MOST_GAP_S), 2)
    return tuple(plan)


def _endless(rng: Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    """Each kind as often as its weight says, shuffled, over and over."""
    while True:
        bag = [kind for kind in kinds for _ in range(kind.weight)]
        rng.shuffle(bag)
        yield from bag


def _first_allowed(
    rng: Random, waiting: Sequence[Kind], recent: Sequence[Fault], stage: Stage, now_s: float
) -> tuple[Kind, str] | None:
    struck = {fault.target for fault in recent}
    busy = [fault for fault in recent if now_s < fault.over_s]
    for kind in waiting:
        free = [name for name in _targets(kind, stage, now_s) if name not in struck]
        if free and is_bearable(kind, busy, stage):
            return kind, rng.choice(free)
    return None


def _targets(kind: Kind, stage: Stage, now_s: float) -> Sequence[str]:
    match kind.whom:
        case Whom.TEACHER:
            return stage.teachers
        case Whom.GUEST:
            return stage.guests
        case Whom.STUDENT:
            spares = len(stage.students) > 1 and now_s > SPARED_FROM * stage.seconds
            return stage.students[:-1] if spares else stage.students
        case Whom.CONTROL:
            return ("redis",) if kind.name == "kill-redis" else ("manager",)


def is_bearable(kind: Kind, busy: Sequence[Fault], stage: Stage) -> bool:
    """Whether a fault of this kind may come on top of those that are not settled yet."""
    struck = [BY_NAME[fault.kind].whom for fault in busy]
    burden = struck.count(Whom.TEACHER) + struck.count(Whom.CONTROL)
    match kind.whom:
        case Whom.TEACHER:
            return burden < stage.burden
        case Whom.CONTROL:
            return burden < stage.burden and Whom.CONTROL not in struck
        case Whom.STUDENT | Whom.GUEST:
            return True
