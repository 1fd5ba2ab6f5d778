"""The state of one service at its leader: takes facts of the registry, returns writes. No I/O.

A state exists for one term. A term starts with a recovery, which lasts one TTL plus one heartbeat
interval. During the recovery, students keep teachers that are missing in Redis, as these may
register again. The students' sets of teachers start from the old table and from the reports of
readers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice

from ...scheduler import assignment as rule
from ...scheduler import leadership
from ...scheduler.admission import Admission, TeacherIdentity
from ...scheduler.autoscale import Desired
from ...scheduler.backoff import RandomLike
from ..registry import LogEntry, Row, StoredContentPlan, Table, TableVersion
from ..store.records import Changes, Member, number
from . import content_plan
from .rosters import PendingChanges, ProbeAnswer, StudentRoster, TeacherRoster

#: Maximum number of log entries, and of admissions, in one write: during a write, Redis serves no
#: other client.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """Data of a service in the registry when a term starts.

    Attributes:
        time_ms: time of the registry's clock.
        table: all rows.
        teachers, students: all members.
        admitted: incarnations that passed a probe, by teacher id.
        plan: the content that the service should serve.
    """

    time_ms: int
    table: Table
    teachers: Changes
    students: Changes
    admitted: Mapping[str, int]
    plan: StoredContentPlan


@dataclass(frozen=True, slots=True)
class ServiceEvents:
    """Events since the last step. A field that is None was not read.

    Attributes:
        teachers, students: changed members.
        names: ids of all teachers, and of all students.
        plan: current plan.
        answers: results of probes.
    """

    teachers: Changes | None = None
    students: Changes | None = None
    names: tuple[Set[str], Set[str]] | None = None
    plan: StoredContentPlan | None = None
    answers: Sequence[ProbeAnswer] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """One compare-and-set: arguments of `Registry.write`."""

    expected: TableVersion
    version: TableVersion
    rows: Mapping[str, Row | None]
    entries: Sequence[LogEntry]
    admitted: Mapping[str, int | str | None]


@dataclass(frozen=True, slots=True)
class Instructions:
    """What to do now, in addition to `ServiceState.next_write`.

    Attributes:
        probes: teachers to probe.
        plan: the new plan, and its log entry; None: unchanged.
        solved: assignments were computed.
        refused: number of refused teachers.
    """

    probes: Sequence[tuple[TeacherIdentity, Member]] = ()
    plan: tuple[StoredContentPlan, LogEntry] | None = None
    solved: bool = False
    refused: int = 0


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A service as the manager that leads it sees it.

    Attributes:
        term: first part of the version of its table.
        counter: second part.
        recovering: whether a recovery runs, in which students keep teachers missing in Redis.
        teachers: "serving", "draining", "waiting" (for a probe) or "refused" -> how many.
        students: how many have a lease.
        idle: number of live teachers that no student has.
        reconcile_s: seconds that the last call of `Leader.reconcile` took.
        solve_s: seconds that the last computation of assignments took.
        rows: rows of the table written since the `Leader` was created.
        recoveries: recoveries begun since then, one for each term.
        refusals: probes that ended in a refusal since then.
        desired: how many teachers the service should have; None: not decided yet.
    """

    term: int = 0
    counter: int = 0
    recovering: bool = False
    teachers: Mapping[str, int] = field(default_factory=dict)
    students: int = 0
    idle: int = 0
    reconcile_s: float = 0.0
    solve_s: float = 0.0
    rows: int = 0
    recoveries: int = 0
    refusals: int = 0
    desired: Desired | None = None


