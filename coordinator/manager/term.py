"""One term of one service's leader: readings and verdicts in, writes out. No I/O.

A term begins with a recovery: for one TTL and one beat sets may only grow, seeded by the old table
and by what readers say that they hold, so that nobody is stripped while others register again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ...scheduler import assignment as rule
from ...scheduler.admission import Admission, ProbeOutcome
from ..registry import Changes, Epoch, LogEntry, Plan, Row
from . import contents
from .assignment_rows import AssignmentRows, PendingChanges
from .student_roster import StudentRoster
from .teacher_roster import TeacherRoster
from .views import LeaderView

#: Entries of the log, and admissions, in one write: Redis serves nobody else meanwhile.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class TermStart:
    """What a leader finds in the registry when its term begins.

    Attributes:
        term: its number.
        time_ms: the registry's clock.
        stands: what the table stands at.
        teachers, students: a full reading of each.
        rows: of the table, and of a former term of the same leader if that was newer.
        known: teacher id -> incarnation that earlier leaders knew.
        gone: teacher id -> when it went, in a former term of the same leader.
        plan: which content the service is meant to serve.
        known_plan: the same in a former term of the same leader; empty: there was none.
    """

    term: int
    time_ms: int
    stands: Epoch
    teachers: Changes
    students: Changes
    rows: Mapping[str, Row]
    known: Mapping[str, int]
    gone: Mapping[str, float]
    plan: Plan
    known_plan: Plan


@dataclass(frozen=True, slots=True)
class Write:
    """One compare-and-set: see `Registry.write`."""

    expected: Epoch
    epoch: Epoch
    rows: Mapping[str, Row | None] = field(default_factory=dict)
    entries: Sequence[LogEntry] = ()
    admitted: Mapping[str, int | None] = field(default_factory=dict)


class ServiceTerm:
    """All that a leader knows.

    Args:
        begin: what it finds.
        grace_s: how long its recovery lasts.
        lost_s: for how long those who died are named.
        admission: who is admitted; None: every teacher is.
        leader: address of the manager, for the log.
        now: monotonic seconds, as everywhere below.

    Attributes:
        epoch: what the table stands at after the last write.
        plan: the content that the service is meant to serve, whether the registry knows or not.
    """

    def __init__(
        self,
        begin: TermStart,
        grace_s: float,
        lost_s: float,
        admission: Admission | None,
        leader: str,
        now: float,
    ) -> None:
        self.epoch = begin.stands
        lost = contents.is_lost(begin.plan, begin.known_plan)
        self.plan = begin.known_plan if lost else begin.plan
        self._standing_plan = begin.plan
        self.rows = AssignmentRows(begin.rows, lost_s)
        self._number = begin.term
        self._recovering_until_s: float | None = now + grace_s
        self._batch = PendingChanges(events=[contents.planned(self.plan), rule.RecoveryBegan()])
        self.teachers = TeacherRoster(self._batch, grace_s, admission, begin.known, begin.gone)
        self.students = StudentRoster(self._batch, grace_s, self.teachers, begin.time_ms)
        self._state = rule.AssignmentState()
        self._due_s: float | None = None
        self._solve_s = 0.0
        self._log_beginning(leader, grace_s)
        self._take_over(begin, now)
        self._rows: dict[str, Row | None] = self.rows.all(self._counter)
        self._entries: list[LogEntry] = []
        self._admitted: dict[str, int | None] = {}

    def _log_beginning(self, leader: str, grace_s: float) -> None:
        text = f"{leader or 'a manager'} leads from now on, term {self._number}"
        self._batch.log("leader", leader, text)
        self._batch.log(
            "recovery",
            leader,
            f"sets only grow for {grace_s:.1f} s, so that everyone can come back",
        )

    def _take_over(self, begin: TermStart, now: float) -> None:
        self.hear_teachers(begin.teachers, now)
        self.teachers.hear_left(begin.teachers.left, now)
        self.hear_students(begin.students, now)
        left = set(begin.students.left)
        for name, row in begin.rows.items():
            if name in left:
                self._batch.lives[name] = None
            elif name not in self.students.mirror.members:
                self.students.believe_row(name, row, now)

    # -- what comes in

    @property
    def number(self) -> int:
        """Its own: the first part of the epochs that it writes."""
        return self._number

    @property
    def begun(self) -> bool:
        """Whether the table stands at this term."""
        return self.epoch[0] == self._number

    def hear_teachers(self, changes: Changes, now: float) -> None:
        """A reading of teachers."""
        self.teachers.hear(self.teachers.mirror.apply(changes, now), now)

    def hear_students(self, changes: Changes, now: float) -> None:
        """A reading of students."""
        news = self.students.mirror.apply(changes, now)
        self.students.hear(news, self.rows.rows, now)

    def hear_plan(self, plan: Plan) -> None:
        """The plan as it stands."""
        self._standing_plan = plan
        if plan == self.plan or contents.is_lost(plan, self.plan):
            return
        if (entry := contents.announced(self.plan, plan)) is not None:
            self._batch.entries.append(entry)
        self.plan = plan
        self._batch.events.append(contents.planned(plan))

    def settle(self, outcome: ProbeOutcome, now: float) -> None:
        """A probe has ended."""
        self.teachers.settle(outcome, now)

    def compare(self, teachers: set[str], students: set[str], now: float) -> None:
        """All ids that the registry has: who is missing for too long is gone."""
        self.teachers.mirror.compare(teachers, now)
        self.students.mirror.compare(students, now)
        self.teachers.give_up(now)
        self.students.give_up(now)
        if self.recovery_is_over(now):
            self.teachers.give_up(now, recovered=True)
            self._recovering_until_s, self.students.recovering = None, False
            self._batch.events.append(rule.RecoveryEnded())
            self._batch.log("recovery", "", "recovery is over: sets may shrink again")

    @property
    def recovering(self) -> bool:
        """Whether not everybody may be back that is there: nothing is taken away."""
        return self._recovering_until_s is not None

    def recovery_is_over(self, now: float) -> bool:
        """Whether the time of recovery has passed and nobody has said so yet."""
        return self._recovering_until_s is not None and now >= self._recovering_until_s

    # -- what comes out

    def decide(self, now: float) -> None:
        """Let the rule work on what has come in."""
        self.students.pass_time(now)
        batch = self._batch.take()
        if self._due_s is not None and now >= self._due_s:
            batch.events.append(rule.Ticked())
        self._entries += batch.entries
        self._admitted |= batch.admitted
        if batch.events:
            self._solve(batch.events, now)
        self._rows |= self.rows.follow_lives(batch.lives, self._counter)

    def _solve(self, events: Sequence[rule.AssignmentEvent], now: float) -> None:
        began_s = time.perf_counter()
        state, changes = rule.reduce(self._state, events, now)
        self._solve_s = time.perf_counter() - began_s
        if state is not self._state:
            self._state, self._due_s = state, rule.next_due(state)
        written, entries = self.rows.change(changes, self.teachers.up, self._counter, now)
        self._rows |= written
        self._entries += entries

    @property
    def _counter(self) -> int:
        """Of the next write that carries rows."""
        return self.epoch[1] + 1 if self.begun else 1

    def next_write(self) -> Write | None:
        """What is to be written now; None: nothing. Stays the same until `wrote`."""
        if self.begun and not (self._rows or self._entries or self._admitted):
            return None
        moves = bool(self._rows) or not self.begun
        return Write(
            self.epoch,
            (self._number, self._counter) if moves else self.epoch,
            dict(self._rows),
            tuple(self._entries[:_AT_ONCE]),
            dict(islice(self._admitted.items(), _AT_ONCE)),
        )

    def wrote(self, write: Write) -> None:
        """It stands in the registry."""
        self.epoch = write.epoch
        self._rows = {}
        del self._entries[: len(write.entries)]
        for teacher in write.admitted:
            del self._admitted[teacher]

    def next_plan(self) -> tuple[Plan, LogEntry] | None:
        """What the plan of the service becomes, and what the log says of it; None: it stays."""
        recovering = self._recovering_until_s is not None
        return contents.next_plan(self._standing_plan, self.plan, self._state, recovering)

    def planned(self, plan: Plan) -> None:
        """That change of the plan stands in the registry."""
        self.plan = self._standing_plan = replace(plan, version=plan.version + 1)
        self._batch.events.append(contents.planned(self.plan))

    def view(self) -> LeaderView:
        """How it stands."""
        taken: set[str] = set()
        for row in self.rows.rows.values():
            taken.update(row.teachers)
        up, admission = self.teachers.up, self.teachers.admission
        teachers = {"serving": len(up) - self.teachers.draining, "draining": self.teachers.draining}
        if admission is not None:
            teachers["waiting"], teachers["refused"] = admission.waiting, len(admission.refused)
        return LeaderView(
            self._number,
            self.epoch[1],
            self._recovering_until_s is not None,
            teachers,
            len(self.students.mirror.members),
            len(up) - len(taken & up.keys()),
            solve_s=self._solve_s,
        )
