"""Lease sets within one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .records import (
    DRAIN,
    FACTS_TTLS,
    Beat,
    Changes,
    LeaseSet,
    Member,
    MemberBeat,
    SweepPermit,
    left,
    split_changes,
)

if TYPE_CHECKING:
    from .memory_store import MemoryStore

_SWEEP_LIMIT: Final = 1000
_CHANGES_S: Final = 60.0


class MemoryLeases:
    """Implements `Leases`.

    Args:
        store: the store with the values.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._number = 0

    # --- members

    def register(
        self, leases: LeaseSet, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        return [
            member
            for member, facts in members.items()
            if not self._register(leases, member, facts, ttl_s)
        ]

    def _register(
        self, leases: LeaseSet, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> bool:
        key, incarnation = leases.facts + member, int(facts["incarnation"])
        with self._store.lock:
            deadlines, held = self._deadlines(leases), dict(self._facts(leases, member))
            if held and incarnation < int(held["incarnation"]):
                return False
            values = {**facts, "incarnation": str(incarnation)}
            if leases.changes:
                if DRAIN in held and int(held["incarnation"]) == incarnation:
                    values.setdefault(DRAIN, held[DRAIN])
                self._store.value(leases.changes).pop(left(member), None)
            else:
                values["joined"] = str(self._next_number())
            self._store.delete(key)
            self._store.value(key).update(values)
            deadlines[member] = self._store.now_s() + ttl_s
            self._store.keep(key, FACTS_TTLS * ttl_s)
            self._store.keep_longer(leases.deadlines, FACTS_TTLS * ttl_s)
            self._note(leases, member)
            return True

    def beat(self, leases: LeaseSet, beat: MemberBeat, ttl_s: float) -> Beat:
        key = leases.facts + beat.member
        with self._store.lock:
            deadlines, held = self._deadlines(leases), self._facts(leases, beat.member)
            if beat.member not in deadlines or not held:
                return Beat.UNKNOWN
            if held["incarnation"] != str(beat.incarnation):
                return Beat.SUPERSEDED
            held.update({**beat.facts, "incarnation": held["incarnation"]})
            deadlines[beat.member] = self._store.now_s() + ttl_s
            self._store.keep(key, FACTS_TTLS * ttl_s)
            self._store.keep_longer(leases.deadlines, FACTS_TTLS * ttl_s)
            if beat.noted:
                self._note(leases, beat.member)
            return Beat.DRAIN if held.get(DRAIN) == "1" else Beat.KEPT

    def beat_many(self, beats: Sequence[tuple[LeaseSet, MemberBeat]], ttl_s: float) -> list[Beat]:
        return [self.beat(leases, beat, ttl_s) for leases, beat in beats]

    def leave(self, leases: LeaseSet, member: str, incarnation: int | None = None) -> bool:
        with self._store.lock:
            deadlines, held = self._deadlines(leases), self._facts(leases, member)
            if held and incarnation is not None and held["incarnation"] != str(incarnation):
                return False
            if deadlines.pop(member, None) is None and not held:
                return False
            self._store.delete(leases.facts + member)
            if leases.changes:
                self._store.value(leases.changes).pop(member, None)
                self._note(leases, left(member))
            return True

    # --- readers

    def request_drain(self, leases: LeaseSet, member: str) -> bool:
        with self._store.lock:
            held = self._facts(leases, member)
            if member not in self._deadlines(leases) or not held:
                return False
            held.update({DRAIN: "1", "state": "draining"})
            self._note(leases, member)
            return True

    def members(self, leases: LeaseSet) -> list[Member]:
        with self._store.lock:
            now_s, deadlines = self._store.now_s(), self._deadlines(leases)
            return [
                Member(name, dict(facts), deadlines[name] - now_s)
                for name in sorted(deadlines)
                if deadlines[name] > now_s and (facts := self._facts(leases, name))
            ]

    def read(self, leases: LeaseSet, names: Sequence[str]) -> list[Member]:
        with self._store.lock:
            now_s, deadlines = self._store.now_s(), self._deadlines(leases)
            return [
                Member(name, dict(facts), deadlines.get(name, now_s) - now_s)
                for name in names
                if (facts := self._facts(leases, name))
            ]

    def names(self, leases: LeaseSet) -> set[str]:
        with self._store.lock:
            return set(self._deadlines(leases))

    def changes(self, leases: LeaseSet, cursor: int = 0) -> Changes:
        with self._store.lock:
            now_s, deadlines = self._store.now_s(), self._deadlines(leases)
            noted = self._store.value(leases.changes)
            due_s = min(deadlines.values(), default=math.inf) - now_s
            if cursor == 0:
                members = tuple(self.members(leases))
                living = {member.member for member in members}
                oldest = (now_s - _CHANGES_S) * 1e6
                there, leavers = split_changes(name for name, at in noted.items() if at > oldest)
                return Changes(
                    max(noted.values(), default=int(now_s * 1e6)),
                    members,
                    tuple(name for name in leavers if name not in living),
                    tuple(name for name in there if name not in living),
                    full=True,
                    due_s=due_s,
                )
            numbers = sorted((at, name) for name, at in noted.items() if at > cursor)
            names, leavers = split_changes(name for _, name in numbers)
            return Changes(
                max([cursor, *(at for at, _ in numbers)]),
                tuple(one for one in self.read(leases, names) if one.member in deadlines),
                tuple(leavers),
                tuple(name for name in names if name not in deadlines),
                due_s=due_s,
            )

    def sweep(self, leases: LeaseSet, permit: SweepPermit | None = None) -> list[str]:
        with self._store.lock:
            now_s, deadlines = self._store.now_s(), self._deadlines(leases)
            if permit is not None and (
                permit.registry_id != self._store.registry_id or now_s * 1000 > permit.until_ms
            ):
                return []
            by_deadline = sorted(deadlines.items(), key=lambda item: item[1])
            dead = [name for name, deadline in by_deadline if deadline <= now_s][:_SWEEP_LIMIT]
            for name in dead:
                del deadlines[name]
                self._note(leases, name)
            return dead

    # --- with the lock held

    def _deadlines(self, leases: LeaseSet) -> dict[str, float]:
        """Return the deadlines of the set; without expired ones if the set is not followed."""
        deadlines: dict[str, float] = self._store.value(leases.deadlines)
        if not leases.changes:
            now_s = self._store.now_s()
            for name in [name for name, at in deadlines.items() if at <= now_s]:
                del deadlines[name]
                self._store.delete(leases.facts + name)
        return deadlines

    def _facts(self, leases: LeaseSet, member: str) -> dict[str, str]:
        facts: dict[str, str] = self._store.peek(leases.facts + member)
        return facts

    def _note(self, leases: LeaseSet, member: str) -> None:
        if not leases.changes:
            return
        noted = self._store.value(leases.changes)
        noted[member] = self._next_number()
        oldest = (self._store.now_s() - _CHANGES_S) * 1e6
        if len(noted) > 2 * len(self._deadlines(leases)) + 16:
            for name in [name for name, at in noted.items() if at <= oldest]:
                del noted[name]

    def _next_number(self) -> int:
        self._number = max(int(self._store.now_s() * 1e6), self._number + 1)
        return self._number
