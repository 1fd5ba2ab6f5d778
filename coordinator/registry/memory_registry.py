"""The registry within one process: the same contract as on Redis, for tests and simulations."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...errors import LeaseSuperseded, RegistryUnavailable
from . import FACTS_TTLS, keys
from .memory_table import EVENTS, MemoryTables
from .noted import concerns_managers
from .records import DRAIN, Beat, Changes, Kind, Mandate, Member, MemberBeat

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


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """What a registry held at one moment."""

    tables: Mapping[tuple[Kind, str], Any]
    services: Mapping[str, Any]


class MemoryRegistry(MemoryTables):
    """See `Registry`; safe to use from several threads.

    Args:
        clock: seconds since 1970; a test passes its own and moves it.
        url: what it calls itself.
        events: how many the log of a service keeps.
    """

    _named: ClassVar[dict[str, MemoryRegistry]] = {}
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        url: str = "memory://",
        events: int = EVENTS,
    ) -> None:
        super().__init__(clock, self._check_available, events)
        self._url = url
        self._tables: defaultdict[tuple[Kind, str], _Table] = defaultdict(_Table)
        self._number = 0
        self._available = True

    @classmethod
    def shared(cls, url: str, clock: Callable[[], float] = time.time) -> MemoryRegistry:
        """The registry of this process that goes by `url`, made with that clock if it is new."""
        with cls._named_lock:
            return cls._named.setdefault(url, cls(clock, url))

    @property
    def url(self) -> str:
        return self._url

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        with self._lock:
            table, now = self._open_table(kind, service, member)
            incarnation = int(facts["incarnation"])
            holder = table.facts.get(member)
            if holder and incarnation < int(holder.values["incarnation"]):
                raise LeaseSuperseded(
                    f"a newer incarnation of {member} than {incarnation} is registered in "
                    f"{service or 'the mesh'}"
                )
            values = {**facts, "incarnation": str(incarnation)}
            if holder and holder.values["incarnation"] == str(incarnation):
                values |= {k: v for k, v in holder.values.items() if k == DRAIN and k not in values}
            table.facts[member] = _Facts(values, now + FACTS_TTLS * ttl_s)
            table.deadlines[member] = now + ttl_s
            table.changed.pop(keys.left(member), None)
            self._note(table, member)

    def register_many(
        self, kind: Kind, service: str, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        superseded = []
        for member, facts in members.items():
            try:
                self.register(kind, service, member, facts, ttl_s)
            except LeaseSuperseded:
                superseded.append(member)
        return superseded

    def beat(
        self,
        kind: Kind,
        service: str,
        member: str,
        ttl_s: float,
        *,
        incarnation: int,
        facts: Mapping[str, str] | None = None,
        concerns: bool | None = None,
    ) -> Beat:
        changed = {name: value for name, value in (facts or {}).items() if name != "incarnation"}
        with self._lock:
            table, now = self._open_table(kind, service, member)
            held = table.facts.get(member)
            if member not in table.deadlines or held is None:
                return Beat.UNKNOWN
            if held.values["incarnation"] != str(incarnation):
                return Beat.UNKNOWN
            held.values.update(changed)
            held.expires_s = now + FACTS_TTLS * ttl_s
            table.deadlines[member] = now + ttl_s
            if concerns_managers(kind, changed) if concerns is None else concerns:
                self._note(table, member)
            return Beat.DRAIN if held.values.get(DRAIN) == "1" else Beat.KEPT

    def beat_many(
        self, kind: Kind, service: str, beats: Sequence[MemberBeat], ttl_s: float
    ) -> list[Beat]:
        return [
            self.beat(
                kind, service, one.member, ttl_s,
                incarnation=one.incarnation, facts=one.facts, concerns=one.concerns,
            )
            for one in beats
        ]  # fmt: skip

    def request_drain(self, service: str, teacher_id: str) -> bool:
        with self._lock:
            table, _ = self._open_table("teachers", service, teacher_id)
            if teacher_id not in table.deadlines or teacher_id not in table.facts:
                return False
            table.facts[teacher_id].values.update({DRAIN: "1", "state": "draining"})
            self._note(table, teacher_id)
            return True

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        with self._lock:
            table, _ = self._open_table(kind, service, member)
            held = table.facts.get(member)
            if held and incarnation is not None and held.values["incarnation"] != str(incarnation):
                return False
            deadline = table.deadlines.pop(member, None)
            if table.facts.pop(member, None) is None and deadline is None:
                return False
            table.changed.pop(member, None)
            self._note(table, keys.left(member))
            return True

    def members(self, kind: Kind, service: str) -> list[Member]:
        with self._lock:
            table, now = self._open_table(kind, service)
            return [
                Member(name, dict(table.facts[name].values), deadline - now)
                for name, deadline in sorted(table.deadlines.items())
                if deadline > now and name in table.facts
            ]

    def read(self, kind: Kind, service: str, names: Sequence[str]) -> list[Member]:
        with self._lock:
            table, now = self._open_table(kind, service)
            return [
                Member(
                    name,
                    dict(table.facts[name].values),
                    table.deadlines[name] - now if name in table.deadlines else 0.0,
                )
                for name in names
                if name in table.facts
            ]

    def names(self, kind: Kind, service: str) -> set[str]:
        with self._lock:
            return set(self._open_table(kind, service)[0].deadlines)

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        with self._lock:
            table, now = self._open_table(kind, service)
            if cursor == 0:
                return self._all(kind, service, table, now)
            numbers = sorted((at, name) for name, at in table.changed.items() if at > cursor)
            names, left = keys.apart(name for _, name in numbers)
            members = tuple(
                Member(name, dict(table.facts[name].values), table.deadlines[name] - now)
                for name in names
                if name in table.deadlines
            )
            lost = tuple(name for name in names if name not in table.deadlines)
            cursor = max([cursor, *(at for at, _ in numbers)])
            return Changes(cursor, members, tuple(left), lost, due_s=_due_s(table, now))

    def sweep(self, kind: Kind, service: str, mandate: Mandate | None = None) -> list[str]:
        with self._lock:
            table, now = self._open_table(kind, service)
            if mandate is not None and (
                mandate.registry_id != self._registry_id or now * 1000 > mandate.until_ms
            ):
                return []
            by_deadline = sorted(table.deadlines.items(), key=lambda item: item[1])
            dead = [name for name, deadline in by_deadline if deadline <= now][:_SWEEP_LIMIT]
            for name in dead:
                del table.deadlines[name]
                self._note(table, name)
            return dead

    def services(self) -> list[str]:
        with self._lock:
            self._check_available()
            return sorted({s for (kind, s), table in self._tables.items() if s and table.deadlines})

    def logs(self) -> list[str]:
        with self._lock:
            self._check_available()
            return sorted(name for name, held in self._services.items() if held.events)

    def server_info(self) -> dict[str, str]:
        return {}

    def check_writes(self) -> bool:
        self._check_available()
        return True

    def time_ms(self) -> int:
        self._check_available()
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Nothing to let go of: what it holds is shared by its name."""

    def set_available(self, available: bool) -> None:
        """Let every step raise RegistryUnavailable from now on, or none: an outage for tests."""
        self._available = available

    def restart(self) -> None:
        """Answer from now on as another server process that kept everything."""
        self.restore(self.snapshot())

    def snapshot(self) -> MemorySnapshot:
        """All that it holds now, for `restore`."""
        with self._lock:
            return copy.deepcopy(MemorySnapshot(dict(self._tables), dict(self._services)))

    def restore(self, snapshot: MemorySnapshot) -> None:
        """Answer from now on as another server that holds an older state: a stale replica."""
        held = copy.deepcopy(snapshot)
        with self._lock:
            self.clear()
            self._tables.update(held.tables)
            self._services.update(held.services)

    def clear(self) -> None:
        """Forget everything, as a Redis without persistence does when it is restarted."""
        with self._lock:
            super().clear()
            self._tables.clear()

    def _all(self, kind: Kind, service: str, table: _Table, now: float) -> Changes:
        start = max(table.changed.values(), default=int(now * 1e6))
        members = tuple(self.members(kind, service))
        living = {member.member for member in members}
        oldest = (now - _CHANGES_S) * 1e6
        there, left = keys.apart(name for name, at in table.changed.items() if at > oldest)
        return Changes(
            start,
            members,
            tuple(name for name in left if name not in living),
            tuple(name for name in there if name not in living),
            full=True,
            due_s=_due_s(table, now),
        )

    def _check_available(self) -> None:
        if not self._available:
            raise RegistryUnavailable(f"the registry {self._url} does not answer")

    def _open_table(self, kind: Kind, service: str, member: str = "x") -> tuple[_Table, float]:
        """The table, without what has expired, and the time; names are checked as on Redis."""
        self._check_available()
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


def _due_s(table: _Table, now: float) -> float:
    return min(table.deadlines.values(), default=math.inf) - now
