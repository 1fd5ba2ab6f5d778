"""Teachers and students of a service as its leader knows them: changes in, events out. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ...scheduler import assignment as rule
from ...scheduler import leadership
from ...scheduler.admission import Admission, ProbeOutcome, TeacherIdentity
from ...scheduler.debounce import StarvationLog
from ..registry import LogEntry, Row, TableVersion
from ..registry.schema import GIVEN_UP
from ..store.records import DRAIN, Changes, Member
from .messages import identity_from, parse_number, report_from
from .watch_cache import WatchCache

#: Reason for the loss of a teacher that sends no more heartbeats.
_SILENT: Final = "its lease ran out, no heartbeat came in time"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Result of a probe; see `Admission.answered`."""

    identity: TeacherIdentity
    verdict: Literal["ok", "retry", "never"]
    why: str = ""


@dataclass(slots=True)
class PendingChanges:
    """Changes that are not applied or written yet.

    Attributes:
        events: events for the assignment rule.
        entries: entries for the log.
        admitted: teacher id -> admitted incarnation, or reason for refusal, to store; None: delete
            the entry.
        student_incarnations: student id -> its new incarnation; None: it is gone.
    """

    events: list[rule.AssignmentEvent] = field(default_factory=list)
    entries: list[LogEntry] = field(default_factory=list)
    admitted: dict[str, int | str | None] = field(default_factory=dict)
    student_incarnations: dict[str, int | None] = field(default_factory=dict)

    def log(self, kind: str, subject: str, text: str) -> None:
        """Add an entry for the log."""
        self.entries.append(LogEntry(kind, subject, text))


