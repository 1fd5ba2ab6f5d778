"""Mutable table of the assignments of one content, while the rule works on them.

A table is built from the immutable state, changed by the rule, and read back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from .state import EPS, StudentEntry, TeacherEntry

#: Classes of claims, the strongest first. Students with too small a part of their only teacher come
#: before students that lack a second teacher.
NOTHING, A_PART, BELOW_MIN, BELOW_NEED, SERVED = range(5)

#: "" stands for any host.
_PowerAndHost = tuple[float, str]


class Note(NamedTuple):
    """Why the rule changed an assignment, as text, and the teachers that the text names."""

    text: str
    teachers: tuple[str, ...]


@dataclass(slots=True, eq=False)
class StudentAssignment:
    """The assignment of one student.

    Attributes:
        arrival: position in the order of arrival.
        held: its teachers, the longest held first.
        set_aside: its teachers that give labels to no student: it keeps them in addition to its
            share.
        released: teachers that were set aside and that it no longer keeps.
        own_power: power of its teachers that no other student holds.
        shared_count: number of its teachers that other students hold too.
        notes: reasons for its changes.
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
    own_power: float = 0.0
    shared_count: int = 0
    notes: list[Note] = field(default_factory=list)

    def note(self, text: str, *teachers: str) -> None:
        self.notes.append(Note(text, teachers))


class IdleTeachers:
    """Teachers that no student holds.

    Among equal teachers, the first to arrive is assigned first; teachers that became idle while the
    rule was applied are assigned last.

    Args:
        teachers: all known teachers.
        names: teachers that can be idle in this table.
        held: teachers that are not idle now.
    """

    def __init__(
        self, teachers: Mapping[str, TeacherEntry], names: Iterable[str], held: Container[str]
    ) -> None:
        self._teachers = teachers
        self._by_power: dict[float, dict[str, None]] = {}
        self._by_power_and_host: dict[_PowerAndHost, dict[str, None]] = {}
        for name in names:
            if name not in held:
                self.put(name)

    def __bool__(self) -> bool:
        return any(self._by_power.values())

    def put(self, teacher: str) -> None:
        entry = self._teachers[teacher]
        self._by_power.setdefault(entry.power, {})[teacher] = None
        self._by_power_and_host.setdefault((entry.power, entry.host), {})[teacher] = None

    def take(self, teacher: str) -> None:
        entry = self._teachers[teacher]
        del self._by_power[entry.power][teacher]
        del self._by_power_and_host[entry.power, entry.host][teacher]

    def fitting(self, unmet: float, host: str) -> str:
        """Return the most powerful teacher that an unmet need uses fully, else the weakest.

        Among equal teachers, one on `host` is preferred. At least one teacher must be idle.
        """
        powers = [power for power, names in self._by_power.items() if names]
        fit = max((power for power in powers if power <= unmet + EPS), default=min(powers))
        return self._first(fit, host)

    def enough(self, need: float, host: str) -> str | None:
        """Return the weakest teacher that alone covers `need`, preferably on `host`, or None."""
        powers = [power for power, names in self._by_power.items() if names and power >= need - EPS]
        return self._first(min(powers), host) if powers else None

    def _first(self, power: float, host: str) -> str:
        on_host = self._by_power_and_host.get((power, host)) if host else None
        return next(iter(on_host or self._by_power[power]))


