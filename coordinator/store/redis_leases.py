"""Lease sets in Redis or Valkey."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from .records import (
    DRAIN,
    FACTS_TTLS,
    PLAIN_TTLS,
    BeatAnswer,
    Changes,
    LeaseSet,
    Member,
    MemberBeat,
    SweepPermit,
    is_change,
    is_member,
    split_changes,
)
from .redis_connection import CHUNK, Call, RedisConnection, is_wrong_type

#: TTLs of silence after which a member uses the script: a newer incarnation may have taken its id.
_SILENCE_TTLS: Final = 0.45
_SWEEP_LIMIT: Final = 1000
_DAY_MS: Final = 86_400_000  # the longest TTL, so the latest valid deadline


@dataclass(frozen=True, slots=True)
class _FullBeat:
    """The last full heartbeat of a member.

    Attributes:
        incarnation: incarnation of the member.
        redis_ms: Redis's clock at that heartbeat.
        at_s: our clock after its answer, so that a deadline computed from both is never too late.
        usable_until_s: time by our clock until which plain commands may renew the lease; after it,
            the member was silent for too long. Each heartbeat, full or plain, sets it anew.
    """

    incarnation: int
    redis_ms: int
    at_s: float
    usable_until_s: float


class RedisLeases:
    """Sets of members with deadlines. Each script runs as one atomic step.

    Heartbeats are most of the work of Redis, and a script costs several times as much as a command.
    So a heartbeat in a followed set runs the script only if it has facts that are not volatile, if
    managers have to see it, or if plain commands cannot renew the lease. In other sets, every
    heartbeat runs the script.

    For `PLAIN_TTLS` after a full heartbeat, further ones are plain: a ZADD of a deadline that is
    computed from Redis's clock, as the full heartbeat returned it. The ZADD only raises an existing
    deadline (XX, GT). It fails if the lease is gone, a clock jumped, a drain was requested or
    another incarnation registered, and then the script runs at once. A drain and the registration
    of another incarnation raise the deadline, which makes plain heartbeats fail. A member that was
    silent for more than one interval also uses the script. After `PLAIN_TTLS`, or to write volatile
    facts, the ZADD is sent together with commands that write the facts, extend their expiry, and
    read the clock and the incarnation: that is a full heartbeat, too.
    """

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._client = connection.client
        self._full_beats: dict[str, _FullBeat] = {}
        self._prune_at_s = 0.0

    # --- members

    def register(
        self, leases: LeaseSet, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> bool:
        """Start a lease of `ttl_s` seconds, or restart it with these facts.

        Args:
            leases: the set.
            member: id of the member.
            facts: its facts. `incarnation`, a decimal number, is required; the greatest one holds
                the id.
            ttl_s: seconds after the last heartbeat at which the lease expires.

        Returns:
            False if a greater incarnation holds the id: nothing was changed.
        """
        call = register_call(leases, member, facts, _ms(ttl_s))
        # A requested drain stays, but the deadline that it raised does not: the next heartbeat has
        # to run the script, which returns DRAIN.
        self._full_beats.pop(leases.facts + member, None)
        return bool(self._connection.run("register", call.keys, *call.args))

    def beat(self, leases: LeaseSet, beat: MemberBeat, ttl_s: float) -> BeatAnswer:
        """Renew a lease and add the changed facts."""
        return self.beat_many([(leases, beat)], ttl_s)[0]

    def beat_many(
        self, beats: Sequence[tuple[LeaseSet, MemberBeat]], ttl_s: float
    ) -> list[BeatAnswer]:
        """Renew many leases in few round trips; the answers are in the order of `beats`.

        A member gets UNKNOWN also if a key of its lease has another type; `register` then raises
        WrongKeyType.
        """
        renewed = self._beat_by_commands(beats, ttl_s)
        rest = [position for position in range(len(beats)) if position not in renewed]
        calls = [beat_call(*beats[position], _ms(ttl_s)) for position in rest]
        answers = dict.fromkeys(renewed, BeatAnswer.KEPT)
        for position, answer in zip(rest, self._connection.run_many("beat", calls), strict=True):
            code, now_ms = answer or (BeatAnswer.UNKNOWN, 0)
            answers[position] = BeatAnswer(code)
            self._remember(*beats[position], ttl_s, code, now_ms)
        return [answers[position] for position in range(len(beats))]

    def _beat_by_commands(
        self, beats: Sequence[tuple[LeaseSet, MemberBeat]], ttl_s: float
    ) -> set[int]:
        """Send the heartbeats that need no script; return the positions of those that succeeded."""
        now = time.monotonic()
        if now >= self._prune_at_s:
            self._prune_at_s = now + ttl_s
            # The copy is made atomically; other threads may add entries meanwhile.
            for key, stored in self._full_beats.copy().items():
                if now >= stored.usable_until_s:
                    self._full_beats.pop(key, None)
        batch = []
        for position, (leases, beat) in enumerate(beats):
            full = self._full_beats.get(leases.facts + beat.member)
            if full is None or now >= full.usable_until_s:
                continue
            if full.incarnation != beat.incarnation or not _may_be_plain(beat):
                continue
            deadline_ms = full.redis_ms + round((now - full.at_s + ttl_s) * 1000)
            if not beat.facts and now - full.at_s < ttl_s * PLAIN_TTLS:
                commands = [plain_beat(leases.deadlines, beat.member, deadline_ms)]
            else:
                commands = full_beat(leases, beat, deadline_ms, _ms(ttl_s))
            batch.append((position, full, deadline_ms, commands))
        if not batch:
            return set()
        renewed = set()
        with self._connection.converting_errors(), self._client.pipeline(transaction=False) as pipe:
            for *_, commands in batch:
                for command in commands:
                    pipe.execute_command(*command)
            answers = iter(pipe.execute(raise_on_error=False))
            for position, full, deadline_ms, commands in batch:
                leases, beat = beats[position]
                answer = list(islice(answers, len(commands)))
                if any(is_wrong_type(part) for part in answer):
                    continue
                if answer == [1]:
                    full = replace(full, usable_until_s=now + ttl_s * _SILENCE_TTLS)
                    self._full_beats[leases.facts + beat.member] = full
                    renewed.add(position)
                if len(answer) == 1:
                    continue
                (seconds, micros), owner, raised, expiry_ms, *_ = answer
                now_ms = int(seconds) * 1000 + int(micros) // 1000
                if raised != 1 or owner != [str(beat.incarnation), None] or deadline_ms <= now_ms:
                    continue
                if expiry_ms < (FACTS_TTLS - 1) * _ms(ttl_s):
                    self._client.pexpire(leases.deadlines, FACTS_TTLS * _ms(ttl_s))
                self._remember(leases, beat, ttl_s, BeatAnswer.KEPT, now_ms)
                renewed.add(position)
        return renewed

    def _remember(
        self, leases: LeaseSet, beat: MemberBeat, ttl_s: float, code: int, now_ms: int
    ) -> None:
        """Remember a full heartbeat of a followed set, with Redis's clock at it."""
        facts = leases.facts + beat.member
        if code == BeatAnswer.KEPT and leases.changes:
            now = time.monotonic()
            usable_until_s = now + ttl_s * _SILENCE_TTLS
            self._full_beats[facts] = _FullBeat(beat.incarnation, now_ms, now, usable_until_s)
        else:
            self._full_beats.pop(facts, None)

    def leave(self, leases: LeaseSet, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False if there is none, or another incarnation holds it."""
        keys = leases.keys_of(member)
        self._full_beats.pop(keys[1], None)
        args = member, "" if incarnation is None else incarnation
        return bool(self._connection.run("leave", keys, *args))

    # --- for managers

    def request_drain(self, leases: LeaseSet, member: str) -> bool:
        """Request a member of a followed set to drain; its next heartbeat returns DRAIN.

        Its `state` is "draining" from now on. Returns False if it has no lease.
        """
        return bool(self._connection.run("drain", leases.keys_of(member), member))

    def members(self, leases: LeaseSet) -> list[Member]:
        """Return the members whose deadline has not passed, sorted by id."""
        with self._connection.converting_errors():
            now_ms, scored = self._connection.with_server_time(
                lambda pipe: pipe.zrange(leases.deadlines, 0, -1, withscores=True)
            )
            living = [
                (member, score)
                for member, score in sorted(scored)
                if now_ms < score < now_ms + _DAY_MS and is_member(member)
            ]
            facts_of_living = self._facts(leases, [member for member, _ in living])
        return [
            Member(member, facts, (score - now_ms) / 1000)
            for (member, score), facts in zip(living, facts_of_living, strict=True)
            if facts  # else it left in between
        ]

    def read(self, leases: LeaseSet, names: Sequence[str]) -> list[Member]:
        """Return the named members that have facts, in that order, expired ones included."""
        if not names:
            return []
        with self._connection.converting_errors():
            return [member for member, _ in self._look_up(leases, names) if member.facts]

    def names(self, leases: LeaseSet) -> set[str]:
        """Return the ids of all members, expired ones included. Cheap, as it reads no facts."""
        with self._connection.converting_errors():
            return set(self._client.zrange(leases.deadlines, 0, -1))

    def changes(self, leases: LeaseSet, cursor: int = 0) -> Changes:
        """Return the changes of a followed set since `cursor`; 0: all members.

        With a cursor older than a minute, changes may be missing: start again from 0.
        """
        with self._connection.converting_errors():
            if cursor == 0:
                return self._all_members(leases)
            now_ms, due_s, noted = self._read_changes(leases, f"({cursor}")
            changed = _valid_changes(noted, now_ms)
            if not changed:
                if cursor > now_ms * 1000 and not self._has_change(leases, cursor):
                    # The clock was set back: new changes have smaller numbers.
                    return self._all_members(leases)
                return Changes(cursor, due_s=due_s)
            return replace(self._changed(leases, changed), due_s=due_s)

    def sweep(self, leases: LeaseSet, permit: SweepPermit | None = None) -> list[str]:
        """Remove expired members from a followed set, at most 1,000, and return their ids.

        Members with an invalid deadline count as expired. With a permit, none is removed after the
        permit's end, or by another Redis process than the permit's.
        """
        keys = [leases.deadlines, leases.changes]
        bounds = ("", "") if permit is None else (permit.until_ms, permit.registry_id)
        dead = self._connection.run("sweep", keys, _SWEEP_LIMIT, *bounds)
        return [name for name in dead if is_member(name)]

    def _read_changes(self, leases: LeaseSet, after: str) -> tuple[float, float, Any]:
        """Return the server time in ms, `Changes.due_s`, and changes as (entry, number)."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(leases.deadlines, 0, 0, withscores=True)
            pipe.zrange(leases.deadlines, -1, -1, withscores=True)
            pipe.zrangebyscore(leases.changes, after, "+inf", withscores=True)
            (seconds, micros), first, last, noted = pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) / 1000
        if not first:
            return now_ms, math.inf, noted
        invalid = last[0][1] >= now_ms + _DAY_MS
        return now_ms, 0.0 if invalid else (first[0][1] - now_ms) / 1000, noted

    def _has_change(self, leases: LeaseSet, cursor: int) -> bool:
        """Return whether the last change has number `cursor` or above.

        If so, all later changes get greater numbers.
        """
        last = self._client.zrange(leases.changes, -1, -1, withscores=True)
        return bool(last and last[0][1] >= cursor)

    def _all_members(self, leases: LeaseSet) -> Changes:
        # Read the changes first: a change in between is then seen twice rather than never.
        now_ms, due_s, noted = self._read_changes(leases, "-inf")
        valid = _valid_changes(noted, now_ms)
        cursor = int(max((number for _, number in valid), default=now_ms * 1000))
        members = tuple(self.members(leases))
        living = {member.member for member in members}
        registered, left = split_changes(name for name, _ in valid)
        return Changes(
            cursor,
            members,
            tuple(name for name in left if name not in living),
            tuple(name for name in registered if name not in living),
            full=True,
            due_s=due_s,
        )

    def _changed(self, leases: LeaseSet, changed: Sequence[tuple[str, float]]) -> Changes:
        names, left = split_changes(name for name, _ in changed)
        looked_up = self._look_up(leases, names) if names else []
        # A member whose facts were deleted registers again at its next full heartbeat, within two
        # TTLs.
        members = tuple(member for member, leased in looked_up if leased and member.facts)
        gone = [member.member for member, leased in looked_up if not leased]
        # The change of a member that has left since is under another name: see `leave.lua`.
        noted = self._client.zmscore(leases.changes, gone) if gone else []
        lost = [name for name, number in zip(gone, noted, strict=True) if number is not None]
        left += [name for name, number in zip(gone, noted, strict=True) if number is None]
        cursor = int(max(number for _, number in changed))
        return Changes(cursor, members, tuple(left), tuple(lost))

    def _look_up(self, leases: LeaseSet, names: Sequence[str]) -> list[tuple[Member, bool]]:
        """Return each named member, with {} for missing facts, and whether it has a lease."""
        now_ms, deadlines = self._connection.with_server_time(
            lambda pipe: pipe.zmscore(leases.deadlines, names)
        )
        return [
            (Member(name, member_facts, _remaining_s(deadline, now_ms)), deadline is not None)
            for name, deadline, member_facts in zip(
                names, deadlines, self._facts(leases, names), strict=True
            )
        ]

    def _facts(self, leases: LeaseSet, names: Sequence[str]) -> list[dict[str, str]]:
        all_facts: list[dict[str, str]] = []
        for start in range(0, len(names), CHUNK):
            with self._client.pipeline(transaction=False) as pipe:
                for name in names[start : start + CHUNK]:
                    pipe.hgetall(leases.facts + name)
                answers = pipe.execute(raise_on_error=False)
            all_facts += [{} if is_wrong_type(facts) else dict(facts) for facts in answers]
        return all_facts


