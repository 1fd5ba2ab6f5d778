"""The state of one service at its leader: what the registry says goes in, writes come out. No I/O.

A state lives for one term. The term begins with a recovery: for one TTL and one beat sets may only
grow, seeded by the old table and by what readers say that they hold, so that nobody is stripped
while others register again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice

from ...scheduler import assignment as rule
from ...scheduler import leadership
from ...scheduler.admission import Admission, TeacherIdentity
from ...scheduler.backoff import RandomLike
from ..registry import Changes, Epoch, LogEntry, Member, Plan, Row, Table
from . import stored_records as stored
from .rosters import ProbeAnswer, StudentRoster, TeacherRoster
from .views import LeaderView

#: Entries of the log, and admissions, in one write: Redis serves nobody else meanwhile.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """What the registry has of a service when a term begins.

    Attributes:
        time_ms: the registry's clock.
        table: all rows.
        teachers, students: a full reading of each.
        admitted: teacher id -> incarnation that was probed well.
        plan: which content the service is meant to serve.
    """

    time_ms: int
    table: Table
    teachers: Changes
    students: Changes
    admitted: Mapping[str, int]
    plan: Plan


@dataclass(frozen=True, slots=True)
class ServiceEvents:
    """What has happened since the last step; None: that was not looked at.

    Attributes:
        teachers, students: what has changed.
        names: the ids of all teachers, and of all students.
        plan: as it stands.
        answers: to probes.
    """

    teachers: Changes | None = None
    students: Changes | None = None
    names: tuple[Set[str], Set[str]] | None = None
    plan: Plan | None = None
    answers: Sequence[ProbeAnswer] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """One compare-and-set: see `Registry.write`."""

    expected: Epoch
    epoch: Epoch
    rows: Mapping[str, Row | None] = field(default_factory=dict)
    entries: Sequence[LogEntry] = ()
    admitted: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instructions:
    """What is to be done now, beside `ServiceState.next_write`.

    Attributes:
        probes: teachers to probe.
        plan: what the plan becomes, and what the log says of it; None: it stays.
        solved: the assignments were computed.
        refused: how many teachers were refused.
    """

    probes: Sequence[tuple[TeacherIdentity, Member]] = ()
    plan: tuple[Plan, LogEntry] | None = None
    solved: bool = False
    refused: int = 0


class ServiceState:
    """All that a leader knows of its service.

    Args:
        found: in the registry.
        former: of the term before, if the same manager led and nobody has led since: it may know
            more than a registry that was emptied or has failed over.
        now: monotonic seconds, as everywhere below.
        grace_s: how long the recovery lasts.
        lost_s: for how long those who died are named.
        rng: spreads probes; None: nobody is probed, every teacher is admitted.
        leader: address of the manager, for the log.

    Attributes:
        term: its number, the first part of the epochs that it writes.
        epoch: what the table stands at after the last write.
        plan: the content that the service is meant to serve, whether the registry knows or not.
    """

    def __init__(
        self,
        found: ServiceSnapshot,
        former: ServiceState | None,
        now: float,
        *,
        grace_s: float,
        lost_s: float,
        rng: RandomLike | None,
        leader: str = "",
    ) -> None:
        self.epoch = found.table.epoch
        self.term = _next_term(found, former)
        known_plan = Plan() if former is None else former.plan
        self.plan: Plan = known_plan if stored.is_lost(found.plan, known_plan) else found.plan
        self._standing_plan = found.plan
        rows = dict(found.table.rows)
        if former is not None and former._is_newer_than(self.epoch):
            rows |= former._rows.rows  # the registry has forgotten what we have not
        self._rows: stored.AssignmentRows = stored.AssignmentRows(rows, lost_s)
        self._grace_s = grace_s
        self._recovering_until_s: float | None = now + grace_s
        self._begun_s = now
        self._pending = stored.PendingChanges(
            events=[stored.planned(self.plan), rule.RecoveryBegan()]
        )
        self.teachers: TeacherRoster = TeacherRoster(
            self._pending,
            grace_s,
            None if rng is None else Admission(rng, found.admitted),
            found.admitted if former is None else {**former.teachers.lives, **found.admitted},
            {} if former is None else former.teachers.gone,
        )
        self.students: StudentRoster = StudentRoster(
            self._pending, grace_s, self.teachers, found.time_ms
        )
        self._assignment = rule.AssignmentState()
        self._due_s: float | None = None
        self._log_beginning(leader)
        self._take_over(found, rows, now)
        self._unwritten: dict[str, Row | None] = self._rows.all(self._counter)
        self._entries: list[LogEntry] = []
        self._admitted: dict[str, int | None] = {}

    def _log_beginning(self, leader: str) -> None:
        name = leader or "a manager"
        self._pending.log("leader", leader, f"{name} leads from now on, term {self.term}")
        text = f"sets only grow for {self._grace_s:.1f} s, so that everyone can come back"
        self._pending.log("recovery", leader, text)

    def _take_over(self, found: ServiceSnapshot, rows: Mapping[str, Row], now: float) -> None:
        self.teachers.hear(found.teachers, now)
        self.teachers.hear_left(found.teachers.left, now)
        self.students.hear(found.students, rows, now)
        left = set(found.students.left)
        for name, row in rows.items():
            if name in left:
                self._pending.lives[name] = None
            elif name not in self.students.cache.members:
                self.students.believe_row(name, row, now)

    # -- the step

    def apply(self, events: ServiceEvents, now: float) -> Instructions:
        """Take in what has happened, and decide what follows."""
        if events.plan is not None:
            self._hear_plan(events.plan)
        if events.teachers is not None:
            self.teachers.hear(events.teachers, now)
        if events.students is not None:
            self.students.hear(events.students, self._rows.rows, now)
        recovered = self.recovery_is_over(now)
        if events.names is not None:
            self._compare(*events.names, now)
        refused = self.teachers.answered(events.answers, now)
        solved = self._decide(now)
        looked = events.plan is not None or (recovered and not self.recovering)
        return Instructions(self.teachers.to_probe(now), self._next_plan(looked), solved, refused)

    def _hear_plan(self, plan: Plan) -> None:
        self._standing_plan = plan
        if plan == self.plan or stored.is_lost(plan, self.plan):
            return
        if (entry := stored.announced(self.plan, plan)) is not None:
            self._pending.entries.append(entry)
        self.plan = plan
        self._pending.events.append(stored.planned(plan))

    def _compare(self, teachers: Set[str], students: Set[str], now: float) -> None:
        """Who is missing for too long is gone."""
        self.teachers.cache.compare(teachers, now)
        self.students.cache.compare(students, now)
        self.teachers.give_up(now)
        self.students.give_up(now)
        if self.recovery_is_over(now):
            self.teachers.give_up(now, recovered=True)
            self._recovering_until_s, self.students.recovering = None, False
            self._pending.events.append(rule.RecoveryEnded())
            self._pending.log("recovery", "", "recovery is over: sets may shrink again")

    def _decide(self, now: float) -> bool:
        """Let the rule work on what has come in; returns whether there was anything."""
        self.students.pass_time(now)
        pending = self._pending.take()
        if self._due_s is not None and now >= self._due_s:
            pending.events.append(rule.Ticked())
        self._entries += pending.entries
        self._admitted |= pending.admitted
        if pending.events:
            state, changes = rule.reduce(self._assignment, pending.events, now)
            if state is not self._assignment:
                self._assignment, self._due_s = state, rule.next_due(state)
            rows, entries = self._rows.change(changes, self.teachers.up, self._counter, now)
            self._unwritten |= rows
            self._entries += entries
        self._unwritten |= self._rows.follow_lives(pending.lives, self._counter)
        return bool(pending.events)

    def _next_plan(self, looked: bool) -> tuple[Plan, LogEntry] | None:
        if not looked:
            return None
        return stored.next_plan(self._standing_plan, self.plan, self._assignment, self.recovering)

    def planned(self, plan: Plan) -> None:
        """That change of the plan stands in the registry."""
        self.plan = self._standing_plan = replace(plan, version=plan.version + 1)
        self._pending.events.append(stored.planned(self.plan))

    # -- writes

    @property
    def begun(self) -> bool:
        """Whether the table stands at this term."""
        return self.epoch[0] == self.term

    @property
    def _counter(self) -> int:
        """Of the next write that carries rows."""
        return self.epoch[1] + 1 if self.begun else 1

    def next_write(self) -> Write | None:
        """What is to be written now; None: nothing. Stays the same until `wrote`."""
        if self.begun and not (self._unwritten or self._entries or self._admitted):
            return None
        moves = bool(self._unwritten) or not self.begun
        return Write(
            self.epoch,
            (self.term, self._counter) if moves else self.epoch,
            dict(self._unwritten),
            tuple(self._entries[:_AT_ONCE]),
            dict(islice(self._admitted.items(), _AT_ONCE)),
        )

    def wrote(self, write: Write, now: float) -> None:
        """It stands in the registry."""
        if not self.begun:
            self._begun_s = now
        self.epoch = write.epoch
        self._unwritten = {}
        del self._entries[: len(write.entries)]
        for teacher in write.admitted:
            del self._admitted[teacher]

    # -- how it stands

    @property
    def recovering(self) -> bool:
        """Whether not everybody may be back that is there: nothing is taken away."""
        return self._recovering_until_s is not None

    def recovery_is_over(self, now: float) -> bool:
        """Whether the time of recovery has passed, so that all ids are to be compared."""
        return self._recovering_until_s is not None and now >= self._recovering_until_s

    def is_void(self, epoch: Epoch, time_ms: int, asked_s: float) -> bool:
        """Whether the table is not as we left it: emptied, rolled back, or written by another.

        Args:
            epoch: of the table.
            time_ms: the registry's clock.
            asked_s: when we asked for both.
        """
        if not self.begun:
            return False
        if asked_s > self._begun_s and epoch[0] != self.term:
            return True
        # Not more often than this: a reader that lies must not keep us from work.
        settled = asked_s - self._begun_s > self._grace_s
        return settled and leadership.is_ahead(self.students.ahead, self.epoch, time_ms)

    def _is_newer_than(self, epoch: Epoch) -> bool:
        """Whether a table at `epoch` may lack rows of ours.

        A term that never wrote knows no more than the table that it found.
        """
        return epoch <= self.epoch if self.begun else epoch < self.epoch

    def view(self) -> LeaderView:
        """How it stands."""
        taken: set[str] = set()
        for row in self._rows.rows.values():
            taken.update(row.teachers)
        up, admission = self.teachers.up, self.teachers.admission
        teachers = {"serving": len(up) - self.teachers.draining, "draining": self.teachers.draining}
        if admission is not None:
            teachers["waiting"], teachers["refused"] = admission.waiting, len(admission.refused)
        return LeaderView(
            self.term,
            self.epoch[1],
            self.recovering,
            teachers,
            len(self.students.cache.members),
            len(up) - len(taken & up.keys()),
        )


def _next_term(found: ServiceSnapshot, former: ServiceState | None) -> int:
    ahead = 0 if former is None else former.students.ahead[0]
    followed = _followed(found.students.members)
    return leadership.next_term(found.time_ms, found.table.epoch[0], ahead, *followed)


def _followed(students: Sequence[Member]) -> Iterator[int]:
    """Terms that readers say they follow."""
    terms = (member.facts.get("term", "") for member in students)
    return (int(term) for term in terms if term.isdecimal() and len(term) <= 20)