class AssignmentTable:
    """The teachers of one content, and the students that are assigned to it.

    The least loaded teachers are computed on demand and cached until an assignment changes.

    Args:
        teachers: all known teachers.
        power: power of the teachers that serve the content.
        recovering: a new leader has just taken over, and members may not have registered again yet.
            No student may lose a teacher now, so a student without any may share any teacher.

    Attributes:
        holders: the students of each teacher, without idle teachers. A teacher's tuple is empty if
            only students that have set the teacher aside keep it.
        power: as in Args.
        powers: the different powers, ascending.
        idle: the idle teachers; only after `collect_idle`.
    """

    idle: IdleTeachers

    def __init__(
        self, teachers: Mapping[str, TeacherEntry], power: Mapping[str, float], recovering: bool
    ) -> None:
        self.students: list[StudentAssignment] = []
        self.holders: dict[str, tuple[StudentAssignment, ...]] = {}
        self.power = power
        self.powers = sorted(set(power.values()))
        self._teachers = teachers
        self._recovering = recovering
        self._loads: dict[str, float] = {}
        self._least_loaded: dict[_PowerAndHost, tuple[float, str]] | None = None

    # -- building

    def add_student(
        self, student: StudentAssignment, teachers: Iterable[str], silent: Set[str]
    ) -> None:
        """Add a student with those of its previous `teachers` that still serve.

        Teachers in `silent` are set aside.
        """
        self.students.append(student)
        if silent:
            held = list(teachers)
            student.set_aside = [name for name in held if name in silent and name in self.power]
            teachers = [name for name in held if name not in silent]
        holders, power, alone = self.holders, self.power, (student,)
        serving = dict.fromkeys(teachers, alone)
        if serving.keys() <= power.keys() and holders.keys().isdisjoint(serving):
            holders.update(serving)  # equals the loop below, but is fast for ten thousand teachers
            student.held += serving
            student.own_power = sum(map(power.__getitem__, serving))
            return
        for name in serving:
            if name in holders:
                self._join(student, name)
                student.held.append(name)
            elif name in power:
                holders[name] = alone
                student.held.append(name)
                student.own_power += power[name]

    def collect_idle(self) -> None:
        """Compute the idle teachers after all students were added."""
        for student in self.students:
            for name in student.set_aside:
                self.holders.setdefault(name, ())
        self.idle = IdleTeachers(self._teachers, self.power, self.holders)

    # -- queries

    @property
    def shared(self) -> bool:
        """Whether any students share a teacher."""
        return any(student.shared_count for student in self.students)

    def host(self, teacher: str) -> str:
        return self._teachers[teacher].host

    def part(self, student: StudentAssignment, teacher: str) -> float:
        """Return the part of a teacher's time that a student can use: 0 to 1."""
        return min(1.0, student.need / self.power[teacher])

    def load(self, teacher: str) -> float:
        """Return the sum of the parts that a teacher's students can use; above 1: overloaded."""
        load = self._loads.get(teacher)
        if load is None:
            parts = [self.part(student, teacher) for student in self.holders[teacher]]
            load = self._loads[teacher] = sum(parts)
        return load

    def least_loaded(self, power: float, host: str) -> str | None:
        """Return the least loaded teacher of this power that may be shared, or None.

        Among equally loaded teachers, one on `host` is preferred.
        """
        if self._least_loaded is None:
            least_loaded: dict[_PowerAndHost, tuple[float, str]] = {}
            self._least_loaded = least_loaded
            recovering, loads = self._recovering, self._loads
            for teacher, students in self.holders.items():
                # Another student may share the teacher if its students have no other one.
                if students and (recovering or len(students) > 1 or len(students[0].held) == 1):
                    load, entry = loads.get(teacher), self._teachers[teacher]
                    load = self.load(teacher) if load is None else load
                    for key in ((entry.power, ""), (entry.power, entry.host)):
                        if key not in least_loaded or (load, teacher) < least_loaded[key]:
                            least_loaded[key] = load, teacher
        on_host = self._least_loaded.get((power, host))
        on_any = self._least_loaded.get((power, ""))
        if on_host is not None and on_any is not None and on_host[0] <= on_any[0] + 1e-9:
            return on_host[1]
        return None if on_any is None else on_any[1]

    def student_power(self, student: StudentAssignment) -> float:
        """Return the power that a student has: its own teachers and its parts of shared ones."""
        if not student.shared_count:
            return student.own_power
        return student.own_power + sum(
            self.power[name] * self.part(student, name) / max(1.0, self.load(name))
            for name in student.held
            if len(self.holders[name]) > 1
        )

    def is_served(self, student: StudentAssignment) -> bool:
        return self.student_power(student) >= student.need - EPS

    def claim_class(self, student: StudentAssignment, level: float, *, gives: int = 0) -> int:
        """Return the class of the student's claim if its power is `level`.

        `gives` is the number of teachers that it has given away to get down to `level`.
        """
        own = len(student.held) - student.shared_count - gives
        if own + student.shared_count <= 0:
            return NOTHING
        if level >= student.need - EPS:
            return SERVED
        if own == 0:
            return A_PART
        return BELOW_MIN if own < student.min else BELOW_NEED

    # -- changes

    def give(self, student: StudentAssignment, teacher: str) -> None:
        """Assign the teacher to the student, in addition to the students that hold it already."""
        if teacher in self.holders:
            self._join(student, teacher)
        else:
            self.idle.take(teacher)
            self.holders[teacher] = (student,)
            student.own_power += self.power[teacher]
        student.held.append(teacher)
        self._changed(teacher)

    def take(self, student: StudentAssignment, teacher: str) -> None:
        """Take the teacher from the student. It becomes idle if no other student holds it."""
        holders = tuple(other for other in self.holders[teacher] if other is not student)
        student.held.remove(teacher)
        if holders:
            self.holders[teacher] = holders
            student.shared_count -= 1
            if len(holders) == 1:
                self._count_as_own(holders[0], teacher, True)
        else:
            has_own = len(student.held) > student.shared_count
            student.own_power = student.own_power - self.power[teacher] if has_own else 0.0
            del self.holders[teacher]
            self.idle.put(teacher)
        self._changed(teacher)

    def release(self, student: StudentAssignment) -> None:
        """Take from the student all teachers that it has set aside."""
        names, student.set_aside = student.set_aside, []
        student.released.update(names)
        for name in names:
            if not self.holders[name] and not any(
                name in other.set_aside for other in self.students
            ):
                del self.holders[name]
                self.idle.put(name)

    def _changed(self, teacher: str) -> None:
        self._loads.pop(teacher, None)
        self._least_loaded = None

    def _join(self, student: StudentAssignment, teacher: str) -> None:
        student.shared_count += 1
        holders = self.holders[teacher]
        if len(holders) == 1:
            self._count_as_own(holders[0], teacher, False)
        self.holders[teacher] = (*holders, student)

    def _count_as_own(self, student: StudentAssignment, teacher: str, own: bool) -> None:
        """Count a teacher as the student's own; if not `own`, as shared."""
        student.own_power += self.power[teacher] if own else -self.power[teacher]
        student.shared_count += -1 if own else 1
        if len(student.held) == student.shared_count:
            student.own_power = 0.0