def register_call(leases: LeaseSet, member: str, facts: Mapping[str, str], ttl_ms: int) -> Call:
    """Return the call of script `register` for a member; `facts` contain `incarnation`."""
    rest = {name: value for name, value in facts.items() if name != "incarnation"}
    args: list[str | int] = [member, ttl_ms, int(facts["incarnation"]), *_flat(rest)]
    return Call(leases.keys_of(member), args)


def beat_call(leases: LeaseSet, beat: MemberBeat, ttl_ms: int) -> Call:
    """Return the call of script `beat` for a member."""
    changed = {name: value for name, value in beat.facts.items() if name != "incarnation"}
    flags: list[str | int] = [beat.member, ttl_ms, beat.incarnation, int(beat.notify)]
    return Call(leases.keys_of(beat.member), [*flags, *_flat(changed)])


def _may_be_plain(beat: MemberBeat) -> bool:
    return not beat.notify and (beat.volatile or not beat.facts)


def plain_beat(deadlines: str, member: str, deadline_ms: int) -> tuple[str | int, ...]:
    """Return the command of a plain heartbeat: its answer is 1 if it raised a deadline, else 0."""
    return "ZADD", deadlines, "XX", "GT", "CH", deadline_ms, member


def full_beat(
    leases: LeaseSet, beat: MemberBeat, deadline_ms: int, ttl_ms: int
) -> list[tuple[str | int, ...]]:
    """Return the commands of a full heartbeat without a script, to be sent in one packet.

    Their answers: Redis's time; incarnation and `drain`; 1 if an existing deadline was raised;
    the expiry of the deadlines in ms; then unused ones.
    """
    deadlines, facts, _ = leases.keys_of(beat.member)
    changes = [("HSET", facts, *_flat(beat.facts))] if beat.facts else []
    return [
        ("TIME",),
        ("HMGET", facts, "incarnation", DRAIN),
        plain_beat(deadlines, beat.member, deadline_ms),
        ("PTTL", deadlines),
        *changes,
        ("PEXPIRE", facts, FACTS_TTLS * ttl_ms),
    ]


def _remaining_s(deadline_ms: float | None, now_ms: float) -> float:
    """Return the seconds until a deadline, at most a day if it is invalid; 0.0 if it is None."""
    return 0.0 if deadline_ms is None else max(-_DAY_MS, min(_DAY_MS, deadline_ms - now_ms)) / 1000


def _valid_changes(noted: Iterable[tuple[str, float]], now_ms: float) -> list[tuple[str, float]]:
    """Return the valid entries of a changes set, with their change numbers."""
    end = (now_ms + _DAY_MS) * 1000
    return [(name, number) for name, number in noted if is_change(name) and 0 < number < end]


def _flat(facts: Mapping[str, str]) -> list[str]:
    return [part for pair in facts.items() for part in pair]


def _ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))