class TeacherRoster:
    """Teachers of one service in one term.

    A teacher is `up` if students may use it: it is admitted, or is *presumed* live, because readers
    used it when the term began. A presumed teacher stays up unless its probe fails, or it does not
    register in time.

    Args:
        pending: collects events and log entries.
        grace_s: seconds within which a member that the registry has lost may register again.
        admission: decides which teachers are admitted; None: all are.
        remembered: teacher id -> incarnation that earlier leaders knew; 0: any.
        gone_s: value of the attribute `gone_s` at the end of this leader's former term.

    Attributes:
        up: teachers that students may use, by id; draining ones included.
        incarnations: teacher id -> incarnation of registered teachers.
        gone_s: teacher id -> when it left or died; readers may still use such teachers.
    """

    def __init__(
        self,
        pending: PendingChanges,
        grace_s: float,
        admission: Admission | None,
        remembered: Mapping[str, int],
        gone_s: Mapping[str, float],
    ) -> None:
        self.cache = WatchCache(grace_s)
        self.admission = admission
        self._pending = pending
        self._remembered = dict(remembered)
        self.up: dict[str, rule.TeacherUp] = {}
        self._presumed: dict[str, int] = {}  # teacher id -> incarnation; 0: any
        self._draining: set[str] = set()
        self.incarnations: dict[str, int] = {}
        self._given_up: dict[str, str] = {}  # teacher id -> reason
        self._grace_s = grace_s
        self.gone_s = dict(gone_s)

    @property
    def draining(self) -> int:
        """Number of teachers that drain."""
        return len(self._draining & self.up.keys())

    def apply(self, changes: Changes, now: float) -> None:
        """Apply changes of teachers."""
        left, lost = self.cache.apply(changes, now)
        for member in changes.members:
            self._update(member, now)
        for name in left:
            self._remove(name, now, lost=False)
        for name in lost:
            self._remove(name, now, lost=True)

    def remove_left(self, names: Iterable[str], now: float) -> None:
        """Remove teachers that left while no manager led, even if readers still use them."""
        for name in names:
            self.gone_s[name] = now
            if name not in self.cache.members and name in self._remembered:
                self._remove(name, now, lost=False)

    def to_probe(self, now: float) -> list[tuple[TeacherIdentity, Member]]:
        """Return the teachers to probe now; from now on they count as being probed."""
        if self.admission is None:
            return []
        due = self.admission.due(now)
        return [(identity, self.cache.members[identity.teacher_id]) for identity in due]

    def answered(self, answers: Iterable[ProbeAnswer], now: float) -> int:
        """Apply results of probes; return the number of refusals."""
        refused = 0
        if self.admission is None:
            return refused
        for answer in answers:
            outcome = self.admission.answered(answer.identity, answer.verdict, answer.why, now)
            if outcome is not None:
                refused += not outcome.admitted
                self._apply_outcome(outcome)
        return refused

    def _apply_outcome(self, outcome: ProbeOutcome) -> None:
        name = outcome.identity.teacher_id
        member = self.cache.members.get(name)
        if member is None:
            return
        if outcome.admitted:
            self._pending.admitted[name] = member.incarnation
            self._mark_up(member)
        else:
            if outcome.should_log:
                why = f"refused: {outcome.why}"
                self._pending.log("refused", name, why)
                self._pending.admitted[name] = why
            self._mark_down(name, lost=True)

    def _update(self, member: Member, now: float) -> None:
        name = member.member
        self.gone_s.pop(name, None)
        self._given_up.pop(name, None)
        if why := member.facts.get(GIVEN_UP):
            self._given_up[name] = why
        if self.incarnations.get(name) != member.incarnation:
            self.incarnations[name] = member.incarnation
            self._draining.discard(name)
            if self.admission is not None and self.admission.is_refused(name):
                self._pending.admitted[name] = None  # that was its former incarnation
            if self._remembered.pop(name, None) not in (0, member.incarnation):
                self._pending.log("registered", name, _registered(member))
        if self.admission is not None:
            identity = identity_from(member)
            if not self.admission.appeared(identity, now) and not self._is_presumed(member):
                self._mark_down(name, lost=True)  # it was up as another incarnation or address
                return
        else:
            self._pending.admitted[name] = 0
        self._mark_up(member)

    def _is_presumed(self, member: Member) -> bool:
        """Whether readers used it when the term began; then it stays up while it is probed."""
        if self._presumed.get(member.member) not in (0, member.incarnation):
            return False
        self._presumed[member.member] = member.incarnation
        return True

    def _mark_up(self, member: Member) -> None:
        name = member.member
        up = _teacher_up(member)
        if not member.draining:
            if self.up.get(name) != up or name in self._draining:
                self._draining.discard(name)
                self.up[name] = up
                self._pending.events.append(up)
            return
        if name not in self._draining:
            self._draining.add(name)
            if self.up.get(name) != up:
                self.up[name] = up
                self._pending.events.append(up)
            self._pending.events.append(rule.TeacherDraining(name))
            self._pending.log("draining", name, f"{_why_draining(member)}; takes nothing new")

    def _remove(self, name: str, now: float, *, lost: bool, text: str = "") -> None:
        self.gone_s[name] = now
        self.incarnations.pop(name, None)
        why = self._given_up.pop(name, _SILENT)
        self._remembered.pop(name, None)
        if self.admission is not None:
            self.admission.gone(name)
        self._pending.admitted[name] = None
        drained = " after it drained" if name in self._draining else " by itself"
        self._draining.discard(name)
        if lost:
            self._pending.log("lost", name, text or f"lost: {why}")
        else:
            self._pending.log("left", name, f"left{drained}")
        self._mark_down(name, lost=lost)

    def _mark_down(self, name: str, *, lost: bool) -> None:
        self._presumed.pop(name, None)
        if self.up.pop(name, None) is not None:
            self._pending.events.append(rule.TeacherDown(name, lost=lost))

    def presume_live(self, teachers: Iterable[str], content_id: str, now: float) -> None:
        """Presume that the teachers of a reader live, until the grace period ends.

        Teachers that left or were refused are skipped: the reader may not know this yet.
        """
        for name in teachers:
            is_refused = self.admission is not None and self.admission.is_refused(name)
            if name in self.gone_s or is_refused:
                continue
            if self.cache.add_missing(name, now):
                self._presumed[name] = 0
                self.up[name] = up = rule.TeacherUp(name, content_id=content_id)
                self._pending.events.append(up)
            elif name not in self.up and not self.cache.members[name].draining:
                self._presumed[name] = self.cache.members[name].incarnation
                self._mark_up(self.cache.members[name])  # registered again, and not probed yet

    def remove_missing(self, now: float, *, recovered: bool = False) -> None:
        """Remove teachers that were missing for too long.

        With `recovered`, also remove those that earlier leaders knew and that have not appeared in
        this term: neither registered nor presumed live.
        """
        for name in [n for n, at in self.gone_s.items() if now - at > self._grace_s]:
            del self.gone_s[name]
        for name in self.cache.drop_overdue(now):
            self._remove(name, now, lost=True, text="lost: it has not come back in time")
        if recovered:
            for name in [n for n in self._remembered if n not in self.cache.members]:
                self._remove(name, now, lost=True, text="lost: it was gone when this term began")


