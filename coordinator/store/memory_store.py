"""The store within one process: for training on one node, `memory://NAME`, and tests."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from .records import (
    DRAIN,
    FACTS_TTLS,
    AddToSortedSet,
    Append,
    BeatAnswer,
    Change,
    Changes,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leadership,
    LeadershipChange,
    Leads,
    LeaseSet,
    LogRecord,
    Member,
    MemberBeat,
    NumberIs,
    Once,
    Put,
    PutRows,
    RemoveFromSortedSet,
    ScoreIs,
    ShardKeys,
    Stamp,
    SweepPermit,
    left_entry,
    log_position,
    number,
    split_changes,
)

_LEADER_KEPT_S: Final = 86_400.0
#: The sort key of a free shard is its epoch times this number, plus its start.
_EPOCH_ROWS: Final = 1 << 32
_SWEEP_LIMIT: Final = 1000
#: Seconds for which the changes of a lease set are kept.
_CHANGES_S: Final = 60.0


class MemoryStore:
    """Has the methods of `RedisStore`. Safe to use from several threads.

    Args:
        clock: returns seconds since 1970; tests pass their own.
        url: URL for messages.

    Attributes:
        lock: held by each method while it reads or changes values.
    """

    _named: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, clock: Callable[[], float] = time.time, url: str = "memory://") -> None:
        self.url = url
        self._clock = clock
        self.lock = threading.RLock()
        self._values: dict[str, Any] = {}
        self._expires_s: dict[str, float] = {}
        self.registry_id = secrets.token_hex(20)
        self.leases = MemoryLeases(self)

    @classmethod
    def shared(cls, url: str, clock: Callable[[], float] = time.time) -> MemoryStore:
        """Return the store named `url` of this process; create it with `clock` if it is new."""
        return cls._named.setdefault(url, cls(clock, url))

    def now_s(self) -> float:
        """Return the clock's time in seconds."""
        return self._clock()

    def time_ms(self) -> int:
        return int(self.now_s() * 1000)

    def server_info(self) -> dict[str, str]:
        return {}

    def check_writes(self) -> bool:
        self.now_s()  # raises while a test simulates an outage
        return True

    def close(self) -> None:
        """Do nothing: the content is shared by name."""

    # --- values, with the lock held

    def value(self, key: str, empty: Callable[[], Any] = dict) -> Any:
        """Return the value of a key; if there is none, store an empty one."""
        self._expire(key)
        return self._values.setdefault(key, empty())

    def peek(self, key: str) -> Any:
        """Return the value of a key; if there is none, an empty one that is not stored."""
        self._expire(key)
        return self._values.get(key, {})

    def holds(self, key: str) -> bool:
        self._expire(key)
        return bool(self._values.get(key))

    def delete(self, key: str) -> None:
        self._values.pop(key, None)
        self._expires_s.pop(key, None)

    def keep(self, key: str, seconds: float, *, extend: bool = False) -> None:
        """Let a key expire after `seconds`; with `extend`, not before its current expiry."""
        if self.holds(key):
            former_s = self._expires_s.get(key, 0.0) if extend else 0.0
            self._expires_s[key] = max(former_s, self._clock() + seconds)

    def _expire(self, key: str) -> None:
        if self._expires_s.get(key, math.inf) <= self.now_s():
            self.delete(key)

    # --- leadership

    def lead(
        self,
        key: str,
        holder: str,
        ttl_s: float,
        *,
        keep_s: Mapping[str, float] | None = None,
        facts: str = "",
        with_registry_id: bool = False,
    ) -> Leadership:
        registry_id = self.registry_id if with_registry_id else ""
        with self.lock:
            now_ms, document = self.time_ms(), self.value(key)
            leader, token = self._leader(key)
            if leader not in ("", holder):
                return Leadership(leader, token, "", registry_id, now_ms)
            change: LeadershipChange = "kept" if leader else "gained" if token else "first"
            if not leader:
                token = max(now_ms, token + 1)
            until_s = self.now_s() + ttl_s
            document.update(holder=holder, token=str(token), until_s=repr(until_s), facts=facts)
            self.keep(key, _LEADER_KEPT_S)
            for kept, seconds in (keep_s or {}).items():
                self.keep(kept, seconds)
            return Leadership(holder, token, change, registry_id, now_ms)

    def leader(self, key: str) -> Leadership | None:
        with self.lock:
            holder, token = self._leader(key)
            if not holder:
                return None
            document = self.value(key)
            left_s = float(document["until_s"]) - self.now_s()
            return Leadership(
                holder, token, time_ms=self.time_ms(), facts=document["facts"], expires_in_s=left_s
            )

    def resign(self, key: str, holder: str) -> bool:
        with self.lock:
            if self._leader(key)[0] != holder:
                return False
            self.value(key)["until_s"] = "0"
            return True

    def _leader(self, key: str) -> tuple[str, int]:
        document = self.value(key)
        leads = float(document.get("until_s", 0)) > self.now_s()
        return document["holder"] if leads else "", number(document.get("token", ""))

    # --- documents

    def read(self, *keys: str) -> list[dict[str, str]]:
        with self.lock:
            return [dict(self.peek(key)) for key in keys]

    def fields(self, key: str, names: Sequence[str]) -> list[str | None]:
        with self.lock:
            document = self.peek(key)
            return [document.get(name) for name in names]

    def changed_rows(
        self, key: str, changes_key: str, since: tuple[int, int] | None
    ) -> tuple[bool, tuple[int, int], dict[str, str]]:
        with self.lock:
            rows = self.value(key)
            version = number(rows.get("=term", "")), number(rows.get("=counter", ""))
            floor = number(rows.get("=floor", ""))
            if since is None or since[0] != version[0] or not floor <= since[1] <= version[1]:
                return True, version, dict(rows)
            changed = [row for row, at in self.value(changes_key).items() if at > since[1]]
            return False, version, {row: rows.get(row, "") for row in changed}

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> int:
        with self.lock:
            for position, condition in enumerate(conditions, 1):
                if isinstance(condition, Once):
                    if self.value(condition.key).get("=write") == condition.id:
                        return 0
                    changes = [Put(condition.key, {"=write": condition.id}), *changes]
                elif not self._applies(condition):
                    return position
            for change in changes:
                self._make(change)
            return 0

    def _applies(self, condition: Leads | FieldIs | NumberIs | ScoreIs) -> bool:
        match condition:
            case Leads(key, holder, token):
                return bool(holder) and self._leader(key) == (holder, token)
            case NumberIs(key, field, value):
                return number(self.value(key).get(field, "")) == value
            case ScoreIs(key, member, score):
                return bool(self.value(key).get(member) == score)
            case FieldIs(key, field, text):
                return bool(self.value(key).get(field, "") == text)

    def _make(self, change: Change) -> None:
        match change:
            case Put(key, fields):
                _put(self.value(key), fields)
            case Stamp(key, field):
                self.value(key)[field] = str(self.time_ms())
            case PutRows(key, changes_key, counter, kept, rows):
                _put(self.value(key), rows)
                changed = self.value(changes_key)
                changed.update(dict.fromkeys(rows, counter))
                by_age = sorted(changed, key=lambda row: (changed[row], row))
                for row in by_age[: max(0, len(changed) - kept)]:
                    self.value(key)["=floor"] = str(changed.pop(row))
            case Delete(keys):
                for key in keys:
                    self.delete(key)
            case AddToSortedSet(key, members):
                self.value(key).update(members)
            case RemoveFromSortedSet(key, names):
                for name in names:
                    self.value(key).pop(name, None)
            case Append():
                self.append(change)
            case Keep(keys, seconds):
                for key in keys:
                    self.keep(key, seconds)

    # --- logs and recently used names

    def log(self, key: str, after: str = "", count: int = 0, last: int = 0) -> list[LogRecord]:
        start = log_position(after)
        with self.lock:
            records = [record for record in self.peek(key) if log_position(record.id) > start]
        return records[-last:] if last else records[:count] if count else records

    def append(self, entry: Append) -> str:
        with self.lock:
            log: list[LogRecord] = self.value(entry.key, list)
            last_ms, count = log_position(log[-1].id) if log else (0, 0)
            now_ms = self.time_ms()
            position = (now_ms, 0) if now_ms > last_ms else (last_ms, count + 1)
            log.append(LogRecord(f"{position[0]}-{position[1]}", dict(entry.fields)))
            del log[: -entry.kept]
            self.keep(entry.key, entry.keep_s)
            return log[-1].id

    def record_use(self, key: str, name: str, keep_s: float | None = None) -> None:
        with self.lock:
            uses = self.value(key)
            uses[name] = now_ms = self.time_ms()
            if keep_s is not None:
                oldest_ms = now_ms - keep_s * 1000
                for old in [used for used, at_ms in uses.items() if at_ms < oldest_ms]:
                    del uses[old]

    def used_names(self, key: str, since_ms: int | None = None) -> list[str]:
        with self.lock:
            uses = self.peek(key).items()
            return sorted(name for name, at_ms in uses if since_ms is None or at_ms >= since_ms)

    def forget(self, key: str, name: str, age_s: float) -> None:
        with self.lock:
            at_ms = self.value(key).get(name)
            if at_ms is not None and abs(self.time_ms() - at_ms) > age_s * 1000:
                del self.value(key)[name]

    def exist(self, keys: Sequence[str]) -> list[bool]:
        with self.lock:
            return [self.holds(key) for key in keys]

    def lease_shard(
        self,
        keys: ShardKeys,
        generation: int,
        epoch: int,
        rank: int,
        request_number: int | None,
        max_rows: int | None,
        keep_s: float,
    ) -> tuple[int, int] | str | None:
        with self.lock:
            current: str = self.value(keys.generation).get("number", "")
            if current != str(generation) or str(epoch) not in self.peek(keys.filled):
                return current
            free, leased = self.value(keys.free), self.value(keys.leased)
            last_number, _, answer = leased.get(f"={rank}", "0").partition(" ")
            if request_number is not None and request_number <= int(last_number):
                return _bounds(answer)
            if request_number is not None and request_number > int(last_number) + 1:
                return current
            first = epoch * _EPOCH_ROWS
            end = first + _EPOCH_ROWS
            in_epoch = [shard for shard, sort_key in free.items() if first <= sort_key < end]
            if not in_epoch:
                return None
            shard = min(in_epoch, key=lambda one: free[one])
            del free[shard]
            start, stop = _bounds(shard)
            if max_rows and stop - start > max_rows:
                free[f"{epoch}:{start + max_rows}:{stop}"] = first + start + max_rows
                stop = start + max_rows
                shard = f"{epoch}:{start}:{stop}"
            if request_number is not None:
                leased[f"={rank}"] = f"{request_number} {shard}"
            self.keep(keys.leased, keep_s)
            return start, stop


