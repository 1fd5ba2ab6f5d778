"""How students share teachers, trade them, and swap places by priority.

Except during a recovery, a student has either teachers of its own or a part of exactly one teacher.
*Light* students need at most half of a teacher: they may share one and still have all they need.
Others share only as a last resort. With teachers of several powers, a student that has more than it
needs trades a teacher for a weaker one of a student that has less than it needs. A student's
*place* is its only teacher, or its part of one. Of students that would use a place equally, those
of higher priority get the better places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .assignment_table import AssignmentTable, StudentAssignment
from .state import EPS

#: In a shortage, students that need at most this part of a teacher may share one.
LIGHT = 0.5


def teacher_with_room(
    table: AssignmentTable, student: StudentAssignment, excluded: str = ""
) -> str | None:
    """Return a teacher that can serve the student too without giving its other students less.

    Args:
        table: the assignments.
        student: a student that may share a teacher.
        excluded: name of a teacher that is not returned.

    Returns:
        Preferably a teacher on the student's host, then the most loaded one; None: there is none.
    """
    if not any(
        _has_room(table, student, name) for name in _least_loaded_of_each_power(table, student)
    ):
        return None
    best: tuple[bool, float] | None = None
    best_teacher = None
    for name in {other.held[0]: None for other in table.students if len(other.held) == 1}:
        if name == excluded or not _has_room(table, student, name):
            continue
        far = not student.host or table.host(name) != student.host
        fit = far, -table.load(name)
        if best is None or fit < best:
            best, best_teacher = fit, name
    return best_teacher


def pack(table: AssignmentTable) -> bool:
    """Move a light student to another student's teacher, so that its own becomes idle.

    Returns:
        Whether a student was moved.
    """
    light = (
        s
        for s in table.students
        if len(s.held) == 1 and not s.shared_count and table.part(s, s.held[0]) <= LIGHT + EPS
    )
    student = min(light, key=lambda s: (s.need, s.arrival), default=None)
    if student is None:
        return False
    own = student.held[0]
    teacher = teacher_with_room(table, student, excluded=own)
    if teacher is None:
        return False  # no room for the lightest student, so none for others
    table.take(student, own)
    table.give(student, teacher)
    return True


def least_loaded(table: AssignmentTable, student: StudentAssignment) -> str | None:
    """Return the teacher that would have the lowest load with this student."""
    names = _least_loaded_of_each_power(table, student)
    return min(names, key=lambda name: _load_with(table, student, name), default=None)


def less_loaded(table: AssignmentTable, student: StudentAssignment) -> str | None:
    """Return a teacher that the student should share instead of the overloaded one that it has.

    The student then has more than now, and so have those that still share the overloaded teacher.

    Returns:
        None: there is none.
    """
    present = student.held[0]
    load = table.load(present)
    if load <= 1 + EPS:
        return None
    other = least_loaded(table, student)
    if other is None or other == present or _load_with(table, student, other) >= load - EPS:
        return None
    return other


def student_to_relieve(table: AssignmentTable) -> tuple[StudentAssignment, str] | None:
    """Return a student that shares a teacher, and an idle teacher that alone meets its need.

    Students of the most loaded teachers are considered first.

    Returns:
        None: no idle teacher is powerful enough for any student that shares a teacher.
    """
    shared = [name for name, students in table.holders.items() if len(students) > 1]
    for name in sorted(shared, key=table.load, reverse=True):
        for student in reversed(table.holders[name]):
            teacher = table.idle.enough(student.need, student.host)
            if teacher is not None:
                return student, teacher
    return None


def _least_loaded_of_each_power(table: AssignmentTable, student: StudentAssignment) -> list[str]:
    names = (table.least_loaded(power, student.host) for power in table.powers)
    return [name for name in names if name is not None]


def _has_room(table: AssignmentTable, student: StudentAssignment, name: str) -> bool:
    part = student.need / table.power[name]
    return part <= LIGHT + EPS and table.load(name) + part <= 1 + EPS


def _load_with(table: AssignmentTable, student: StudentAssignment, name: str) -> float:
    return table.load(name) + table.part(student, name)


class Trades:
    """Trades of teachers between a student that has more than it needs and one that has less.

    The former gives a teacher for a weaker one and still has what it needs.

    Attributes:
        spare: power of a teacher -> (surplus, student): the student that can best give a teacher
            of that power, and the power that it has beyond its need.
    """

    def __init__(self, table: AssignmentTable) -> None:
        self._table = table
        self.spare: dict[float, tuple[float, StudentAssignment]] = {}
        if len(table.powers) > 1:
            for student in table.students:
                self._offer(student)

    def trade(self, student: StudentAssignment) -> StudentAssignment | None:
        """Trade one of the student's teachers for a more powerful one of another student.

        Returns:
            The other student; None: no trade is possible.
        """
        if student.shared_count or not student.held or not self.spare:
            return None
        table = self._table
        gains = [
            (strong - weak, strong, weak)
            for weak in {table.power[name] for name in student.held}
            for strong, (spare, _) in self.spare.items()
            if EPS < strong - weak <= spare + EPS
        ]
        if not gains:
            return None
        _, strong, weak = min(gains)
        other = self.spare[strong][1]
        _trade(table, student, _latest(table, student, weak), other, _latest(table, other, strong))
        return other

    def _offer(self, student: StudentAssignment) -> None:
        """Record the student for each power of its teachers if no other has more to spare."""
        spare = student.own_power - student.need
        if student.shared_count or student.need <= 0 or spare <= EPS:
            return
        for name in student.held:
            power = self._table.power[name]
            if power not in self.spare or spare > self.spare[power][0] + EPS:
                self.spare[power] = spare, student


def _latest(table: AssignmentTable, student: StudentAssignment, power: float) -> str:
    return next(name for name in reversed(student.held) if table.power[name] == power)


def _trade(
    table: AssignmentTable,
    student: StudentAssignment,
    weak: str,
    other: StudentAssignment,
    strong: str,
) -> None:
    table.take(student, weak)
    table.take(other, strong)
    table.give(student, strong)
    table.give(other, weak)
    student.note(f"teacher {strong} taken over from {other.name} for teacher {weak}", strong, weak)
    other.note(
        f"teacher {strong} traded for {weak} with {student.name}, which needs more", strong, weak
    )


#: A swap costs two moves, so it is made only if the better place gives this many times as much.
WORTH = 1.5


def swap_by_priority(table: AssignmentTable) -> None:
    """Swap places until no student has a much worse place than a student of lower priority.

    Two students swap only if their teachers have equal power and both can use the same part of any
    teacher. So a swap changes no load: it affects no other student and causes no further moves.
    """
    if len({student.priority for student in table.students}) < 2 or not table.shared:
        return
    greatest = table.powers[-1]
    interchangeable: dict[tuple[float, float], list[StudentAssignment]] = defaultdict(list)
    for student in table.students:
        if len(student.held) == 1 and student.need > 0:
            usable = round(min(student.need, greatest), 6)
            interchangeable[table.power[student.held[0]], usable].append(student)
    for students in interchangeable.values():
        _sort_by_priority(table, students)


def _sort_by_priority(table: AssignmentTable, students: Iterable[StudentAssignment]) -> None:
    """Swap places between the highest and the lowest priority while a swap is worth it."""
    buckets: dict[tuple[int, float], list[StudentAssignment]] = defaultdict(list)
    for student in students:
        buckets[student.priority, round(table.student_power(student), 6)].append(student)
    while True:
        pairs = [
            (-high[0], high[1], low[0], -low[1])
            for high in buckets
            for low in buckets
            if high[0] > low[0] and low[1] >= WORTH * high[1] - EPS
        ]
        if not pairs:
            return
        first, worse, last, better = min(pairs)
        high, low = (-first, worse), (last, -better)
        student, other = buckets[high].pop(), buckets[low].pop()
        _swap_places(table, student, other)
        buckets[student.priority, low[1]].append(student)
        buckets[other.priority, high[1]].append(other)
        for key in (high, low):
            if not buckets[key]:
                del buckets[key]


def _swap_places(
    table: AssignmentTable, student: StudentAssignment, other: StudentAssignment
) -> None:
    mine, theirs = student.held[0], other.held[0]
    for holder, leaves, takes in ((student, mine, theirs), (other, theirs, mine)):
        table.give(holder, takes)
        table.take(holder, leaves)
    student.note(f"teacher {theirs} taken over from {other.name}", theirs)
    other.note(
        f"teacher {theirs} given to {student.name}, which has higher priority,"
        f" for a part of {mine}",
        theirs,
        mine,
    )
