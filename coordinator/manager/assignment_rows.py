"""What has come up at a leader and is to be carried out: events, log entries, admissions.

----
The rows of the assignment table as its leader has written them: changes in, rows out. No I/O.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...scheduler import assignment as rule
from ...scheduler.assignment import AssignmentChange
from ..registry import LogEntry, Row


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
        self, changes: Iterable[AssignmentChange], alive: Container[str], counter: int, now: float
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
        self, change: AssignmentChange, alive: Container[str], now: float
    ) -> tuple[str, ...]:
        lost = self._lost.setdefault(change.student_id, {})
        lost.update((teacher, now + self._lost_s) for teacher in change.lost)
        for teacher in [t for t, until in lost.items() if until <= now or t in alive]:
            del lost[teacher]
        if not lost:
            del self._lost[change.student_id]
        return tuple(sorted(lost))
