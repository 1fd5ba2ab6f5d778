"""The assignment rule: repair what students hold, with as few moves as fairness needs.

The same procedure handles one new teacher, and a service that starts empty. A student that needs
more power has a *claim*; its *level* is the power that it has. Claims are ordered by class (no
teacher; too small a part of a teacher; below the guaranteed `min`; below the need), then by
priority, by level, and by the number of ranks of the job with an equal claim. So every student has
a first teacher before any student has a second. Then come the guarantees: if the sum of all `min`
exceeds the supply, higher priorities are served first, and students of one priority get equal
shares. Power beyond the guarantees is assigned in the same way.

1. Students give back what they do not need. 2. Idle teachers go to the strongest claim. 3. When no
teacher is idle: a light student (one that needs at most half of a teacher; see `sharing.py`) shares
a teacher that has room; light students with a teacher of their own share another one, which frees
theirs; the student that would miss a teacher least gives one to a strictly stronger claim; a
student that needs only a weaker teacher trades; a student without any teacher shares one.
4. Teachers that are still idle go to students that share a teacher and need at most one. Each step
serves a stronger claim than it creates, so the procedure ends.

A job is as fast as its slowest rank. So teachers that cannot raise all ranks of a job go to a
smaller job in which they can raise all.

An alternative would need fewer rules: fill all levels from scratch at each change, and match the
result to the present assignments. With teachers of one power it moves as many teachers. With three
powers it moves 8 to 26 times as many, because each student's mixture depends on the students filled
before, and a change with 10,000 teachers takes 14 times the CPU time.

Teachers that give labels to none of their students take no part. A student keeps such a teacher in
addition to its share, to notice when it answers again, and returns it once it has enough others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from . import sharing
from .assignment_table import A_PART, BELOW_MIN, NOTHING, SERVED, AssignmentTable, StudentAssignment
from .sharing import Trades, swap_by_priority
from .state import EPS

#: Class, negative priority, level. The smallest key is the strongest claim.
ClaimKey = tuple[int, int, float]


def claim_key(table: AssignmentTable, student: StudentAssignment, without: float = 0.0) -> ClaimKey:
    """Return a student's claim now, or after it gave away a teacher of power `without`."""
    level = table.student_power(student) - without
    return (
        table.claim_class(student, level, gives=int(without > 0)),
        -student.priority,
        round(level, 6),
    )


def beats(claim: ClaimKey, other: ClaimKey) -> bool:
    """Whether a student with `claim` may get a teacher from one whose claim would become `other`.

    No student loses its last teacher, whatever the priorities. Priority counts only between claims
    of one class.
    """
    if claim[0] == other[0] == NOTHING or claim[0] == SERVED:
        return False
    return claim < other


@dataclass(slots=True)
class _JobClaims:
    """The claims of one job's students, and how many students have each claim."""

    heap: list[tuple[ClaimKey, int, StudentAssignment]] = field(default_factory=list)
    equal: Counter[ClaimKey] = field(default_factory=Counter)


class ClaimQueue:
    """All students with less than they need, the strongest claim first.

    Among equal claims, the job with the fewest of them goes first: raising some ranks of a job
    is worth nothing until all are raised.
    """

    def __init__(self, table: AssignmentTable, students: Iterable[StudentAssignment]) -> None:
        self._table = table
        self._jobs: dict[str, _JobClaims] = {}
        self._heap: list[tuple[ClaimKey, int, int, str]] = []
        for student in students:
            self.push(student)

    def pop(self) -> StudentAssignment | None:
        """Remove and return the student with the strongest claim; None: there is none."""
        while self._heap:
            entry = heappop(self._heap)
            name = entry[3]
            job = self._jobs[name]
            if not job.heap or entry != self._strongest(name):
                continue
            claim, _, student = heappop(job.heap)
            job.equal[claim] -= 1
            self._push_job(name)
            if student.shared_count and not self._table.is_served(student):
                # Its level may have changed since the push, because others joined or left its
                # shared teacher. It keeps its place in the queue.
                return student
            if claim_key(self._table, student) == claim:
                return student
            self.push(student)
        return None

    def push(self, student: StudentAssignment) -> None:
        """Add a student (again) if it still needs something."""
        if student.need <= 0 or self._table.is_served(student):
            return
        claim = claim_key(self._table, student)
        job = self._jobs.setdefault(student.job, _JobClaims())
        heappush(job.heap, (claim, student.arrival, student))
        job.equal[claim] += 1
        self._push_job(student.job)

    def _push_job(self, name: str) -> None:
        if self._jobs[name].heap:
            heappush(self._heap, self._strongest(name))

    def _strongest(self, name: str) -> tuple[ClaimKey, int, int, str]:
        job = self._jobs[name]
        claim, arrival, _ = job.heap[0]
        return claim, job.equal[claim], arrival, name


