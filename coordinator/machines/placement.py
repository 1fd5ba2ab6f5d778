"""Which machine gets a teacher of which service: the paper's section 3.1, as a function.

Machines wait, or have a teacher; services want so many. Where machines are too few, each service
first gets its least number, the higher priority before the lower, then, in the same order, what it
wants beyond that. Who has a teacher keeps it wherever this leaves it one: a machine is taken from a
service only when it has too many, or when one that goes first lacks one and no machine waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: A deployment counts as a student that was there: it has its least number of teachers for so long
#: (autoscaling's idle_to_zero_s, unless it is said otherwise), and whoever deploys sees it work.
FRESH_S: Final = 120.0
#: For so long after the lead was gained a service that autoscaling says nothing of keeps what it
#: has: its leader, and its students, may not be back yet.
HOLD_S: Final = 60.0

#: What a machine is worth to its service, from what is taken first.
_WAITS, _SPARE, _WANTED, _LEAST = range(4)


@dataclass(frozen=True, slots=True)
class PlacedMachine:
    """A machine, as it was ordered last.

    Attributes:
        machine_id: its name.
        service: whose teacher it is to have; empty: it waits.
        content_id: of that teacher.
        serves: the teacher is there.
        available: it takes orders: nobody else uses it, and it does not leave.
        refuses: services whose teacher it could not start lately.
        cached: contents that it need not fetch.
    """

    machine_id: str
    service: str = ""
    content_id: str = ""
    serves: bool = False
    available: bool = True
    refuses: frozenset[str] = field(default_factory=frozenset)
    cached: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class TeacherDemand:
    """What a service wants of the machines.

    Attributes:
        service: its name.
        content_id: of the teachers.
        least: teachers that it has before others get more than theirs.
        wanted: teachers in all, at least `least`; 0: it gives back what it has.
        priority: the higher goes first.
    """

    service: str
    content_id: str
    least: int
    wanted: int
    priority: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.wanted:
            raise ValueError(f"a service wants 0 to {self.least} to {self.wanted} teachers")


@dataclass(frozen=True, slots=True)
class Change:
    """A new order for a machine.

    Attributes:
        machine_id: which.
        service: whose teacher it is to have from now on; empty: none.
        why: in words.
    """

    machine_id: str
    service: str
    why: str


def desired_of(
    said: int | None,
    *,
    least: int,
    has: int,
    students: bool,
    age_s: float,
    led_s: float,
    idle_s: float = FRESH_S,
) -> int:
    """How many teachers a service is to have: what autoscaling says; else what has a reason.

    Args:
        said: by autoscaling; None: it says nothing.
        least: teachers that it has at least, while there is a reason for any.
        has: that it has, or is about to.
        students: whether it has any; does not matter where something is said.
        age_s: seconds since it was deployed.
        led_s: seconds since the placement has been led by who asks.
        idle_s: seconds without any student after which it wants none.
    """
    fresh = age_s < idle_s
    if said is not None:
        return max(said, least) if fresh else said
    least = least if students or fresh else 0
    return max(least, has) if students or led_s < HOLD_S else least


def wish_of(
    service: str,
    content_id: str,
    *,
    least: int,
    most: int,
    desired: int | None,
    elsewhere: int = 0,
    priority: int = 0,
) -> TeacherDemand:
    """What a service wants of the machines, where it has other teachers besides.

    Where autoscaling wants none at all, because no student is there, the least is none as well.

    Args:
        service: its name.
        content_id: of its teachers.
        least: teachers that it has at least, of whatever kind.
        most: and at most.
        desired: what autoscaling says; None: it says nothing, which means `least`.
        elsewhere: teachers that it has without the machines.
        priority: the higher goes first.
    """
    if desired == 0:
        least = 0
    whole = least if desired is None else min(max(desired, least), most)
    return TeacherDemand(
        service,
        content_id,
        max(0, least - elsewhere),
        max(0, whole - elsewhere),
        priority,
    )


def place(places: Iterable[PlacedMachine], wishes: Iterable[TeacherDemand]) -> tuple[Change, ...]:
    """New orders; machines that go on as they are get none.

    A machine of a service that nobody wishes anything for is left alone: what is not known is not
    ended.

    Args:
        places: all machines that live.
        wishes: one for each service that has a deployment.
    """
    return _Placing(tuple(places), tuple(wishes)).changes()


class _Placing:
    """One computation: claims machines for the wishes, those that go first first."""

    def __init__(self, places: Sequence[PlacedMachine], wishes: Sequence[TeacherDemand]) -> None:
        self._wishes = {wish.service: wish for wish in wishes}
        self._free: dict[str, PlacedMachine] = {}
        self._given_back: list[PlacedMachine] = []
        for one in sorted(places, key=lambda one: one.machine_id):
            if not one.available:
                if one.service:
                    self._given_back.append(one)
            elif not one.service or one.service in self._wishes:
                self._free[one.machine_id] = one
        self._held = {name: self._holders(wish) for name, wish in self._wishes.items()}
        self._worth = self._worths()
        self._has = dict.fromkeys(self._wishes, 0)
        self._given: dict[
            str, tuple[PlacedMachine, TeacherDemand, str]
        ] = {}  # by machine: to whom, and why

    def changes(self) -> tuple[Change, ...]:
        order = sorted(self._wishes.values(), key=lambda wish: (-wish.priority, wish.service))
        for wish in order:
            self._fill(wish, wish.least)
        for wish in order:
            self._fill(wish, wish.wanted)
        changes = [
            Change(one.machine_id, wish.service, why)
            for one, wish, why in self._given.values()
            if not _holds(one, wish)
        ]
        for one in self._free.values():
            if one.service:
                changes.append(Change(one.machine_id, "", self._why_released(one)))
        for one in self._given_back:
            changes.append(Change(one.machine_id, "", "the machine is used by others"))
        return tuple(sorted(changes, key=lambda change: change.machine_id))

    def _holders(self, wish: TeacherDemand) -> list[PlacedMachine]:
        """The machines of a service, from what it keeps first."""
        its = [one for one in self._free.values() if _holds(one, wish)]
        return sorted(its, key=lambda one: (not one.serves, one.machine_id))

    def _worths(self) -> Mapping[str, tuple[int, int, int]]:
        """What is taken from whom first: the smallest; ties by what was kept last."""
        worth: dict[str, tuple[int, int, int]] = {}
        for name, holders in self._held.items():
            wish = self._wishes[name]
            for rank, one in enumerate(holders):
                kind = _LEAST if rank < wish.least else _WANTED if rank < wish.wanted else _SPARE
                worth[one.machine_id] = (kind, wish.priority, -rank)
        return worth

    def _fill(self, wish: TeacherDemand, until: int) -> None:
        for one in self._held[wish.service]:
            if self._has[wish.service] >= until:
                return
            if one.machine_id in self._free:
                self._give(one, wish)
        while self._has[wish.service] < until and self._give_one(wish, set()):
            pass

    def _give(self, one: PlacedMachine, wish: TeacherDemand) -> None:
        self._free.pop(one.machine_id, None)
        self._has[wish.service] += 1
        self._given[one.machine_id] = (one, wish, self._why_given(one, wish))

    def _give_one(self, wish: TeacherDemand, asked: set[str]) -> bool:
        """One more machine for a wish, if there is any way.

        Where it can use none of those that are left, somebody may who has one that it can use: so
        which machines were given first decides nothing. Who got one just now is asked before who
        has had it.
        """
        if (best := self._best(wish)) is not None:
            self._give(best, wish)
            return True
        asked.add(wish.service)
        if not self._free:
            return False
        of_others = [(one, other) for one, other, _ in self._given.values()]
        for one, other in sorted(of_others, key=lambda pair: _hold(*pair)):
            usable = other.service not in asked and wish.service not in one.refuses
            if usable and self._give_one(other, asked):
                self._has[other.service] -= 1
                self._give(one, wish)
                return True
        return False

    def _best(self, wish: TeacherDemand) -> PlacedMachine | None:
        fitting = [one for one in self._free.values() if wish.service not in one.refuses]
        return min(fitting, key=lambda one: self._preference(one, wish), default=None)

    def _preference(self, one: PlacedMachine, wish: TeacherDemand) -> tuple[object, ...]:
        """Machines that wait before others; those before all that have the model already."""
        usual = (_SPARE, 0, 0) if one.service else (_WAITS, 0, 0)
        worth = self._worth.get(one.machine_id, usual)
        # Who could do little else goes first, so that others find what they can use.
        return worth, wish.content_id not in one.cached, -len(one.refuses), one.machine_id

    def _why_given(self, one: PlacedMachine, wish: TeacherDemand) -> str:
        count = f"teacher {self._has[wish.service]} of {wish.wanted}"
        if not one.service:
            return f"{count} that {wish.service} wants"
        if one.service == wish.service:
            return f"{count} that {wish.service} wants, of content {wish.content_id[:12]}"
        return f"{count} that {wish.service} wants; taken from {one.service}"

    def _why_released(self, one: PlacedMachine) -> str:
        if one.service in one.refuses:
            return f"it could not start a teacher of {one.service}"
        return f"{one.service} wants {self._wishes[one.service].wanted} of the machines"


def _hold(one: PlacedMachine, wish: TeacherDemand) -> tuple[object, ...]:
    """What speaks for leaving a machine to whom it was given; the smaller is taken first."""
    return _holds(one, wish), one.serves, one.machine_id


def _holds(one: PlacedMachine, wish: TeacherDemand) -> bool:
    """Whether a machine has, or is about to have, what is wished."""
    same = one.service == wish.service and one.content_id == wish.content_id
    return same and wish.service not in one.refuses


__all__: Final = [
    "FRESH_S",
    "HOLD_S",
    "Change",
    "PlacedMachine",
    "TeacherDemand",
    "desired_of",
    "place",
    "wish_of",
]
