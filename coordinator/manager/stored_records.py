"""What a leader stores of its service: rows of the assignment table, and the plan of its content.

The rule says what changes; this makes records of it, and what the log says. No I/O. A plan moves
on by declaring the content that prevails, then by upgrades that end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...scheduler import assignment as rule
from ..registry import LogEntry, Plan, Row


@dataclass(slots=True)
class PendingChanges:
    """What has come up and is to be carried out.

    Attributes:
        events: for the rule.
        entries: for the log.
        admitted: teacher id -> incarnation to remember, None to forget it.
        lives: students of which a new life has come -> its incarnation; None: it is gone.
    """

    events: list[rule.AssignmentEvent] = field(default_factory=list)
    entries: list[LogEntry] = field(default_factory=list)
    admitted: dict[str, int | None] = field(default_factory=dict)
    lives: dict[str, int | None] = field(default_factory=dict)

    def log(self, kind: str, subject: str, text: str) -> None:
        """Add an entry for the log."""
        self.entries.append(LogEntry(kind, subject, text))

    def take(self) -> PendingChanges:
        """All that has come up since the last call."""
        taken = PendingChanges(self.events, self.entries, self.admitted, self.lives)
        self.events, self.entries, self.admitted, self.lives = [], [], {}, {}
        return taken


class AssignmentRows:
    """Rows of one service.

    Args:
        rows: those that stand, by student id.
        lost_s: seconds for which a teacher that was lost is named to those who had it.
    """

    def __init__(self, rows: Mapping[str, Row], lost_s: float) -> None:
        self._rows = dict(rows)
        self._lost_s = lost_s
        self._lost: dict[str, dict[str, float]] = {}

    @property
    def rows(self) -> Mapping[str, Row]:
        """As they stand when all that was handed out is written."""
        return self._rows

    def all(self, counter: int) -> dict[str, Row | None]:
        """All of them, for the first write of a term."""
        for name, row in self._rows.items():
            self._rows[name] = replace(row, counter=counter)
        return dict(self._rows)

    def change(
        self,
        changes: Iterable[rule.AssignmentChange],
        alive: Container[str],
        counter: int,
        now: float,
    ) -> tuple[dict[str, Row | None], list[LogEntry]]:
        """Take over what the rule has changed.

        Args:
            changes: what it said.
            alive: teachers that are there; who came back under another incarnation is not lost.
            counter: of the write that will carry the rows.
            now: seconds, as everywhere here.

        Returns:
            The rows to write, and log entries for sets that changed.
        """
        written: dict[str, Row | None] = {}
        entries = []
        for change in changes:
            name = change.student_id
            former = self._rows.get(name, Row())
            self._rows[name] = written[name] = Row(
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
                count = len(change.teachers)
                text = f"assigned {count} teacher{'' if count == 1 else 's'}: {change.reason}"
                entries.append(LogEntry("assigned", name, text, former.teachers, change.teachers))
        return written, entries

    def follow_lives(self, lives: Mapping[str, int | None], counter: int) -> dict[str, Row | None]:
        """Students whose life is another one now (None: over): their rows say so."""
        written: dict[str, Row | None] = {}
        for name, incarnation in lives.items():
            if incarnation is None:
                self._lost.pop(name, None)
                if self._rows.pop(name, None) is not None:
                    written[name] = None
            elif name in self._rows:
                row = replace(self._rows[name], incarnation=incarnation, counter=counter)
                self._rows[name] = written[name] = row
        return written

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


def planned(plan: Plan) -> rule.ContentPlanned:
    """The plan as the rule is told it."""
    at: rule.When = "now" if plan.at == "now" else "epoch"
    return rule.ContentPlanned(plan.content_id, plan.next_content_id, at)


def is_lost(standing: Plan, known: Plan) -> bool:
    """Whether the registry has forgotten the plan that we know: emptied, or an older replica.

    One that is not older by its version was ordered since, though the clock of the registry that
    answers now may be behind that of the one before.
    """
    if not known.content_id:
        return False
    older = standing.version < known.version and standing.since_ms < known.since_ms
    return older or _is_empty(standing)


def next_plan(
    standing: Plan, known: Plan, state: rule.AssignmentState, recovering: bool
) -> tuple[Plan, LogEntry] | None:
    """What the plan becomes now, and the log entry that says so; None: it stays.

    Args:
        standing: as it stands in the registry.
        known: as the rule has been told it: the same, unless the registry has lost it.
        state: of the rule.
        recovering: whether teachers and students may still come back: then nothing is said of all.
    """
    if is_lost(standing, known):
        plan = replace(known, version=standing.version)
        content = known.next_content_id or known.content_id
        kind = "upgrade goes on" if known.next_content_id else "declared"
        return plan, LogEntry(
            "upgrade", content, f"{kind}: {_content(known)}, as it was before Redis lost the plan"
        )
    if recovering:
        return None
    if standing.next_content_id:
        if not rule.plan_is_complete(state):
            return None
        done = Plan(standing.next_content_id, version=standing.version)
        text = f"upgrade done: all students are on {done.content_id}, not {standing.content_id}"
        return done, LogEntry("upgrade", done.content_id, text)
    if standing.content_id:
        return None
    content, on, serving = rule.prevailing_content(state)
    if not content:
        return None
    if on:
        text = f"declared: {on} of {len(state.students)} students are on {content}"
    else:
        text = f"declared: {serving} of {len(state.teachers)} teachers serve {content}"
    return replace(standing, content_id=content), LogEntry("upgrade", content, text)


def _is_empty(plan: Plan) -> bool:
    return not (plan.content_id or plan.next_content_id)


def _content(plan: Plan) -> str:
    if not plan.next_content_id:
        return plan.content_id
    when = "at once" if plan.at == "now" else "as each begins its next epoch"
    return f"students move to {plan.next_content_id} {when}"


def announced(before: Plan, after: Plan) -> LogEntry | None:
    """What the log says of a plan that somebody else has changed."""
    if replace(after, version=before.version, since_ms=before.since_ms) == before:
        return None
    if after.next_content_id:
        text = f"upgrade asked for: {_content(after)}"
        return LogEntry("upgrade", after.next_content_id, text)
    if after.content_id != before.content_id or before.next_content_id:
        text = f"declared content is {after.content_id}; no upgrade runs"
        return LogEntry("upgrade", after.content_id, text)
    return None
