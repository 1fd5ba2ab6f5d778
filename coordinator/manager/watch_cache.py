"""What one reader knows of one kind of members: changes of the registry in, news out. No I/O."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from ..store.records import Changes, Member

#: Seconds for which a cursor is good: half of those for which the registry keeps changes.
_CURSOR_S = 30.0


@dataclass(frozen=True, slots=True)
class WatchChanges:
    """What a reading brought.

    Attributes:
        changed: members that are new or have changed, as they are now.
        left: ids of those that ended their lease themselves.
        lost: ids of those that died.
    """

    changed: tuple[Member, ...] = ()
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


class WatchCache:
    """Members of one kind in one service.

    A member goes only when the registry says that it left or that a sweep took it out. One that is
    missing without such a record was forgotten by a registry that lost its memory: it has a time of
    grace to register again.

    Args:
        grace_s: that time, in seconds.

    Attributes:
        members: those that are there, missing ones included.
        cursor: where the last reading ended; 0: read everything. Readers ask `cursor_at`.
    """

    def __init__(self, grace_s: float) -> None:
        self.members: dict[str, Member] = {}
        self.cursor = 0
        self._read_s = float("-inf")
        self._grace_s = grace_s
        self._missing: dict[str, float] = {}
        self._unsure: set[str] = set()
        self._unknown: set[str] = set()
        self._unreadable: set[str] = set()

    def cursor_at(self, now: float) -> int:
        """Where a reading at `now` goes on; 0: everything, as changes may have been forgotten."""
        return self.cursor if now - self._read_s <= _CURSOR_S else 0

    def apply(self, changes: Changes, now: float) -> WatchChanges:
        """Take over a reading.

        Args:
            changes: since `cursor_at`.
            now: monotonic seconds, from before it was read.

        Returns:
            What it brought.
        """
        self.cursor, self._read_s = changes.cursor, now
        for member in changes.members:
            self.members[member.member] = member
            self._missing.pop(member.member, None)
        left = tuple(name for name in changes.left if self._drop(name))
        if changes.full:  # in which those whose lease is late count as lost, even after an outage
            self._miss({member.member for member in changes.members}, now)
            return WatchChanges(changes.members, left)
        return WatchChanges(changes.members, left, tuple(n for n in changes.lost if self._drop(n)))

    def believe(self, name: str, now: float) -> bool:
        """Take a member for present though the registry has none; False: it is known."""
        if name in self.members:
            return False
        self.members[name] = Member(name)
        self._missing[name] = now
        return True

    def compare(self, names: Set[str], now: float) -> None:
        """Compare with all ids that the registry has; what differs is missing, or to be read."""
        self._miss(names, now)
        # It came back without a change that we saw, or no sweep has taken out the dead yet: which
        # of both it is, the next reading says; until then it has neither come nor gone.
        self._unsure = self._missing.keys() & names
        if self._unsure:
            self.cursor = 0
        unknown = names - self.members.keys()
        # One that came after the last reading is in the next one; who is unknown again was missed.
        missed = unknown & self._unknown
        if missed - self._unreadable:
            self.cursor = 0
        self._unknown = set(unknown)
        self._unreadable = missed  # nothing of theirs can be read: once is enough

    def _miss(self, names: Set[str], now: float) -> None:
        for name in self.members.keys() - names:
            self._missing.setdefault(name, now)

    def forgive(self, now: float) -> None:
        """The registry was away: whoever is missing has the whole time of grace again."""
        self._missing = dict.fromkeys(self._missing, now)
        self.cursor = 0

    def overdue(self, now: float) -> tuple[str, ...]:
        """Those that have not come back in time, and are dropped. Not to be asked in an outage."""
        late = [
            name
            for name, since in self._missing.items()
            if now - since >= self._grace_s and name not in self._unsure
        ]
        return tuple(name for name in late if self._drop(name))

    def _drop(self, name: str) -> bool:
        self._missing.pop(name, None)
        return self.members.pop(name, None) is not None