class AssignmentRows:
    """Rows of the assignment table of one service.

    Args:
        rows: rows of the table, by student id.
        lost_s: seconds for which a row lists a lost teacher that its student had.
        counter: counter of the first write of a term, which has all rows.

    Attributes:
        rows: rows by student id, with all changes, written or not.
        unwritten: rows to write; None deletes one.
    """

    def __init__(self, rows: Mapping[str, Row], lost_s: float, counter: int) -> None:
        self.rows = {name: replace(row, counter=counter) for name, row in rows.items()}
        self.unwritten: dict[str, Row | None] = dict(self.rows)
        self._lost_s = lost_s
        self._lost: dict[str, dict[str, float]] = {}  # student -> lost teacher -> listed until

    def change(
        self,
        changes: Iterable[rule.AssignmentChange],
        alive: Container[str],
        counter: int,
        now: float,
    ) -> list[LogEntry]:
        """Apply changes of the rule; return log entries for changed sets of teachers.

        Args:
            changes: the changes.
            alive: live teachers; a teacher that registered again is not lost.
            counter: counter of the next write.
            now: monotonic seconds.
        """
        entries = []
        for change in changes:
            name = change.student_id
            former = self.rows.get(name, Row())
            self.rows[name] = self.unwritten[name] = Row(
                teachers=change.teachers,
                lost=self._lost_of(change, alive, now),
                content_id=change.content_id,
                next_content_id=change.next_content_id,
                data_epoch=change.data_epoch,
                counter=counter,
                reason=change.reason,
                incarnation=former.incarnation,
            )
            if set(former.teachers) != set(change.teachers):
                entries.append(
                    LogEntry("assigned", name, change.reason, former.teachers, change.teachers)
                )
        return entries

    def set_incarnations(self, incarnations: Mapping[str, int | None], counter: int) -> None:
        """Set the new incarnations of students in their rows; None deletes the row."""
        for name, incarnation in incarnations.items():
            if incarnation is None:
                self._lost.pop(name, None)
                if self.rows.pop(name, None) is not None:
                    self.unwritten[name] = None
            elif name in self.rows:
                row = replace(self.rows[name], incarnation=incarnation, counter=counter)
                self.rows[name] = self.unwritten[name] = row

    def _lost_of(
        self, change: rule.AssignmentChange, alive: Container[str], now: float
    ) -> tuple[str, ...]:
        lost = self._lost.setdefault(change.student_id, {})
        lost.update((teacher, now + self._lost_s) for teacher in change.lost)
        for teacher in [t for t, until in lost.items() if until <= now or t in alive]:
            del lost[teacher]
        if not lost:
            del self._lost[change.student_id]
        return tuple(sorted(lost))