def _put(document: dict[str, str], fields: Mapping[str, str | int | None]) -> None:
    for name, value in fields.items():
        document.pop(name, None)
        if value not in (None, ""):
            document[name] = str(value)


def _bounds(shard: str) -> tuple[int, int]:
    _, start, stop = shard.split(":")
    return int(start), int(stop)


class MemoryLeases:
    """Has the methods of `RedisLeases`; keeps its values in a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._number = 0

    def register(
        self, leases: LeaseSet, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> bool:
        with self._store.lock:
            key, deadlines = leases.facts + member, self._deadlines(leases)
            stored = dict(self._store.peek(key))
            incarnation = int(facts["incarnation"])
            if stored and incarnation < int(stored["incarnation"]):
                return False
            values = {**facts, "incarnation": str(incarnation)}
            if not leases.changes:
                values["joined"] = str(self._next_number())
            else:
                if DRAIN in stored and int(stored["incarnation"]) == incarnation:
                    values.setdefault(DRAIN, stored[DRAIN])
                self._store.value(leases.changes).pop(left_entry(member), None)
            self._store.delete(key)
            self._store.value(key).update(values)
            self._renew(leases, member, deadlines, ttl_s)
            self._note(leases, member)
            return True

    def beat(self, leases: LeaseSet, beat: MemberBeat, ttl_s: float) -> BeatAnswer:
        with self._store.lock:
            deadlines = self._deadlines(leases)
            stored = self._store.peek(leases.facts + beat.member)
            if beat.member not in deadlines or not stored:
                return BeatAnswer.UNKNOWN
            if stored["incarnation"] != str(beat.incarnation):
                return BeatAnswer.SUPERSEDED
            stored.update({**beat.facts, "incarnation": stored["incarnation"]})
            late = deadlines[beat.member] <= self._store.now_s()
            self._renew(leases, beat.member, deadlines, ttl_s)
            if beat.notify or late:
                self._note(leases, beat.member)
            return BeatAnswer.DRAIN if stored.get(DRAIN) == "1" else BeatAnswer.KEPT

    def beat_many(
        self, beats: Sequence[tuple[LeaseSet, MemberBeat]], ttl_s: float
    ) -> list[BeatAnswer]:
        return [self.beat(leases, beat, ttl_s) for leases, beat in beats]

    def leave(self, leases: LeaseSet, member: str, incarnation: int | None = None) -> bool:
        with self._store.lock:
            deadlines, stored = self._deadlines(leases), self._store.peek(leases.facts + member)
            if stored and incarnation is not None and stored["incarnation"] != str(incarnation):
                return False
            if deadlines.pop(member, None) is None and not stored:
                return False
            self._store.delete(leases.facts + member)
            if leases.changes:
                self._store.value(leases.changes).pop(member, None)
                self._note(leases, left_entry(member))
            return True

    def request_drain(self, leases: LeaseSet, member: str) -> bool:
        with self._store.lock:
            stored = self._store.peek(leases.facts + member)
            if member not in self._deadlines(leases) or not stored:
                return False
            stored.update({DRAIN: "1", "state": "draining"})
            self._note(leases, member)
            return True

    def members(self, leases: LeaseSet) -> list[Member]:
        with self._store.lock:
            known = self.read(leases, sorted(self._deadlines(leases)))
            return [member for member in known if member.remaining_s > 0]

    def read(self, leases: LeaseSet, names: Sequence[str]) -> list[Member]:
        with self._store.lock:
            now_s, deadlines = self._store.now_s(), self._deadlines(leases)
            return [
                Member(name, dict(facts), deadlines.get(name, now_s) - now_s)
                for name in names
                if (facts := self._store.peek(leases.facts + name))
            ]

    def names(self, leases: LeaseSet) -> set[str]:
        with self._store.lock:
            return set(self._deadlines(leases))

    def changes(self, leases: LeaseSet, cursor: int = 0) -> Changes:
        with self._store.lock:
            now_s, deadlines = self._store.now_s(), self._deadlines(leases)
            after, full = cursor or (now_s - _CHANGES_S) * 1e6, cursor == 0
            noted = self._store.value(leases.changes)
            new = sorted((at_us, name) for name, at_us in noted.items() if at_us > after)
            names, left = split_changes(name for _, name in new)
            members = self.members(leases) if full else self.read(leases, names)
            present = {member.member for member in members} if full else set(deadlines)
            return Changes(
                max([cursor, *noted.values()]) or int(now_s * 1e6),
                tuple(member for member in members if member.member in deadlines),
                tuple(left),
                tuple(name for name in names if name not in present),
                full,
                due_s=min(deadlines.values(), default=math.inf) - now_s,
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
        """Return the deadlines of the set. Delete expired members of a set that is not followed."""
        deadlines: dict[str, float] = self._store.value(leases.deadlines)
        if not leases.changes:
            now_s = self._store.now_s()
            for name in [name for name, at in deadlines.items() if at <= now_s]:
                del deadlines[name]
                self._store.delete(leases.facts + name)
        return deadlines

    def _renew(
        self, leases: LeaseSet, member: str, deadlines: dict[str, float], ttl_s: float
    ) -> None:
        deadlines[member] = self._store.now_s() + ttl_s
        self._store.keep(leases.facts + member, FACTS_TTLS * ttl_s)
        self._store.keep(leases.deadlines, FACTS_TTLS * ttl_s, extend=True)

    def _note(self, leases: LeaseSet, member: str) -> None:
        if not leases.changes:
            return
        noted = self._store.value(leases.changes)
        noted[member] = self._next_number()
        oldest_us = (self._store.now_s() - _CHANGES_S) * 1e6
        if len(noted) > 2 * len(self._deadlines(leases)) + 16:
            for name in [name for name, at in noted.items() if at <= oldest_us]:
                del noted[name]

    def _next_number(self) -> int:
        self._number = max(int(self._store.now_s() * 1e6), self._number + 1)
        return self._number
