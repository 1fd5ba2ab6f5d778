"""What has come up at a leader and is to be carried out: events, log entries, admissions."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...scheduler import assignment as rule
from ..registry import LogEntry


@dataclass(slots=True)
class Batch:
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

    def take(self) -> Batch:
        """All that has come up since the last call."""
        taken = Batch(self.events, self.entries, self.admitted, self.lives)
        self.events, self.entries, self.admitted, self.lives = [], [], {}, {}
        return taken
