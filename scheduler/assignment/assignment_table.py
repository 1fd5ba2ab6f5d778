"""Who holds what while the rule works: levels, loads and idle teachers of one content.

Everything here is scratch: it is built from the frozen state, changed by the rule, and read back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field

from .state import EPS, StudentEntry, TeacherEntry

NOTHING, A_PART, BELOW_MIN, BELOW_NEED, SERVED = range(5)
"""Classes of claims, the strongest first; who has only a part of a teacher, and lacks the rest of
it, comes before anyone's second teacher."""

#: A power, and a host or "" for any.
_Key = tuple[float, str]


@dataclass(slots=True, eq=False)
class StudentAssignment:
    """A student at the board.

    Attributes:
        arrival: its place in the order of arrival.
        held: its teachers, the longest held first.
        set_aside: teachers that give it no labels, nor anybody else: it keeps them, and they count for
            nothing.
        released: those that were put aside, and that it does not keep.
        own: power of those that serve nobody else.
        notes: what was done to it, in words.
    """

    name: str
    arrival: int
    need: float
    min: int
    priority: int
    host: str
    job: str
    held: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    released: set[str] = field(default_factory=set)
    own: float = 0.0
    shared: int = 0
    notes: list[str] = field(default_factory=list)


class IdleTeachers:
    """The teachers that nobody has: of equal ones the longest idle is given first.

    Args:
        teachers: all that are known.
        power: of those that may ever be idle here.
        held: those that are not now.
    """

    def __init__(
        self,
        teachers: Mapping[str, TeacherEntry],
        power: Mapping[str, float],
        held: Container[str],
    ) -> None:
        self._teachers = teachers
        self._of: dict[float, dict[str, None]] = {}
        for name, of_name in power.items():
            if name not in held:
                self._of.setdefault(of_name, {})[name] = None
        # Made when somebody asks for one on a host.
        self._at: dict[_Key, dict[str, None]] | None = None

    def __bool__(self) -> bool:
        return any(self._of.values())

    def put(self, teacher: str) -> None:
        entry = self._teachers[teacher]
        self._of.setdefault(entry.power, {})[teacher] = None
        if self._at is not None:
            self._at.setdefault((entry.power, entry.host), {})[teacher] = None

    def take(self, teacher: str) -> None:
        entry = self._teachers[teacher]
        del self._of[entry.power][teacher]
        if self._at is not None:
            del self._at[entry.power, entry.host][teacher]

    def fitting(self, unmet: float, host: str) -> str:
        """The largest not above `unmet`, else the smallest; of equal ones one on the host."""
        powers = [power for power, names in self._of.items() if names]
        fit = max((power for power in powers if power <= unmet + EPS), default=min(powers))
        return self._one(fit, host)

    def enough(self, need: float, host: str) -> str | None:
        """The smallest that is all that somebody needs; None: there is none."""
        powers = [power for power, names in self._of.items() if names and power >= need - EPS]
        return self._one(min(powers), host) if powers else None

    def _one(self, power: float, host: str) -> str:
        if host and self._at is None:
            self._at = {}
            for names in self._of.values():
                for name in names:
                    entry = self._teachers[name]
                    self._at.setdefault((entry.power, entry.host), {})[name] = None
        near = (self._at or {}).get((power, host)) if host else None
        return next(iter(near or self._of[power]))


