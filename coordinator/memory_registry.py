"""The registry within one process: the same contract as on Redis, for tests and simulations."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import LeaseSuperseded, RegistryUnavailable
from . import keys
from .registry import FACTS_TTLS, Changes, Kind, Member, concerns_managers

_SWEEP_LIMIT = 1000
_CHANGES_S = 60.0


@dataclass(slots=True)
class _Facts:
    values: dict[str, str]
    expires_s: float


@dataclass(slots=True)
class _Table:
    """One kind of members of one service."""

    deadlines: dict[str, float] = field(default_factory=dict)
    facts: dict[str, _Facts] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)


class MemoryRegistry:
    """See `Registry`; safe to use from several threads.

    Args:
        clock: seconds since 1970; a test passes its own and moves it.
        url: what it calls itself.
    """

    _named: ClassVar[dict[str, MemoryRegistry]] = {}
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, clock: Callable[[], float] = time.time, url: str = "memory://") -> None:
        self._clock = clock
        self._url = url
        self._lock = threading.RLock()
        self._tables: defaultdict[tuple[Kind, str], _Table] = defaultdict(_Table)
        self._number = 0
        self._available = True

    @classmethod
    def shared(cls, url: str) -> MemoryRegistry:
        """The registry of this process that goes by `url`."""
        with cls._named_lock:
            return cls._named.setdefault(url, cls(url=url))

    @property
    def url(self) -> str:
        return self._url

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        with self._lock:
            table, now = self._open(kind, service, member)
            incarnation = int(facts["incarnation"])
            holder = table.facts.get(member)
            if holder and incarnation < int(holder.values["incarnation"]):
                raise LeaseSuperseded(
                    f"a newer incarnation of {member} than {incarnation} is registered in "
                    f"{service or 'the mesh'}"
                )
            values = {**facts, "incarnation": str(incarnation)}
            table.facts[member] = _Facts(values, now + FACTS_TTLS * ttl_s)
            table.deadlines[member] = now + ttl_s
            self._note(table, member)

    def beat(
        self,
        kind: Kind,
        service: str,
        member: str,
        ttl_s: float,
        *,
        incarnation: int,
        facts: Mapping[str, str] | None = None,
    ) -> bool:
        changed = {name: value for name, value in (facts or {}).items() if name != "incarnation"}
        with self._lock:
            table, now = self._open(kind, service, member)
            held = table.facts.get(member)
            if member not in table.deadlines or held is None:
                return False
            if held.values["incarnation"] != str(incarnation):
                return False
            held.values.update(changed)
            held.expires_s = now + FACTS_TTLS * ttl_s
            table.deadlines[member] = now + ttl_s
            if concerns_managers(kind, changed):
                self._note(table, member)
            return True

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        with self._lock:
            table, _ = self._open(kind, service, member)
            held = table.facts.get(member)
            if held and incarnation is not None and held.values["incarnation"] != str(incarnation):
                return False
            deadline = table.deadlines.pop(member, None)
            if table.facts.pop(member, None) is None and deadline is None:
                return False
            self._note(table, member)
            return True

    def members(self, kind: Kind, service: str) -> list[Member]:
        with self._lock:
            table, now = self._open(kind, service)
            return [
                Member(name, dict(table.facts[name].values), deadline - now)
                for name, deadline in sorted(table.deadlines.items())
                if deadline > now and name in table.facts
            ]

    def names(self, kind: Kind, service: str) -> set[str]:
        with self._lock:
            return set(self._open(kind, service)[0].deadlines)

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        with self._lock:
            table, now = self._open(kind, service)
            if cursor == 0:
                start = max(table.changed.values(), default=int(now * 1e6))
                return Changes(start, tuple(self.members(kind, service)), full=True)
            members, left, lost = [], [], []
            for name, number in sorted(table.changed.items(), key=lambda item: item[1]):
                if number <= cursor:
                    continue
                cursor = number
                if name not in table.facts:
                    left.append(name)
                elif name not in table.deadlines:
                    lost.append(name)
                else:
                    values = dict(table.facts[name].values)
                    members.append(Member(name, values, table.deadlines[name] - now))
            return Changes(cursor, tuple(members), tuple(left), tuple(lost))

    def sweep(self, kind: Kind, service: str) -> list[str]:
        with self._lock:
            table, now = self._open(kind, service)
            by_deadline = sorted(table.deadlines.items(), key=lambda item: item[1])
            dead = [name for name, deadline in by_deadline if deadline <= now][:_SWEEP_LIMIT]
            for name in dead:
                del table.deadlines[name]
                self._note(table, name)
            return dead

    def services(self) -> list[str]:
        with self._lock:
            self._check()
            return sorted({s for (kind, s), table in self._tables.items() if s and table.deadlines})

    def time_ms(self) -> int:
        self._check()
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Nothing to let go of: what it holds is shared by its name."""

    def set_available(self, available: bool) -> None:
        """Let every step raise RegistryUnavailable from now on, or none: an outage for tests."""
        self._available = available

    def clear(self) -> None:
        """Forget everything, as a Redis without persistence does when it is restarted."""
        with self._lock:
            self._tables.clear()

    def _check(self) -> None:
        if not self._available:
            raise RegistryUnavailable(f"the registry {self._url} does not answer")

    def _open(self, kind: Kind, service: str, member: str = "x") -> tuple[_Table, float]:
        """The table, without what has expired, and the time; names are checked as on Redis."""
        self._check()
        keys.facts(kind, service, member)
        now = self._clock()
        table = self._tables[kind, service]
        for name in [name for name, held in table.facts.items() if held.expires_s <= now]:
            del table.facts[name]
            table.deadlines.pop(name, None)
        return table, now

    def _note(self, table: _Table, member: str) -> None:
        now_us = int(self._clock() * 1e6)
        self._number = max(now_us, self._number + 1)
        table.changed[member] = self._number
        oldest = now_us - int(_CHANGES_S * 1e6)
        if len(table.changed) > 2 * len(table.deadlines) + 16:
            table.changed = {m: n for m, n in table.changed.items() if n > oldest}
