"""Registrations and heartbeats of simulated teachers, with the Redis commands of real ones."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Final, Self

from ...coordinator.registry.schema import SERVICES, lease_set
from ...coordinator.store.records import FACTS_TTLS, PLAIN_TTLS, MemberBeat
from ...coordinator.store.redis_connection import Call, script
from ...coordinator.store.redis_leases import (
    beat_call,
    full_beat,
    plain_beat,
    register_call,
)
from ...proto.security import instance
from ...runtime.errors import EdlError, RedisUnavailable
from .resp import OnReply, RespConnection, command, integers, text

#: Samples per second of the kinds of simulated teachers; each teacher is of a random kind.
SPEEDS: Final = (20.0, 20.0, 80.0)
#: Incarnation and instance key of all simulated teachers. One incarnation: each starts only once.
INCARNATION: Final = 1
KEY: Final = instance.new_key()
_SLOTS: Final = 4


class RegistryClient:
    """Registers teachers and sends their heartbeats, over several connections in turn.

    Use it in one event loop.

    Args:
        connections: open connections to Redis.
        service: service of the teachers.
        ttl_s: TTL of their leases in seconds.
        address: address of all teachers.

    Attributes:
        error: first error of a heartbeat; None: all leases are valid.
    """

    def __init__(
        self, connections: list[RespConnection], service: str, ttl_s: float, address: str
    ) -> None:
        self.error: EdlError | None = None
        self._connections = connections
        self._service = service
        self._leases = lease_set("teachers", service)
        self._ttl_ms = round(ttl_s * 1000)
        # name -> our clock in seconds and that of Redis in ms, at the latest full heartbeat
        self._full_beats: dict[str, tuple[float, int]] = {}
        self._address = address
        self._turn = 0
        self._rng = random.Random(0)

    @classmethod
    async def open(
        cls, connections: list[RespConnection], service: str, ttl_s: float, address: str
    ) -> Self:
        """Load the scripts into Redis, add the service, and return a client of it."""
        for name in ("register", "beat"):
            text(await connections[0].ask(command("SCRIPT", "LOAD", script(name)[0])))
        integers(await connections[0].ask(command("ZADD", SERVICES, 1, service)))
        return cls(connections, service, ttl_s, address)

    async def register(self, name: str) -> None:
        """Register a teacher with the facts of a real one.

        Raises:
            RedisUnavailable: Redis refused the lease or does not answer.
        """
        t_t_s = 1 / self._rng.choice(SPEEDS)
        facts = {
            "incarnation": str(INCARNATION),
            "address": self._address,
            "protocol": "oip",
            "content_id": "sha256:0123456789abcdef",
            "numerics_id": "paddle-3.3.1/fp32/8/1/avx512",
            "verified": "declared",
            "device": "cpu",
            "state": "serving",
            "slots": str(_SLOTS),
            "lanes": "1",
            "t_t_seconds": f"{t_t_s:.2g}",
            "in_flight": "0",
            "samples_per_second": "0",
            "model": self._service,
            "host": f"host-{self._rng.randrange(1000)}",
            "instance_key": KEY,
        }
        call = register_call(self._leases, name, facts, self._ttl_ms)
        reply = integers(await self._next().ask(_evalsha("register", call)))
        if reply != [1]:
            raise RedisUnavailable(f"{name} was not registered")

    def beat(self, name: str) -> None:
        """Renew the lease of a teacher as `RedisLeases` does, without waiting for the reply.

        The first heartbeat runs a script. Later full heartbeats are commands with changed facts, as
        those of a working teacher.
        """
        at_s, redis_ms = self._full_beats.get(name, (0.0, 0))
        if not redis_ms:
            call = beat_call(self._leases, MemberBeat(name, INCARNATION), self._ttl_ms)
            self._next().post(_evalsha("beat", call), partial(self._on_beat, name))
            return
        elapsed_s = time.monotonic() - at_s
        deadline_ms = redis_ms + round(elapsed_s * 1000) + self._ttl_ms
        if elapsed_s < self._ttl_ms / 1000 * PLAIN_TTLS:
            packet = command(*plain_beat(self._leases.deadlines, name, deadline_ms))
            self._next().post(packet, partial(self._on_plain_beat, name))
            return
        facts = {
            "in_flight": str(self._rng.randrange(_SLOTS)),
            "samples_per_second": f"{self._rng.uniform(15, 25):.4g}",
        }
        beat = MemberBeat(name, INCARNATION, facts)
        commands = full_beat(self._leases, beat, deadline_ms, self._ttl_ms)
        handlers: list[OnReply] = [
            partial(self._on_time, name),
            self._on_reply,
            partial(self._on_plain_beat, name),
            self._on_remaining,
            *[self._on_reply] * (len(commands) - 4),
        ]
        self._next().post(b"".join(command(*words) for words in commands), *handlers)

    def _on_beat(self, name: str, reply: bytes | RedisUnavailable) -> None:
        renewed, now_ms = self._numbers(reply, 2)
        if renewed:
            self._full_beats[name] = time.monotonic(), now_ms
        else:
            self._fail(RedisUnavailable(f"the lease of {name} expired: its heartbeats were late"))

    def _on_plain_beat(self, name: str, reply: bytes | RedisUnavailable) -> None:
        (moved,) = self._numbers(reply, 1)
        if not moved:
            self._full_beats.pop(name, None)
            self.beat(name)

    def _on_time(self, name: str, reply: bytes | RedisUnavailable) -> None:
        if isinstance(reply, RedisUnavailable):
            self._fail(reply)
        else:
            seconds, micros = (int(part) for part in reply.split(b"\r\n")[2:5:2])
            self._full_beats[name] = time.monotonic(), seconds * 1000 + micros // 1000

    def _on_remaining(self, reply: bytes | RedisUnavailable) -> None:
        (left_ms,) = self._numbers(reply, 1)
        if left_ms < (FACTS_TTLS - 1) * self._ttl_ms:
            packet = command("PEXPIRE", self._leases.deadlines, FACTS_TTLS * self._ttl_ms)
            self._next().post(packet, self._on_reply)

    def _on_reply(self, reply: bytes | RedisUnavailable) -> None:
        if isinstance(reply, RedisUnavailable):
            self._fail(reply)

    def _numbers(self, reply: bytes | RedisUnavailable, count: int) -> list[int]:
        """Return the integers of a reply; on an error, set `error` and return a list of ones."""
        try:
            if isinstance(reply, RedisUnavailable):
                raise reply
            return integers(reply)
        except RedisUnavailable as error:
            self._fail(error)
            return [1] * count

    def _fail(self, error: EdlError) -> None:
        self.error = self.error or error

    def _next(self) -> RespConnection:
        self._turn = (self._turn + 1) % len(self._connections)
        return self._connections[self._turn]


def _evalsha(name: str, call: Call) -> bytes:
    return command("EVALSHA", script(name)[1], len(call.keys), *call.keys, *call.args)