class StudentRoster:
    """Students of one service in one term.

    Args:
        pending: collects events and log entries.
        grace_s: seconds within which a member that the registry has lost may register again.
        teachers: roster of the teachers. While recovering, it gets the teachers that readers use.
        time_ms: time of the registry when the term began.

    Attributes:
        recovering: whether teachers that readers use are presumed live.
        ahead: the greatest credible version (term, counter) of an assignment that a reader has.
    """

    def __init__(
        self, pending: PendingChanges, grace_s: float, teachers: TeacherRoster, time_ms: int
    ) -> None:
        self.cache = WatchCache(grace_s)
        self.recovering = True
        self.ahead: TableVersion = (0, 0)
        self._pending = pending
        self._teachers = teachers
        self._time_ms = time_ms
        self._starvation = StarvationLog()
        self._incarnations: dict[str, int] = {}
        self._reported: dict[str, rule.StudentReported] = {}

    def apply(self, changes: Changes, rows: Mapping[str, Row], now: float) -> None:
        """Apply changes of students; `rows` are those of the assignment table."""
        left, lost = self.cache.apply(changes, now)
        for member in changes.members:
            self._update(member, rows.get(member.member), now)
        for name in left:
            self._remove(name, "closed its stream")
        for name in lost:
            self._remove(name, "its lease ran out, no report came in time")

    def presume_row(self, name: str, row: Row, now: float) -> None:
        """Keep a student of the table that has no lease: it may register again."""
        if self.cache.add_missing(name, now):
            self._teachers.presume_live(row.teachers, row.content_id, now)
            self._add_report(
                rule.StudentReported(
                    name,
                    max(1, len(row.teachers)),
                    row.teachers,
                    data_epoch=row.data_epoch,
                    content_id=row.content_id,
                )
            )

    def _update(self, member: Member, row: Row | None, now: float) -> None:
        name = member.member
        report = report_from(member)
        if leadership.is_believable(report.term, self._time_ms):
            self.ahead = max(self.ahead, (report.term, report.counter))
        used, assigned = tuple(report.teachers), row.teachers if row else ()
        if self.recovering:  # the table may have teachers that the student does not report
            content_id = report.content_id or (row.content_id if row else "")
            self._teachers.presume_live((*assigned, *used), content_id, now)
        self._starvation.record(name, report.state == "starved", now)
        former = self._incarnations.get(name, row.incarnation if row else 0)
        if former != member.incarnation:
            self._pending.student_incarnations[name] = member.incarnation
            what = f"restarted (incarnation {member.incarnation})" if former else "subscribed"
            self._pending.log("subscribed", name, f"{what}, wants teachers: {report.want}")
        is_new = former != member.incarnation or (
            self.recovering and not set(used) <= set(assigned)
        )
        if is_new and self._reported.pop(name, None) is not None:
            # The rule reads `holding` of new students only.
            self._pending.events.append(rule.StudentGone(name))
        self._incarnations[name] = member.incarnation
        self._add_report(
            rule.StudentReported(
                name,
                report.want,
                tuple(dict.fromkeys((*assigned, *used))),
                min=report.min,
                priority=report.priority,
                needed=report.needed,
                t_t_s=report.t_t_seconds,
                t_s_s=report.t_s_seconds,
                urgent=report.state == "starved",
                unreachable=report.unreachable,
                unavailable=tuple(report.unavailable),
                cut_off=report.cut_off > 0,
                host=report.host,
                data_epoch=report.data_epoch,
                content_id=report.content_id,
            )
        )

    def _add_report(self, event: rule.StudentReported) -> None:
        without_teachers = replace(event, holding=())
        if self._reported.get(event.student_id) != without_teachers:
            self._reported[event.student_id] = without_teachers
            self._pending.events.append(event)

    def _remove(self, name: str, why: str) -> None:
        self._incarnations.pop(name, None)
        self._starvation.forget(name)
        self._pending.student_incarnations[name] = None
        self._pending.log("gone", name, f"gone: {why}")
        if self._reported.pop(name, None) is not None:
            self._pending.events.append(rule.StudentGone(name))

    def log_starvation(self, now: float) -> None:
        """Log students that have starved, or have been steady, for long enough."""
        for name, starved in self._starvation.lasting(now):
            kind = "starved" if starved else "steady"
            text = "starves: it waits for labels" if starved else "is steady again"
            self._pending.log(kind, name, text)

    def remove_missing(self, now: float) -> None:
        """Remove students that were missing for too long."""
        for name in self.cache.drop_overdue(now):
            self._remove(name, "it has not come back in time")


def _teacher_up(member: Member) -> rule.TeacherUp:
    facts = member.facts
    t_t_s, devices = parse_number(facts.get("t_t_seconds")), parse_number(facts.get("lanes")) or 1.0
    return rule.TeacherUp(
        member.member,
        member.incarnation,
        speed=devices / t_t_s if t_t_s > 0 else 0.0,
        content_id=facts.get("content_id", ""),
        host=facts.get("host", ""),
    )


def _registered(member: Member) -> str:
    facts = member.facts
    content = f", content {facts['content_id']}" if facts.get("content_id") else ""
    return f"registered at {facts.get('address', 'no address')}{content}"


def _why_draining(member: Member) -> str:
    return "drained by request" if member.facts.get(DRAIN) == "1" else "drains by itself"
