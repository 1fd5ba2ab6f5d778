"""All teachers of a service, and at hand what the rule asks of them each time one of them changes.

Nothing here depends on who holds whom: that is the board's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .pace import Pace


@dataclass(frozen=True, slots=True)
class TeacherEntry:
    """What is known of a teacher.

    Attributes:
        pace: the class of its speed.
    """

    incarnation: int = 0
    pace: Pace = field(default_factory=Pace)
    content_id: str = ""
    host: str = ""
    draining: bool = False

    @property
    def power(self) -> float:
        """How many of the service's usual teachers it is worth."""
        return self.pace.power


class Pool:
    """The teachers of one content that may be assigned.

    Attributes:
        power: theirs, by name.
        of_power: their names by power; of each power in the order in which they came to be of it.
    """

    __slots__ = ("of_power", "power")

    def __init__(self) -> None:
        self.power: dict[str, float] = {}
        self.of_power: dict[float, dict[str, None]] = {}

    def copy(self) -> Pool:
        """One that may be changed."""
        other = Pool()
        other.power = dict(self.power)
        other.of_power = {power: dict(names) for power, names in self.of_power.items()}
        return other

    def put(self, name: str, power: float) -> None:
        """One may be assigned, or its power is another one."""
        if self.power.get(name) != power:
            self.drop(name)
            self.power[name] = power
            self.of_power.setdefault(power, {})[name] = None

    def drop(self, name: str) -> None:
        """One may not be assigned any more, if it might."""
        power = self.power.pop(name, None)
        if power is not None:
            del self.of_power[power][name]
            if not self.of_power[power]:
                del self.of_power[power]


_NOBODY = Pool()


class Fleet(Mapping[str, TeacherEntry]):
    """Teachers by name, in the order of arrival; only who made a copy of it changes that one."""

    __slots__ = ("_doubted", "_entries", "_pools")

    def __init__(self) -> None:
        self._entries: dict[str, TeacherEntry] = {}
        self._pools: dict[str, Pool] = {}
        self._doubted: dict[str, float] = {}

    def __getitem__(self, name: str) -> TeacherEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        return f"Fleet({self._entries!r})"

    @property
    def pools(self) -> Mapping[str, Pool]:
        """Those that may be assigned, by content; no pool is empty."""
        return self._pools

    @property
    def doubted(self) -> Mapping[str, float]:
        """Those whose class of speed time alone may change, and when it does."""
        return self._doubted

    def pool(self, content_id: str) -> Pool:
        """Those that may be assigned to students on a content."""
        return self._pools.get(content_id, _NOBODY)

    def copy(self) -> Fleet:
        """One that may be changed."""
        other = Fleet()
        other._entries = dict(self._entries)
        other._pools = {content: pool.copy() for content, pool in self._pools.items()}
        other._doubted = dict(self._doubted)
        return other

    def put(self, name: str, entry: TeacherEntry) -> None:
        """A teacher is there, or is another one than it was."""
        before = self._entries.get(name)
        if before is not None and (entry.draining or before.content_id != entry.content_id):
            self._leave_pool(name, before)
        self._entries[name] = entry
        if not entry.draining:
            self._pools.setdefault(entry.content_id, Pool()).put(name, entry.power)
        if entry.pace.doubt is not None:
            self._doubted[name] = entry.pace.doubt.due
        else:
            self._doubted.pop(name, None)

    def drop(self, name: str) -> None:
        """A teacher is gone."""
        self._leave_pool(name, self._entries.pop(name))
        self._doubted.pop(name, None)

    def _leave_pool(self, name: str, entry: TeacherEntry) -> None:
        pool = self._pools.get(entry.content_id)
        if pool is not None:
            pool.drop(name)
            if not pool.power:
                del self._pools[entry.content_id]
