"""Reading leases on Redis or Valkey, and taking out the dead: what managers do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from . import keys
from .records import Changes, Kind, Mandate, Member
from .redis_beats import RedisBeats, where
from .redis_session import WRONG_TYPE

_SWEEP_LIMIT: Final = 1000
_READ_CHUNK: Final = 500  # hashes per pipelined reading, so that no single answer grows large
_FORGET_AGE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000  # what lies further ahead was written by no member of ours


class RedisLeases(RedisBeats):
    """See `Registry`: its part that is about who is alive."""

    def request_drain(self, service: str, teacher_id: str) -> bool:
        drained = where("teachers", service, teacher_id)
        return bool(self._run("drain", drained, teacher_id))

    def members(self, kind: Kind, service: str) -> list[Member]:
        with self._translated():
            now_ms, scored = self._read(
                lambda pipe: pipe.zrange(keys.leases(kind, service), 0, -1, withscores=True)
            )
            living = [
                (member, score)
                for member, score in sorted(scored)
                if now_ms < score < now_ms + _DAY_MS and keys.is_member(member)
            ]
            found = self._facts(kind, service, [member for member, _ in living])
        return [
            Member(member, facts, (score - now_ms) / 1000)
            for (member, score), facts in zip(living, found, strict=True)
            if facts  # it left in between
        ]

    def read(self, kind: Kind, service: str, names: Sequence[str]) -> list[Member]:
        if not names:
            return []
        with self._translated():
            now_ms, deadlines = self._deadlines(kind, service, names)
            found = self._facts(kind, service, names)
        return [
            Member(name, facts, 0.0 if deadline is None else (deadline - now_ms) / 1000)
            for name, deadline, facts in zip(names, deadlines, found, strict=True)
            if facts
        ]

    def names(self, kind: Kind, service: str) -> set[str]:
        with self._translated():
            names: Any = self._redis.zrange(keys.leases(kind, service), 0, -1)
        return set(names)

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        with self._translated():
            if cursor == 0:
                return self._all(kind, service)
            now_ms, due_s, found = self._noted(kind, service, f"({cursor}")
            changed = [
                (name, number)
                for name, number in found
                if keys.is_change(name) and _sane(number, now_ms)
            ]
            if not changed:
                return Changes(cursor, due_s=due_s)
            return replace(self._changed(kind, service, changed), due_s=due_s)

    def sweep(self, kind: Kind, service: str, mandate: Mandate | None = None) -> list[str]:
        its = [keys.leases(kind, service), keys.changes(kind, service)]
        bounds = ("", "") if mandate is None else (mandate.until_ms, mandate.registry_id)
        dead = self._run("sweep", its, _SWEEP_LIMIT, *bounds)
        return [name for name in dead if keys.is_member(name)]

    def services(self) -> list[str]:
        return [name for name, members, _ in self._named() if members]

    def logs(self) -> list[str]:
        return [name for name, _, events in self._named() if events]

    def _named(self) -> list[tuple[str, bool, bool]]:
        """Each service that was named, whether it has members, and whether it has a log."""
        with self._translated():
            found: Any = self._redis.zrange(keys.SERVICES, 0, -1)
            names = sorted(name for name in found if keys.is_service(name))
            with self._redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.exists(keys.leases("teachers", name), keys.leases("students", name))
                    pipe.exists(keys.events(name))
                counts = pipe.execute()
        named = [
            (name, bool(members), bool(events))
            for name, members, events in zip(names, counts[::2], counts[1::2], strict=True)
        ]
        for name, members, events in named:
            if not (members or events):
                self._run("forget", [keys.SERVICES], name, _FORGET_AGE_MS)
        return named

    def _noted(self, kind: Kind, service: str, after: str) -> tuple[float, float, Any]:
        """Server time in ms, `Changes.due_s`, and the numbers of changes, in one round trip."""
        leases = keys.leases(kind, service)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(leases, 0, 0, withscores=True)
            pipe.zrange(leases, -1, -1, withscores=True)
            pipe.zrangebyscore(keys.changes(kind, service), after, "+inf", withscores=True)
            (seconds, micros), first, last, noted = pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) / 1000
        if not first:
            return now_ms, math.inf, noted
        odd = last[0][1] >= now_ms + _DAY_MS
        return now_ms, 0.0 if odd else (first[0][1] - now_ms) / 1000, noted

    def _all(self, kind: Kind, service: str) -> Changes:
        # Reading the numbers first, a change in between is seen twice rather than never.
        now_ms, due_s, noted = self._noted(kind, service, "-inf")
        sane = [(n, at) for n, at in noted if keys.is_change(n) and _sane(at, now_ms)]
        start = int(max((at for _, at in sane), default=now_ms * 1000))
        members = tuple(self.members(kind, service))
        living = {member.member for member in members}
        there, left = keys.apart([name for name, _ in sane])
        return Changes(
            start,
            members,
            tuple(name for name in left if name not in living),
            tuple(name for name in there if name not in living),
            full=True,
            due_s=due_s,
        )

    def _changed(self, kind: Kind, service: str, changed: Sequence[tuple[str, float]]) -> Changes:
        names, left = keys.apart([name for name, _ in changed])
        members, lost = [], []
        if names:
            now_ms, deadlines = self._deadlines(kind, service, names)
            for name, deadline, facts in zip(
                names, deadlines, self._facts(kind, service, names), strict=True
            ):
                if deadline is None:
                    lost.append(name)
                # Without facts: they were taken away. Its next whole beat brings them again, up to
                # two TTLs later.
                elif facts:
                    members.append(Member(name, facts, (deadline - now_ms) / 1000))
        cursor = int(max(number for _, number in changed))
        return Changes(cursor, tuple(members), tuple(left), tuple(lost))

    def _deadlines(self, kind: Kind, service: str, names: Sequence[str]) -> tuple[float, Any]:
        return self._read(lambda pipe: pipe.zmscore(keys.leases(kind, service), names))

    def _facts(self, kind: Kind, service: str, names: Sequence[str]) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for start in range(0, len(names), _READ_CHUNK):
            with self._redis.pipeline(transaction=False) as pipe:
                for name in names[start : start + _READ_CHUNK]:
                    pipe.hgetall(keys.facts(kind, service, name))
                found += [_answered(facts) for facts in pipe.execute(raise_on_error=False)]
        return found


def _answered(facts: Any) -> dict[str, str]:
    """Facts as they were read; none where somebody put another type in their place."""
    if isinstance(facts, Exception):
        if WRONG_TYPE in str(facts):
            return {}
        raise facts
    return dict(facts)


def _sane(number: float, now_ms: float) -> bool:
    """Whether the number of a change is one that our scripts give."""
    return number < (now_ms + _DAY_MS) * 1000