class ServiceState:
    """A leader's knowledge of its service in one term.

    Args:
        snapshot: data in the registry.
        former: state of this manager's former term, if no other manager has led since: it may know
            more than a registry that was emptied or has failed over.
        now: monotonic seconds, as everywhere below.
        grace_s: duration of the recovery.
        lost_s: seconds for which dead teachers are listed.
        rng: jitters probes; None: teachers are admitted without a probe.
        leader: address of the manager, for the log.

    Attributes:
        term: number of the term, the first part of the versions that it writes.
        table_version: version of the table after the latest write.
        plan: the content that the service should serve, also if the registry has lost it.
    """

    def __init__(
        self,
        snapshot: ServiceSnapshot,
        former: ServiceState | None,
        now: float,
        *,
        grace_s: float,
        lost_s: float,
        rng: RandomLike | None,
        leader: str = "",
    ) -> None:
        self.table_version = snapshot.table.version
        self.term = _next_term(snapshot, former)
        known_plan = StoredContentPlan() if former is None else former.plan
        self.plan: StoredContentPlan = (
            known_plan if content_plan.is_lost(snapshot.plan, known_plan) else snapshot.plan
        )
        self._stored_plan = snapshot.plan
        rows = dict(snapshot.table.rows)
        if former is not None and former._is_newer_than(self.table_version):
            rows |= former._rows.rows  # rows that the registry has lost
        self._rows: AssignmentRows = AssignmentRows(rows, lost_s, self._counter)
        self._grace_s = grace_s
        self._recovering_until_s: float | None = now + grace_s
        self._begun_s = now
        self._pending = PendingChanges([content_plan.plan_event(self.plan), rule.RecoveryBegan()])
        self.teachers: TeacherRoster = TeacherRoster(
            self._pending,
            grace_s,
            None if rng is None else Admission(rng, snapshot.admitted),
            snapshot.admitted
            if former is None
            else {**former.teachers.incarnations, **snapshot.admitted},
            {} if former is None else former.teachers.gone_s,
        )
        self.students: StudentRoster = StudentRoster(
            self._pending, grace_s, self.teachers, snapshot.time_ms
        )
        self._assignment = rule.AssignmentState()
        self._due_s: float | None = None
        self._log_beginning(leader)
        self._apply_snapshot(snapshot, rows, now)

    def _log_beginning(self, leader: str) -> None:
        name = leader or "a manager"
        self._pending.log("leader", leader, f"{name} leads from now on, term {self.term}")
        text = (
            f"for {self._grace_s:.1f} s students keep teachers that are missing in Redis, as they"
            " may register again"
        )
        self._pending.log("recovery", leader, text)

    def _apply_snapshot(
        self, snapshot: ServiceSnapshot, rows: Mapping[str, Row], now: float
    ) -> None:
        self.teachers.apply(snapshot.teachers, now)
        self.teachers.remove_left(snapshot.teachers.left, now)
        self.students.apply(snapshot.students, rows, now)
        left = set(snapshot.students.left)
        for name, row in rows.items():
            if name in left:
                self._pending.student_incarnations[name] = None
            elif name not in self.students.cache.members:
                self.students.presume_row(name, row, now)

    # -- the step

    def apply(self, events: ServiceEvents, now: float) -> Instructions:
        """Apply events, and decide what to do."""
        if events.plan is not None:
            self._apply_plan(events.plan)
        if events.teachers is not None:
            self.teachers.apply(events.teachers, now)
        if events.students is not None:
            self.students.apply(events.students, self._rows.rows, now)
        may_end = self.recovery_may_end(now)
        if events.names is not None:
            self._compare(*events.names, now)
        refused = self.teachers.answered(events.answers, now)
        solved = self._decide(now)
        plan = None
        if events.plan is not None or (may_end and not self.recovering):
            plan = content_plan.next_plan(
                self._stored_plan, self.plan, self._assignment, self.recovering
            )
        return Instructions(self.teachers.to_probe(now), plan, solved, refused)

    def _apply_plan(self, plan: StoredContentPlan) -> None:
        self._stored_plan = plan
        if plan == self.plan or content_plan.is_lost(plan, self.plan):
            return
        if (entry := content_plan.change_entry(self.plan, plan)) is not None:
            self._pending.entries.append(entry)
        self.plan = plan
        self._pending.events.append(content_plan.plan_event(plan))

    def _compare(self, teachers: Set[str], students: Set[str], now: float) -> None:
        """Remove members that were missing for too long; end the recovery when its time is over.

        Args:
            teachers: ids of all teachers in the registry.
            students: ids of all students in the registry.
            now: monotonic seconds.
        """
        self.teachers.cache.compare(teachers, now)
        self.students.cache.compare(students, now)
        self.teachers.remove_missing(now)
        self.students.remove_missing(now)
        if self.recovery_may_end(now):
            self.teachers.remove_missing(now, recovered=True)
            self._recovering_until_s, self.students.recovering = None, False
            self._pending.events.append(rule.RecoveryEnded())
            self._pending.log("recovery", "", "recovery is over: students may lose teachers again")

    def _decide(self, now: float) -> bool:
        """Apply pending changes to the assignment; return whether there were any."""
        self.students.log_starvation(now)
        pending = self._pending
        if self._due_s is not None and now >= self._due_s:
            pending.events.append(rule.Ticked())
        events, pending.events = pending.events, []
        if events:
            state, changes = rule.reduce(self._assignment, events, now)
            if state is not self._assignment:
                self._assignment, self._due_s = state, rule.next_due(state)
            pending.entries += self._rows.change(changes, self.teachers.up, self._counter, now)
        incarnations, pending.student_incarnations = pending.student_incarnations, {}
        self._rows.set_incarnations(incarnations, self._counter)
        return bool(events)

    def wrote_plan(self, plan: StoredContentPlan) -> None:
        """Record that this change of the plan was written."""
        self.plan = self._stored_plan = replace(plan, version=plan.version + 1)
        self._pending.events.append(content_plan.plan_event(self.plan))

    # -- writes

    @property
    def begun(self) -> bool:
        """Whether this term has written the table."""
        return self.table_version[0] == self.term

    @property
    def _counter(self) -> int:
        """Counter of the next write with rows."""
        return self.table_version[1] + 1 if self.begun else 1

    def next_write(self) -> Write | None:
        """Return what to write now; None: nothing.

        Until `wrote` is called, the same changes are returned again, with those of later events.
        """
        rows, pending = self._rows.unwritten, self._pending
        if self.begun and not (rows or pending.entries or pending.admitted):
            return None
        advances = bool(rows) or not self.begun
        return Write(
            expected=self.table_version,
            version=(self.term, self._counter) if advances else self.table_version,
            rows=dict(rows),
            entries=tuple(pending.entries[:_AT_ONCE]),
            admitted=dict(islice(pending.admitted.items(), _AT_ONCE)),
        )

    def wrote(self, write: Write, now: float) -> None:
        """Record that `write` was written; call it before the next `apply`."""
        if not self.begun:
            self._begun_s = now
        self.table_version = write.version
        self._rows.unwritten = {}
        del self._pending.entries[: len(write.entries)]
        for teacher in write.admitted:
            del self._pending.admitted[teacher]

    # -- read access

    @property
    def recovering(self) -> bool:
        """Whether students keep teachers that are missing in Redis, as they may register again."""
        return self._recovering_until_s is not None

    def recovery_may_end(self, now: float) -> bool:
        """Whether the recovery has lasted long enough to end, once all ids were compared."""
        return self._recovering_until_s is not None and now >= self._recovering_until_s

    def is_void(self, version: TableVersion, time_ms: int, asked_s: float) -> bool:
        """Whether the table was emptied, rolled back, or written by another manager.

        Args:
            version: version of the table.
            time_ms: time of the registry's clock.
            asked_s: monotonic seconds before both were read.
        """
        if not self.begun:
            return False
        if asked_s > self._begun_s and version[0] != self.term:
            return True
        # A reader may report a wrong version, so reports end a term at most once per grace period.
        settled = asked_s - self._begun_s > self._grace_s
        return settled and leadership.is_ahead(self.students.ahead, self.table_version, time_ms)

    def _is_newer_than(self, version: TableVersion) -> bool:
        """Whether a table at `version` may lack rows that this state has.

        A term that never wrote has only the rows that it read.
        """
        own = self.table_version
        return version <= own if self.begun else version < own

    def view(self, totals: LeaderView) -> LeaderView:
        """Return `totals`, the counters of the leader, with the figures of this state added."""
        assigned: set[str] = set()
        for row in self._rows.rows.values():
            assigned.update(row.teachers)
        up, admission = self.teachers.up, self.teachers.admission
        teachers = {"serving": len(up) - self.teachers.draining, "draining": self.teachers.draining}
        if admission is not None:
            teachers["waiting"], teachers["refused"] = admission.waiting, len(admission.refused)
        return replace(
            totals,
            term=self.term,
            counter=self.table_version[1],
            recovering=self.recovering,
            teachers=teachers,
            students=len(self.students.cache.members),
            idle=len(up) - len(assigned & up.keys()),
        )


def _next_term(snapshot: ServiceSnapshot, former: ServiceState | None) -> int:
    stored = snapshot.table.version[0]
    reported = [number(member.facts.get("term", "")) for member in snapshot.students.members]
    if former is not None:
        stored = max(stored, former.table_version[0])  # the registry may have lost the table
        reported.append(former.students.ahead[0])
    return leadership.next_term(snapshot.time_ms, stored, *reported)