def assignment_tables(
    teachers: Mapping[str, TeacherEntry],
    pools: Mapping[str, Mapping[str, float]],
    students: Mapping[str, StudentEntry],
    silent: Set[str],
    recovering: bool,
    newcomers: Set[str],
) -> list[AssignmentTable]:
    """Build a table for each content that a student has.

    Args:
        teachers: all known teachers.
        pools: power of the teachers that may be assigned, by content.
        students: all known students, with the teachers that they held.
        silent: teachers that give labels to none of their students.
        recovering: a recovery is under way, so a newcomer may keep a teacher that another student
            holds too.
        newcomers: students that have just come. Which teachers they hold is known only from their
            own reports.
    """
    tables: dict[str, AssignmentTable] = {}
    for arrival, (name, entry) in enumerate(students.items()):
        content, job = entry.content_id, name.rpartition("/")[0] or name
        table = tables.get(content)
        if table is None:
            table = tables[content] = AssignmentTable(teachers, pools.get(content, {}), recovering)
        held = entry.teachers
        if name in newcomers and not recovering:
            held = tuple(teacher for teacher in held if teacher not in table.holders)
        student = StudentAssignment(
            name, arrival, entry.need, entry.min, entry.priority, entry.host, job
        )
        table.add_student(student, held, silent)
    for table in tables.values():
        table.collect_idle()
    return list(tables.values())


def silent_teachers(students: Mapping[str, StudentEntry]) -> set[str]:
    """Return the teachers that give labels to none of their students."""
    entries = students.values()
    silent = {name for s in entries for name in s.unavailable.intersection(s.teachers)}
    if silent:
        silent -= {name for s in entries for name in s.teachers if name not in s.unavailable}
    return silent
