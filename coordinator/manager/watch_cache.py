"""A copy of the members of one kind in a service, kept current by their changes. No I/O."""

from __future__ import annotations

from collections.abc import Set

from ..store.records import Changes, Member

#: Seconds for which a cursor is valid: half of the time for which the registry keeps changes.
_CURSOR_S = 30.0


class WatchCache:
    """Members of one kind in one service, as the registry last reported them.

    A member is dropped at once if the registry has recorded that it left, or that a sweep removed
    it. A member that is missing without such a record may be lost with the registry's data: it is
    dropped unless it registers again within a grace period.

    Args:
        grace_s: grace period, in seconds.

    Attributes:
        members: members that the registry has, and missing ones.
        cursor: end of the last read; 0: read everything. Readers use `cursor_at`.
    """

    def __init__(self, grace_s: float) -> None:
        self.members: dict[str, Member] = {}
        self.cursor = 0
        self._read_s = float("-inf")
        self._grace_s = grace_s
        self._missing: dict[str, float] = {}  # member -> since when
        self._unsure: set[str] = set()  # missing members that `compare` found in the registry
        self._unknown: set[str] = set()  # ids in the registry that are no members here
        self._unreadable: set[str] = set()

    def cursor_at(self, now: float) -> int:
        """Return the cursor for a read at `now`; 0: read all, as changes may have expired."""
        return self.cursor if now - self._read_s <= _CURSOR_S else 0

    def apply(self, changes: Changes, now: float) -> tuple[list[str], list[str]]:
        """Apply changes since `cursor_at`.

        Args:
            changes: the changes.
            now: monotonic seconds before they were read.

        Returns:
            Ids of members that ended their lease, and of those that died.
        """
        self.cursor, self._read_s = changes.cursor, now
        for member in changes.members:
            self.members[member.member] = member
            self._missing.pop(member.member, None)
        left = [name for name in changes.left if self._drop(name)]
        if changes.full:  # `lost` may have members that were only late, for example in an outage
            self._mark_missing({member.member for member in changes.members}, now)
            return left, []
        return left, [name for name in changes.lost if self._drop(name)]

    def add_missing(self, name: str, now: float) -> bool:
        """Add a member that the registry lacks, as missing; return False if it is known."""
        if name in self.members:
            return False
        self.members[name] = Member(name)
        self._missing[name] = now
        return True

    def compare(self, names: Set[str], now: float) -> None:
        """Compare the members with all ids in the registry.

        Members that the registry lacks become missing. Ids that are unknown here in two consecutive
        calls cause a full read.
        """
        self._mark_missing(names, now)
        # Each of these registered again unnoticed, or no sweep has removed it yet. The next full
        # read decides which; until then it stays missing.
        self._unsure = self._missing.keys() & names
        if self._unsure:
            self.cursor = 0
        unknown = names - self.members.keys()
        # A member that joined after the last read is in the next read. An id that is unknown twice
        # was missed.
        missed = unknown & self._unknown
        if missed - self._unreadable:
            self.cursor = 0
        self._unknown = set(unknown)
        self._unreadable = missed  # their facts cannot be read: one full read is enough

    def _mark_missing(self, names: Set[str], now: float) -> None:
        for name in self.members.keys() - names:
            self._missing.setdefault(name, now)

    def restart_grace(self, now: float) -> None:
        """Restart the grace period of missing members, after an outage of the registry."""
        self._missing = dict.fromkeys(self._missing, now)
        self.cursor = 0

    def drop_overdue(self, now: float) -> tuple[str, ...]:
        """Drop and return members whose grace period is over. Do not call it during an outage."""
        late = [
            name
            for name, since in self._missing.items()
            if now - since >= self._grace_s and name not in self._unsure
        ]
        return tuple(name for name in late if self._drop(name))

    def _drop(self, name: str) -> bool:
        self._missing.pop(name, None)
        return self.members.pop(name, None) is not None