class GiverQueue:
    """Students with several teachers, none of them shared; the first would miss a teacher least."""

    def __init__(self, table: AssignmentTable) -> None:
        self._table = table
        self._heap: list[tuple[tuple[int, int, float], int, int, StudentAssignment]] = []
        for student in table.students:
            self.push(student)

    def push(self, student: StudentAssignment) -> None:
        """Add a student with its current teachers; earlier entries of it become invalid."""
        if len(student.held) < 2 or student.shared_count:
            return
        after = self._claim_after(student)
        key = (-after[0], -after[1], -after[2])
        heappush(self._heap, (key, -student.arrival, len(student.held), student))

    def weakest(self) -> tuple[StudentAssignment, ClaimKey] | None:
        """Return, but do not remove, the first student, and its claim after it gave a teacher."""
        while self._heap:
            key, _, _, student = self._heap[0]
            if len(student.held) > 1 and not student.shared_count:
                after = self._claim_after(student)
                if key == (-after[0], -after[1], -after[2]):
                    return student, after
            heappop(self._heap)
        return None

    def _claim_after(self, student: StudentAssignment) -> ClaimKey:
        return claim_key(
            self._table, student, min(self._table.power[name] for name in student.held)
        )


@dataclass(slots=True)
class _JobLevel:
    """Ranks of a job at one level: those raised above it by one teacher, and those left at it."""

    raised: list[StudentAssignment] = field(default_factory=list)
    left: list[StudentAssignment] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.raised) + len(self.left)

    @property
    def arrival(self) -> int:
        return min(student.arrival for student in (*self.raised, *self.left))


def raise_whole_jobs(table: AssignmentTable) -> None:
    """Move teachers between equal claims, to raise all ranks of as many jobs as possible.

    Only for teachers of one power: with several powers, levels are hardly ever equal.
    """
    if len(table.powers) != 1 or len({student.job for student in table.students}) == len(
        table.students
    ):
        return
    for level in _levels(table).values():
        jobs = list(level.values())
        if any(job.raised for job in jobs) and any(job.left for job in jobs):
            _concentrate(table, jobs)


def _levels(table: AssignmentTable) -> dict[ClaimKey, dict[str, _JobLevel]]:
    """Return by claim, and by job, the ranks with this claim and those one teacher above it."""
    power = table.powers[0]
    levels: dict[ClaimKey, dict[str, _JobLevel]] = defaultdict(lambda: defaultdict(_JobLevel))
    for student in table.students:
        if student.need <= 0 or student.shared_count:
            continue
        claim = claim_key(table, student)
        if claim[0] != SERVED:
            levels[claim][student.job].left.append(student)
        if len(student.held) > 1:
            levels[claim_key(table, student, power)][student.job].raised.append(student)
    return levels


def _concentrate(table: AssignmentTable, jobs: list[_JobLevel]) -> None:
    """Raise all ranks of the smallest jobs of a level, if this completes more jobs than now."""
    complete = sum(not job.left for job in jobs)
    jobs.sort(key=lambda job: (job.size, len(job.left), job.arrival))
    spare, targets = sum(len(job.raised) for job in jobs), 0
    while targets < len(jobs) and jobs[targets].size <= spare:
        spare -= jobs[targets].size
        targets += 1
    if targets <= complete:
        return
    givers = [student for job in reversed(jobs[targets:]) for student in reversed(job.raised)]
    for job in jobs[:targets]:
        for student in job.left:
            giver = givers.pop(0)
            teacher = giver.held[-1]
            table.take(giver, teacher)
            table.give(student, teacher)
            giver.note(
                f"teacher {teacher} given to {student.name}, the slowest of its job", teacher
            )
            student.note(f"teacher {teacher} taken over from {giver.name}", teacher)


