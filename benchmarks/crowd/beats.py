"""What a simulated teacher says to Redis: the scripts and commands of a real one."""

from __future__ import annotations

import random
import time
from typing import Final, Self

from ...coordinator import keys
from ...coordinator.records import MemberBeat
from ...coordinator.redis_beats import PLAIN_TTLS, beat_call, plain_beat, register_call
from ...coordinator.redis_session import Call, script
from .probed import INCARNATION, KEY
from .resp import Connection, command, integers, text

#: Samples per second of the kinds of teachers in the crowd; a new one for each name, by its hash.
SPEEDS: Final = (20.0, 20.0, 80.0)
_SLOTS: Final = 4


class Wire:
    """Registers and beats for any name, over whichever connection is next."""

    def __init__(
        self, connections: list[Connection], service: str, ttl_s: float, address: str
    ) -> None:
        self._connections = connections
        self._service = service
        self._ttl_s = ttl_s
        self._whole: dict[str, tuple[float, int]] = {}  # name -> our clock and Redis's, then
        self._address = address
        self._turn = 0
        self._rng = random.Random(0)

    @classmethod
    async def open(
        cls, connections: list[Connection], service: str, ttl_s: float, address: str
    ) -> Self:
        """Make the scripts known to Redis, and the service."""
        for name in ("register", "beat"):
            text(await connections[0].send(command("SCRIPT", "LOAD", script(name)[0])))
        integers(await connections[0].send(command("ZADD", keys.SERVICES, 1, service)))
        return cls(connections, service, ttl_s, address)

    async def register(self, name: str) -> None:
        """Begin the lease of a teacher, with the facts of a real one."""
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
        ttl_ms = round(self._ttl_s * 1000)
        call = register_call("teachers", self._service, name, facts, ttl_ms)
        await self._run("register", call)

    async def beat(self, name: str) -> None:
        """Prolong it, as `RedisBeats` does: of a few beats one is a script, the others a command.

        With the script a teacher at work tells how much it works.
        """
        at_s, redis_ms = self._whole.get(name, (-self._ttl_s, 0))
        elapsed_s = time.monotonic() - at_s
        if elapsed_s < self._ttl_s * PLAIN_TTLS:
            deadline_ms = redis_ms + round((elapsed_s + self._ttl_s) * 1000)
            await self._send(*plain_beat(keys.leases("teachers", self._service), name, deadline_ms))
            return
        facts = {
            "in_flight": str(self._rng.randrange(_SLOTS)),
            "samples_per_second": f"{self._rng.uniform(15, 25):.4g}",
        }
        beat = MemberBeat(name, INCARNATION, facts)
        call = beat_call("teachers", self._service, beat, round(self._ttl_s * 1000))
        _, redis_ms = await self._run("beat", call)
        self._whole[name] = time.monotonic(), redis_ms

    async def _run(self, name: str, call: Call) -> list[int]:
        return await self._send("EVALSHA", script(name)[1], len(call.keys), *call.keys, *call.args)

    async def _send(self, *words: object) -> list[int]:
        self._turn = (self._turn + 1) % len(self._connections)
        found = integers(await self._connections[self._turn].send(command(*words)))
        if found[0] == 0:
            raise RuntimeError("a lease of the crowd is not there any more: its beats came late")
        return found
