"""What `autoscale` is told of a service: its students' reports, taken together.

The leader of a service and the simulator's both ask this, so that they scale by the same sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .autoscale import ServiceLoad


class StudentLoad(NamedTuple):
    """One student, as it reports.

    Attributes:
        want: teachers that it asks for.
        t_t_s, t_s_s: measured seconds per sample of its average teacher and of its step; 0: not
            known.
        starves: whether it does now.
        samples_per_s: that it trains.
    """

    want: float
    t_t_s: float
    t_s_s: float
    starves: bool
    samples_per_s: float = 0.0


def own_want(want: float, unreachable: float) -> float:
    """What a student that is cut off wants without stand-ins.

    `flow.decide` adds one for each unreachable teacher, and no more than the student wants itself.
    """
    return max(want - unreachable, want / 2)


@dataclass(frozen=True, slots=True)
class Waits:
    """What all students have waited, whether they are still there or not.

    Attributes:
        starved_s, blocked_s: as in `ServiceLoad`.
    """

    starved_s: float = 0.0
    blocked_s: float = 0.0

    def grown(self, before: Waits, now: Waits) -> Waits:
        """With what one student's sums have grown by between two reports of one life of it."""
        return Waits(
            self.starved_s + max(now.starved_s - before.starved_s, 0.0),
            self.blocked_s + max(now.blocked_s - before.blocked_s, 0.0),
        )


def load_of(
    students: Iterable[StudentLoad],
    waits: Waits,
    *,
    serving: int,
    starting: int = 0,
    recovering: bool = False,
) -> ServiceLoad:
    """A service as its leader knows it; the arguments are those of `ServiceLoad`.

    What the students' time is worth is known only when each of them has measured both its times:
    the average teacher of each counts by what that student trains.
    """
    every = tuple(students)
    known = bool(every) and all(one.t_t_s > 0 and one.t_s_s > 0 for one in every)
    demand_per_s = sum(1 / one.t_s_s for one in every) if known else 0.0
    worth = sum(one.t_t_s / one.t_s_s for one in every) if known else 0.0
    return ServiceLoad(
        students=len(every),
        serving=serving,
        starting=starting,
        wanted=int(sum(one.want for one in every)),
        starving=sum(one.starves for one in every),
        starved_s=waits.starved_s,
        blocked_s=waits.blocked_s,
        samples_per_s=sum(one.samples_per_s for one in every),
        t_t_s=worth / demand_per_s if demand_per_s > 0 else 0.0,
        demand_per_s=demand_per_s,
        recovering=recovering,
    )


def may_begin(*, recovering: bool, students: int, holding: int, teachers: int) -> bool:
    """Whether a leader may say for the first time how many teachers a service should have.

    While members come back, perhaps as the registry was emptied, it waits until all are there to be
    counted. Where students have never had a teacher, and none is there, nobody comes back: the
    service is new.

    Args:
        recovering: members may be missing that were there before.
        students: of the service, as far as they are there.
        holding: of those, how many hold teachers.
        teachers: of the service, as far as they are there.
    """
    is_new = students > 0 and not holding and not teachers
    return is_new or not recovering


def left_to_fleets(desired: int, others: int) -> int:
    """Teachers that fleets are to run of those that a service should have.

    Args:
        desired: teachers that the service should have.
        others: that serve, and that nobody's fleet has started.
    """
    return max(0, desired - others)