#: Limit of rounds: two nearly always suffice. With a limit no rounding error can block a service.
ROUNDS = 20
#: Limit of the steps of one round, per student and teacher.
STEPS_PER_MEMBER = 20

#: Why a claim got another student's teacher, by its class.
_REASONS = {
    NOTHING: "which had none",
    A_PART: "which had only a part of one",
    BELOW_MIN: "which had less than its min",
}


def repair_without_loss(table: AssignmentTable) -> None:
    """Apply the rule during recovery: no student loses a teacher."""
    claims = ClaimQueue(table, (student for student in table.students if not student.shared_count))
    while (student := claims.pop()) is not None:
        if table.idle:
            table.give(student, table.idle.fitting(student.need - student.own_power, student.host))
        elif not student.held:
            teacher = sharing.least_loaded(table, student)
            if teacher is not None:
                table.give(student, teacher)
            continue
        else:
            continue
        claims.push(student)


def repair(table: AssignmentTable) -> None:
    """Apply the rule while no recovery is under way."""
    for student in table.students:
        _end_shares(table, student)
    _rebalance(table)
    while any(_release(table, student) for student in table.students):
        _rebalance(table)


def _rebalance(table: AssignmentTable) -> None:
    for student in table.students:
        _give_back(table, student)
    if table.power:
        for _ in range(ROUNDS):
            if not _Repair(table).run():
                break
        raise_whole_jobs(table)
        swap_by_priority(table)


class _Repair:
    """One round of the rule over a table."""

    def __init__(self, table: AssignmentTable) -> None:
        self._table = table
        self._claims = ClaimQueue(table, table.students)
        self._givers: GiverQueue | None = None
        self._trades: Trades | None = None
        self._packed = False  # no light student can free its teacher by sharing another
        self._nobody_gives = False  # a claim was too weak to take a teacher, so weaker ones are too
        self._moved = False  # a student took, traded or shares a teacher of another student
        self._turned_away = False  # a claim could not be helped
        self._stale = False  # assignments changed after a claim could not be helped
        self._steps = STEPS_PER_MEMBER * (len(table.students) + len(table.power))

    def run(self) -> bool:
        """Run the round; return whether another one may improve the table further."""
        table = self._table
        while (student := self._claims.pop()) is not None and self._steps > 0:
            self._steps -= 1
            if table.idle:
                unmet = student.need - student.own_power
                self._take(student, table.idle.fitting(unmet, student.host))
            elif not self._help(student):
                trades = self._trades is not None and self._trades.spare
                if student.held and not (table.shared or trades):
                    break  # weaker claims need the same teachers: none can be helped
                self._turned_away = True
        while table.idle and (relief := sharing.student_to_relieve(table)) is not None:
            self._take(*relief)
        return self._moved or self._stale

    def _help(self, student: StudentAssignment) -> bool:
        """Find a teacher when none is idle: share, free, take or trade one.

        Returns:
            Whether assignments changed; if not, nothing can be done for the student.
        """
        table = self._table
        if len(student.held) == student.shared_count:  # no teacher, or only a part of one
            teacher = sharing.teacher_with_room(table, student)
            if teacher is not None:
                self._join(student, teacher)
                return True
        if not self._packed:
            if sharing.pack(table):
                self._moved, self._trades, self._nobody_gives = True, None, False
                self._claims.push(student)
                return True
            self._packed = True
        if self._transfer(student) or self._trade(student):
            return True
        teacher = None
        if not student.held:
            teacher = sharing.least_loaded(table, student)
        elif student.shared_count:
            teacher = sharing.less_loaded(table, student)
        if teacher is not None:
            self._join(student, teacher)
        return teacher is not None

    def _take(self, student: StudentAssignment, teacher: str) -> None:
        """Assign an idle teacher; the student gives up its part of a shared one for it."""
        table = self._table
        if student.shared_count:
            table.take(student, student.held[0])
        table.give(student, teacher)
        self._record_change(student)

    def _join(self, student: StudentAssignment, teacher: str) -> None:
        """Share a teacher. If only one student held it, that student may now claim more."""
        table = self._table
        holders = table.holders[teacher]
        if student.held:
            table.take(student, student.held[0])
        table.give(student, teacher)
        self._packed, self._moved = False, True
        self._record_change(student)
        if len(holders) == 1:
            self._claims.push(holders[0])

    def _transfer(self, student: StudentAssignment) -> bool:
        if self._nobody_gives:
            return False
        table = self._table
        self._givers = self._givers or GiverQueue(table)
        weakest = self._givers.weakest()
        claim = claim_key(table, student)
        if weakest is None or not beats(claim, weakest[1]):
            self._nobody_gives = True
            return False
        giver, self._moved = weakest[0], True
        teacher = _to_give(table, giver, claim, student)
        table.take(giver, teacher)
        giver.note(f"teacher {teacher} given to {student.name}, {_reason(claim, giver)}", teacher)
        student.note(f"teacher {teacher} taken over from {giver.name}", teacher)
        if student.shared_count:
            table.take(student, student.held[0])
        table.give(student, teacher)
        self._record_change(giver)
        self._record_change(student)
        return True

    def _trade(self, student: StudentAssignment) -> bool:
        if self._trades is None:
            self._trades = Trades(self._table)
        other = self._trades.trade(student)
        if other is None:
            return False
        self._moved = True
        self._record_change(other)
        self._record_change(student)
        return True

    def _record_change(self, student: StudentAssignment) -> None:
        _give_back(self._table, student)  # a large teacher may replace small ones
        self._stale, self._trades = self._stale or self._turned_away, None
        self._nobody_gives = False
        self._claims.push(student)
        if self._givers is not None:
            self._givers.push(student)


