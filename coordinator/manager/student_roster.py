"""What the leader of one service knows of its students: readings in, a batch out. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...scheduler import assignment as rule
from ...scheduler import leadership
from ...scheduler.debounce import StarvationLog
from ..registry import Epoch, Member, Row
from .assignment_rows import PendingChanges
from .messages import report_from
from .teacher_roster import TeacherRoster, finite
from .watch_cache import WatchCache, WatchChanges


class StudentRoster:
    """Students of one service in one term.

    Args:
        batch: where everything that comes up is put.
        grace_s: how long those that the registry has forgotten have to come back.
        teachers: who is told what readers hold, while they are believed.
        time_ms: the registry's clock when the term began.

    Attributes:
        recovering: what readers say that they hold is believed.
        ahead: the greatest epoch that a reader follows, of those that can be.
    """

    def __init__(
        self, batch: PendingChanges, grace_s: float, teachers: TeacherRoster, time_ms: int
    ) -> None:
        self.mirror = WatchCache(grace_s)
        self.recovering = True
        self.ahead: Epoch = (0, 0)
        self._batch = batch
        self._teachers = teachers
        self._time_ms = time_ms
        self._starvation = StarvationLog()
        self._lives: dict[str, int] = {}
        self._told: dict[str, rule.StudentReported] = {}

    def hear(self, news: WatchChanges, rows: Mapping[str, Row], now: float) -> None:
        """A reading of kind "students"; `rows` are those of the table."""
        for member in news.changed:
            self._is(member, rows.get(member.member), now)
        for name in news.left:
            self._gone(name, "closed its stream")
        for name in news.lost:
            self._gone(name, "its lease ran out, no report came in time")

    def believe_row(self, name: str, row: Row, now: float) -> None:
        """A student of the table has no lease: it may still come back to what it had."""
        if self.mirror.believe(name, now):
            self._teachers.believe(row.teachers, row.content_id, now)
            self._tell(
                rule.StudentReported(
                    name,
                    max(1, len(row.teachers)),
                    row.teachers,
                    data_epoch=row.data_epoch,
                    content_id=row.content_id,
                )
            )

    def _is(self, member: Member, row: Row | None, now: float) -> None:
        name = member.member
        report = report_from(member)
        if leadership.is_believable(report.term, self._time_ms):
            self.ahead = max(self.ahead, (report.term, report.counter))
        held, before = tuple(report.teachers), row.teachers if row else ()
        if self.recovering:  # what it does not tell, the table does
            content_id = report.content_id or (row.content_id if row else "")
            self._teachers.believe((*before, *held), content_id, now)
        self._starvation.hear(name, report.state == "starved", now)
        life = self._lives.get(name, row.incarnation if row else 0)
        if life != member.incarnation:
            self._batch.lives[name] = member.incarnation
            anew = f"started anew (incarnation {member.incarnation})" if life else "subscribed"
            self._batch.log("subscribed", name, f"{anew}, wants teachers: {report.want}")
        afresh = life != member.incarnation or (self.recovering and not set(held) <= set(before))
        if afresh and self._told.pop(name, None) is not None:
            self._batch.events.append(rule.StudentGone(name))  # what it holds counts of new ones
        self._lives[name] = member.incarnation
        self._tell(
            rule.StudentReported(
                name,
                report.want,
                tuple(dict.fromkeys((*before, *held))),
                min=report.min,
                priority=report.priority,
                needed=report.needed,
                t_t_s=finite(report.t_t_seconds),
                t_s_s=finite(report.t_s_seconds),
                urgent=report.state == "starved",
                unreachable=report.unreachable,
                unavailable=tuple(report.unavailable),
                cut_off=report.cut_off > 0,
                host=report.host,
                data_epoch=report.data_epoch,
                content_id=report.content_id,
            )
        )

    def _tell(self, event: rule.StudentReported) -> None:
        plain = replace(event, holding=())
        if self._told.get(event.student_id) != plain:
            self._told[event.student_id] = plain
            self._batch.events.append(event)

    def _gone(self, name: str, why: str) -> None:
        self._lives.pop(name, None)
        self._starvation.forget(name)
        self._batch.lives[name] = None
        self._batch.log("gone", name, f"gone: {why}")
        if self._told.pop(name, None) is not None:
            self._batch.events.append(rule.StudentGone(name))

    def pass_time(self, now: float) -> None:
        """Tell what has lasted."""
        for name, starved in self._starvation.lasting(now):
            kind = "starved" if starved else "steady"
            text = "starves: it waits for labels" if starved else "is steady again"
            self._batch.log(kind, name, text)

    def give_up(self, now: float) -> None:
        """Let go of those that were missing for too long."""
        for name in self.mirror.overdue(now):
            self._gone(name, "it has not come back in time")
