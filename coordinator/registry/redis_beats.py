"""Beginning, prolonging and ending leases on Redis: what members do themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...errors import LeaseSuperseded
from . import FACTS_TTLS, PLAIN_TTLS, keys
from .noted import are_volatile, concerns_managers
from .records import DRAIN, Beat, Kind, MemberBeat
from .redis_session import Call, RedisSession

#: After a silence of so many TTLs a member asks by the script: meanwhile another may have its name.
_SILENCE_TTLS: Final = 0.45

_CHUNK: Final = 500  # scripts per pipeline: Redis serves others in between


@dataclass(frozen=True, slots=True)
class _Whole:
    """The last beat of a member that was a whole one.

    Attributes:
        incarnation: whose.
        redis_ms: Redis's clock then.
        at_s: ours, when the answer had come: never earlier than that, so that a deadline made of
            both is never too late.
        beat_s: ours, when it beat last, wholly or plainly.
    """

    incarnation: int
    redis_ms: int
    at_s: float
    beat_s: float


class RedisBeats(RedisSession):
    """See `Registry`: its part that members use.

    Beats are the bulk of what Redis does, and a script costs it several times what a command does.
    So a script is only for what managers are to hear of. Of the other beats, those within two TTLs
    of a whole one are plain: a ZADD of a deadline that we know from Redis's own clock, as the whole
    one told it. It only raises a deadline that stands (XX, GT): whatever is not as we think (no
    lease, a clock that jumped, a drain that was asked for, another incarnation that took the name)
    fails it, and a script finds out at once; where something is to be told, the deadline is raised
    for that. Who was silent for longer than between two beats asks by the script, too. Now and then
    the ZADD is sent with commands that tell how a teacher works, keep its facts alive, and read the
    clock and who holds the name: a whole beat too.
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
        for call in calls:  # the new deadline hides a drain from plain beats: ask by the script
            self._whole.pop(call.keys[1], None)
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
        if are_volatile(one.facts) and not concerns:
            done = self._beat_by_commands(call, one, ttl_s)
            if done is not None:
                return done
        code, now_ms = self._run("beat", call.keys, *call.args)
        self._remember(call, one, code, now_ms)
        return Beat(code)

    def _beat_by_commands(self, call: Call, one: MemberBeat, ttl_s: float) -> Beat | None:
        """A beat without a script; None: something is not as we thought, so it needs one."""
        last, now = self._whole.get(call.keys[1]), time.monotonic()
        if last is None or last.incarnation != one.incarnation:
            return None
        if not 0 <= now - last.beat_s < ttl_s * _SILENCE_TTLS:
            return None
        deadline_ms = last.redis_ms + round((now - last.at_s + ttl_s) * 1000)
        client: Any = self._redis
        if not one.facts and now - last.at_s < ttl_s * PLAIN_TTLS:
            with self._translated():
                moved = client.execute_command(*plain_beat(call.keys[0], one.member, deadline_ms))
            self._whole[call.keys[1]] = replace(last, beat_s=now)
            return Beat.KEPT if moved == 1 else None
        with self._translated(), client.pipeline(transaction=False) as pipe:
            for command in whole_beat(call, one, deadline_ms, _ms(ttl_s)):
                pipe.execute_command(*command)
            (seconds, micros), held, moved, left_ms, *_ = pipe.execute()
            if moved != 1 or held != [str(one.incarnation), None]:
                return None
            if left_ms < (FACTS_TTLS - 1) * _ms(ttl_s):
                client.pexpire(call.keys[0], FACTS_TTLS * _ms(ttl_s))
        self._remember(call, one, Beat.KEPT, int(seconds) * 1000 + int(micros) // 1000)
        return Beat.KEPT

    def _remember(self, call: Call, one: MemberBeat, code: int, now_ms: int) -> None:
        if code == Beat.KEPT:
            now = time.monotonic()
            self._whole[call.keys[1]] = _Whole(one.incarnation, now_ms, now, now)
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
    """The script `beat` for one member."""
    changed = {name: value for name, value in one.facts.items() if name != "incarnation"}
    concerns = concerns_managers(kind, changed) if one.concerns is None else one.concerns
    flags: list[str | int] = [one.member, ttl_ms, one.incarnation, int(concerns)]
    return Call(where(kind, service, one.member), [*flags, *_flat(changed)])


def plain_beat(leases: str, member: str, deadline_ms: int) -> tuple[str | int, ...]:
    """The command of a plain beat: 1 when it raised a deadline that stands, else 0."""
    return "ZADD", leases, "XX", "GT", "CH", deadline_ms, member


def whole_beat(
    call: Call, one: MemberBeat, deadline_ms: int, ttl_ms: int
) -> list[tuple[str | int, ...]]:
    """The commands of a whole beat that is no script, in one packet.

    Their answers: Redis's time; incarnation and `drain`; 1 when a deadline that stands was raised;
    how long the deadlines are kept, in ms; and two that do not matter.
    """
    leases, facts, _ = call.keys
    told = [("HSET", facts, *_flat(one.facts))] if one.facts else []
    return [
        ("TIME",),
        ("HMGET", facts, "incarnation", DRAIN),
        plain_beat(leases, one.member, deadline_ms),
        ("PTTL", leases),
        *told,
        ("PEXPIRE", facts, FACTS_TTLS * ttl_ms),
    ]


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