def _end_shares(table: AssignmentTable, student: StudentAssignment) -> None:
    """End shares of a student with several teachers; only a recovery leaves such shares."""
    while student.shared_count and len(student.held) > 1:
        shared = [name for name in student.held if len(table.holders[name]) > 1]
        teacher = max(shared, key=lambda name: len(table.holders[name]))
        table.take(student, teacher)
        other = table.holders[teacher][0].name
        student.note(f"teacher {teacher}, shared during the recovery, left to {other}", teacher)


def _give_back(table: AssignmentTable, student: StudentAssignment) -> None:
    """Free teachers that a student holds beyond its need, the latest first."""
    _release(table, student)
    if student.need == 0:
        while student.held:
            _return(table, student, student.held[-1])
        return
    if student.shared_count or not student.held:
        return
    if student.own_power - table.powers[0] < student.need - EPS:
        return
    for teacher in list(reversed(student.held)):
        if table.claim_class(student, student.own_power - table.power[teacher], gives=1) == SERVED:
            _return(table, student, teacher)


def _release(table: AssignmentTable, student: StudentAssignment) -> bool:
    """Release set-aside teachers of a student that has enough without them."""
    if not student.set_aside or not table.is_served(student):
        return False
    silent = student.set_aside
    student.note(f"has enough without {', '.join(silent)}, which gave no labels", *silent)
    table.release(student)
    return True


def _return(table: AssignmentTable, student: StudentAssignment, teacher: str) -> None:
    table.take(student, teacher)
    student.note(f"teacher {teacher} not needed any more", teacher)


def _to_give(
    table: AssignmentTable, giver: StudentAssignment, claim: ClaimKey, student: StudentAssignment
) -> str:
    """Choose the teacher to give: the most powerful that the student uses fully, else the weakest.

    Of equal teachers, one on the student's host is preferred, then the one held for the shortest
    time.
    """
    unmet = student.need - student.own_power

    def fit(index: int) -> tuple[float, bool, int]:
        name = giver.held[index]
        power = table.power[name]
        misfit = unmet - power if power <= unmet else 1e6 + power
        return misfit, table.host(name) != student.host, -index

    allowed = [
        index
        for index, name in enumerate(giver.held)
        if beats(claim, claim_key(table, giver, table.power[name]))
    ]
    return giver.held[min(allowed, key=fit)]


def _reason(claim: ClaimKey, giver: StudentAssignment) -> str:
    if claim[0] in _REASONS:
        return _REASONS[claim[0]]
    return "which has higher priority" if -claim[1] > giver.priority else "which had less"
