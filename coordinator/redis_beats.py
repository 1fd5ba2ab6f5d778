"""Beginning, prolonging and ending leases on Redis: what members do themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import LeaseSuperseded
from . import keys
from .noted import concerns_managers
from .records import Beat, Kind, MemberBeat
from .redis_session import Call, RedisSession

#: Seconds, in TTLs, after a whole beat during which plain ones do: of three beats, one is whole.
PLAIN_TTLS: Final = 0.85

_CHUNK: Final = 500  # scripts per pipeline: Redis serves others in between
_BARE: Final = 4  # arguments of a beat without facts


@dataclass(frozen=True, slots=True)
class _Whole:
    """The last beat of a member that was a whole one.

    Attributes:
        incarnation: whose.
        redis_ms: Redis's clock then.
        at_s: ours, when the answer had come: never earlier than that, so that a deadline made of
            both is never too late.
    """

    incarnation: int
    redis_ms: int
    at_s: float


class RedisBeats(RedisSession):
    """See `Registry`: its part that members use.

    Beats are the bulk of what Redis does, and a script costs it three times what a plain command
    does. So of the beats that have nothing to tell, those within one TTL of a whole one are plain:
    a ZADD of a deadline that we know from Redis's own clock, as the whole one told it. It only
    raises a deadline that stands (XX, GT): whatever is not as we think (no lease, a clock that
    jumped, a drain that was asked for) makes the next beat a whole one at once. That another
    incarnation took the name is seen by the next whole beat, within one TTL.
    """

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        super().__init__(url, timeout_s)
        self._whole: dict[str, _Whole] = {}

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        if self.register_many(kind, service, {member: facts}, ttl_s):
            raise LeaseSuperseded(
                f"a newer incarnation of {member} than {facts['incarnation']} is registered in "
                f"{service or 'the mesh'}"
            )

    def register_many(
        self, kind: Kind, service: str, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        calls = [
            register_call(kind, service, member, facts, _ms(ttl_s))
            for member, facts in members.items()
        ]
        if kind != "managers" and members:
            self._name_service(service)
        won = self._run_all("register", calls)
        return [member for member, one in zip(members, won, strict=True) if not one]

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
        one = MemberBeat(member, incarnation, facts or {}, concerns)
        call = beat_call(kind, service, one, _ms(ttl_s))
        if len(call.args) == _BARE and not concerns and self._beat_plainly(call, one, ttl_s):
            return Beat.KEPT
        code, now_ms = self._run("beat", call.keys, *call.args)
        self._remember(call, one, code, now_ms)
        return Beat(code)

    def _beat_plainly(self, call: Call, one: MemberBeat, ttl_s: float) -> bool:
        last, now = self._whole.get(call.keys[1]), time.monotonic()
        if last is None or last.incarnation != one.incarnation:
            return False
        if not 0 <= now - last.at_s < ttl_s * PLAIN_TTLS:
            return False
        deadline = last.redis_ms + round((now - last.at_s + ttl_s) * 1000)
        with self._translated():
            command = plain_beat(call.keys[0], one.member, deadline)
            client: Any = self._redis
            return bool(client.execute_command(*command) == 1)

    def _remember(self, call: Call, one: MemberBeat, code: int, now_ms: int) -> None:
        if code == Beat.KEPT:
            self._whole[call.keys[1]] = _Whole(one.incarnation, now_ms, time.monotonic())
        else:
            self._whole.pop(call.keys[1], None)

    def beat_many(
        self, kind: Kind, service: str, beats: Sequence[MemberBeat], ttl_s: float
    ) -> list[Beat]:
        calls = [beat_call(kind, service, one, _ms(ttl_s)) for one in beats]
        return [Beat(code) for code, _ in self._run_all("beat", calls)]

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        its = where(kind, service, member)
        self._whole.pop(its[1], None)
        return bool(self._run("leave", its, member, "" if incarnation is None else incarnation))

    def _run_all(self, name: str, calls: Sequence[Call]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(calls), _CHUNK):
            answers += self._run_many(name, calls[start : start + _CHUNK])
        return answers

    def _name_service(self, service: str) -> None:
        """Remember the name of a service; by a plain command, so that a user may do just this."""
        with self._translated():
            seconds, micros = self._redis.time()
            now_ms = int(seconds) * 1000 + int(micros) // 1000
            self._redis.zadd(keys.SERVICES, {keys.check_service(service): now_ms})


def register_call(
    kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_ms: int
) -> Call:
    """The script `register` for one member; `facts` hold `incarnation`."""
    rest = dict(facts)
    incarnation = int(rest.pop("incarnation"))
    return Call(where(kind, service, member), [member, ttl_ms, incarnation, *_flat(rest)])


def beat_call(kind: Kind, service: str, one: MemberBeat, ttl_ms: int) -> Call:
    """The script `beat` for one member: a whole beat."""
    changed = {name: value for name, value in one.facts.items() if name != "incarnation"}
    concerns = concerns_managers(kind, changed) if one.concerns is None else one.concerns
    flags: list[str | int] = [one.member, ttl_ms, one.incarnation, int(concerns)]
    return Call(where(kind, service, one.member), [*flags, *_flat(changed)])


def plain_beat(leases: str, member: str, deadline_ms: int) -> tuple[str | int, ...]:
    """The command of a plain beat: 1 when it raised a deadline that stands, else 0."""
    return "ZADD", leases, "XX", "GT", "CH", deadline_ms, member


def where(kind: Kind, service: str, member: str) -> list[str]:
    """The keys of a member's scripts: deadlines, its facts, changes."""
    return [
        keys.leases(kind, service),
        keys.facts(kind, service, member),
        keys.changes(kind, service),
    ]


def _flat(facts: Mapping[str, str]) -> list[str]:
    return [part for pair in facts.items() for part in pair]


def _ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))