class AssignmentTable:
    """The teachers that serve one content, and the students that are on it.

    The least loaded teachers are found when they are asked for, and then known until somebody comes
    to hold one or holds it no more.

    Args:
        teachers: all that are known.
        power: of those that serve the content.
        growing: whether nobody may lose anything, so that whoever has none shares with anyone.
    """

    idle: IdleTeachers  # once it is open

    def __init__(
        self, teachers: Mapping[str, TeacherEntry], power: Mapping[str, float], growing: bool
    ) -> None:
        self.students: list[StudentAssignment] = []
        self.holders: dict[str, tuple[StudentAssignment, ...]] = {}
        self.power = power
        self.powers = sorted(set(power.values()))
        self._teachers = teachers
        self._growing = growing
        self._loads: dict[str, float] = {}
        self._least: dict[_Key, tuple[float, str]] | None = None

    # -- building

    def add_student(
        self, student: StudentAssignment, teachers: Iterable[str], silent: Set[str]
    ) -> None:
        """Bring a student to the board, with what it holds from before, as far as it is there."""
        self.students.append(student)
        if silent:
            given = list(teachers)
            student.set_aside = [name for name in given if name in silent and name in self.power]
            teachers = [name for name in given if name not in silent]
        holders, known, alone = self.holders, self.power, (student,)
        mine = dict.fromkeys(teachers, alone)
        if mine.keys() <= known.keys() and holders.keys().isdisjoint(mine):
            holders.update(mine)  # as below, but there may be ten thousand of them
            student.held += mine
            student.own = sum(map(known.__getitem__, mine))
            return
        for name in mine:
            if name in holders:
                self._join(student, name)
                student.held.append(name)
            elif name in known:
                holders[name] = alone
                student.held.append(name)
                student.own += known[name]

    def collect_idle(self) -> None:
        """All that hold something are seated: the other teachers are idle."""
        for student in self.students:
            for name in student.set_aside:
                self.holders.setdefault(name, ())
        self.idle = IdleTeachers(self._teachers, self.power, self.holders)

    # -- what is asked

    @property
    def shared(self) -> bool:
        """Whether students outnumber teachers, or light ones sit together."""
        return any(student.shared for student in self.students)

    def host(self, teacher: str) -> str:
        return self._teachers[teacher].host

    def part(self, student: StudentAssignment, teacher: str) -> float:
        """How much of a teacher's time a student can use: 0 to 1."""
        return min(1.0, student.need / self.power[teacher])

    def load(self, teacher: str) -> float:
        """How much of its time those that hold it can use; beyond 1 they lack some."""
        load = self._loads.get(teacher)
        if load is None:
            parts = [self.part(student, teacher) for student in self.holders[teacher]]
            load = self._loads[teacher] = sum(parts)
        return load

    def least_loaded(self, power: float, host: str) -> str | None:
        """Of the teachers of a power where one more may sit the least loaded, a near one if any."""
        if self._least is None:
            least: dict[_Key, tuple[float, str]] = {}
            self._least = least
            growing, loads = self._growing, self._loads
            for teacher, students in self.holders.items():
                # One more may sit where it is the only teacher of those that hold it.
                if students and (growing or len(students) > 1 or len(students[0].held) == 1):
                    load, entry = loads.get(teacher), self._teachers[teacher]
                    load = self.load(teacher) if load is None else load
                    for key in ((entry.power, ""), (entry.power, entry.host)):
                        if key not in least or (load, teacher) < least[key]:
                            least[key] = load, teacher
        near, far = self._least.get((power, host)), self._least.get((power, ""))
        if near is not None and far is not None and near[0] <= far[0] + 1e-9:
            return near[1]
        return None if far is None else far[1]

    def level(self, student: StudentAssignment) -> float:
        """Power that a student has: its own teachers, and its part of shared ones."""
        if not student.shared:
            return student.own
        return student.own + sum(
            self.power[name] * self.part(student, name) / max(1.0, self.load(name))
            for name in student.held
            if len(self.holders[name]) > 1
        )

    def is_served(self, student: StudentAssignment) -> bool:
        return self.level(student) >= student.need - EPS

    def claim_class(self, student: StudentAssignment, level: float, *, gives: int = 0) -> int:
        """How strong its claim is at a level, or would be after giving so many of its teachers."""
        heads = len(student.held) - student.shared - gives
        if heads + student.shared <= 0:
            return NOTHING
        if level >= student.need - EPS:
            return SERVED
        if heads == 0:
            return A_PART
        return BELOW_MIN if heads < student.min else BELOW_NEED

    # -- what is done

    def give(self, student: StudentAssignment, teacher: str) -> None:
        """The student holds the teacher from now on, beside whoever holds it already."""
        if teacher in self.holders:
            self._join(student, teacher)
        else:
            self.idle.take(teacher)
            self.holders[teacher] = (student,)
            student.own += self.power[teacher]
        student.held.append(teacher)
        self._changed(teacher)

    def take(self, student: StudentAssignment, teacher: str) -> None:
        """The student does not hold the teacher any more; held by nobody, it is idle."""
        holders = tuple(other for other in self.holders[teacher] if other is not student)
        student.held.remove(teacher)
        if holders:
            self.holders[teacher] = holders
            student.shared -= 1
            if len(holders) == 1:
                self._owns(holders[0], teacher, True)
        else:
            student.own = (
                student.own - self.power[teacher] if len(student.held) > student.shared else 0.0
            )
            del self.holders[teacher]
            self.idle.put(teacher)
        self._changed(teacher)

    def release(self, student: StudentAssignment) -> None:
        """The student holds none of those any more that give it no labels."""
        names, student.set_aside = student.set_aside, []
        student.released.update(names)
        for name in names:
            if not self.holders[name] and not any(
                name in other.set_aside for other in self.students
            ):
                del self.holders[name]
                self.idle.put(name)

    def _changed(self, teacher: str) -> None:
        """Others hold it than before."""
        self._loads.pop(teacher, None)
        self._least = None

    def _join(self, student: StudentAssignment, teacher: str) -> None:
        student.shared += 1
        holders = self.holders[teacher]
        if len(holders) == 1:
            self._owns(holders[0], teacher, False)
        self.holders[teacher] = (*holders, student)

    def _owns(self, student: StudentAssignment, teacher: str, alone: bool) -> None:
        student.own += self.power[teacher] if alone else -self.power[teacher]
        student.shared += -1 if alone else 1
        if len(student.held) == student.shared:
            student.own = 0.0


def assignment_tables(
    teachers: Mapping[str, TeacherEntry],
    pools: Mapping[str, Mapping[str, float]],
    students: Mapping[str, StudentEntry],
    silent: Set[str],
    keeping: bool,
    newcomers: Set[str],
) -> list[AssignmentTable]:
    """A board for each content, with what students hold of it.

    Args:
        teachers: all that are known.
        pools: power of those that may be assigned, by content.
        students: all that are known, with what they held.
        silent: teachers that give labels to none of those that hold them.
        keeping: whether what somebody holds already may be held by a newcomer too.
        newcomers: students that say themselves what they hold.
    """
    made: dict[str, AssignmentTable] = {}
    for arrival, (name, entry) in enumerate(students.items()):
        content, job = entry.content_id, name.rpartition("/")[0] or name
        table = made.get(content)
        if table is None:
            table = made[content] = AssignmentTable(teachers, pools.get(content, {}), keeping)
        held = entry.teachers
        if name in newcomers and not keeping:
            held = tuple(teacher for teacher in held if teacher not in table.holders)
        student = StudentAssignment(
            name, arrival, entry.need, entry.min, entry.priority, entry.host, job
        )
        table.add_student(student, held, silent)
    for table in made.values():
        table.collect_idle()
    return list(made.values())


def silent_teachers(students: Mapping[str, StudentEntry]) -> set[str]:
    """Teachers that give labels to none of those that hold them."""
    entries = students.values()
    silent = {name for one in entries for name in one.unavailable.intersection(one.teachers)}
    if silent:
        silent -= {name for one in entries for name in one.teachers if name not in one.unavailable}
    return silent
