"""Thousands of simulated teachers that register, send heartbeats, answer probes, die and join.

Each heartbeat is sent in its own packet, as if from its own machine. Heartbeats are spread over
their period and over a hundred connections. Times are those of the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import Any, Final
from urllib.parse import urlsplit

import grpc

from ...proto import inference_pb2 as pb
from ...proto.channel import Channel
from ...proto.security import instance
from ...scheduler.leadership import BEATS_PER_TTL
from . import Phases
from .registry_client import INCARNATION, KEY, RegistryClient
from .resp import RespConnection

CONNECTIONS: Final = 100
_PROBED: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_CONCURRENT_REGISTRATIONS: Final = 64
_TICK_S: Final = 0.001


@dataclass
class TeacherLoadStats:
    """Times of events, in monotonic seconds, and figures of heartbeats."""

    died: dict[str, float] = field(default_factory=dict)  # teacher -> its last heartbeat
    joined: dict[str, float] = field(default_factory=dict)  # teacher -> its registration
    beats: int = 0
    late_s: float = 0.0  # greatest delay of a heartbeat


class ProbeServer:
    """A gRPC server at one address that proves the identity of any teacher that a probe names."""

    def __init__(self) -> None:
        self._server = grpc.aio.server()
        answer = grpc.unary_unary_rpc_method_handler(_server_metadata)
        methods = {"ServerMetadata": answer}
        handler = grpc.method_handlers_generic_handler(_PROBED, methods)
        self._server.add_generic_rpc_handlers((handler,))

    async def start(self) -> str:
        """Listen on loopback; return the address."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._server.stop(0.5)


async def _server_metadata(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
    proof = instance.prove(
        KEY, metadata.get("edl-instance", ""), INCARNATION, metadata.get("edl-challenge", "")
    )
    context.set_trailing_metadata((("edl-proof", proof), ("edl-incarnation", str(INCARNATION))))
    return pb.ServerMetadataResponse(name="crowd").SerializeToString()


class SimulatedTeachers:
    """All teachers of one process.

    One task sends all heartbeats: a task for each teacher would cost more than Redis itself.
    """

    def __init__(self, registry: RegistryClient, ttl_s: float, rng: random.Random) -> None:
        self.stats = TeacherLoadStats()
        self._registry = registry
        self._beat_s = ttl_s / BEATS_PER_TTL
        self._rng = rng
        self._last_beat: dict[str, float] = {}  # of live teachers
        self._due: list[tuple[float, str]] = []  # a heap

    async def join_all(self, names: list[str]) -> None:
        """Register these teachers; their heartbeats start."""
        for start in range(0, len(names), _CONCURRENT_REGISTRATIONS):
            await asyncio.gather(*map(self.join, names[start : start + _CONCURRENT_REGISTRATIONS]))

    async def join(self, name: str) -> None:
        """Register one teacher; its heartbeats start at a random time of the first period."""
        now = self.stats.joined[name] = time.monotonic()
        await self._registry.register(name)
        self._last_beat[name] = now
        heappush(self._due, (now + self._beat_s * self._rng.random(), name))

    def kill(self, name: str) -> None:
        """Stop the heartbeats of a teacher."""
        self.stats.died[name] = self._last_beat.pop(name)

    async def send_heartbeats(self) -> None:
        """Send the heartbeats of live teachers when they are due, until cancelled.

        Raises:
            EdlError: a heartbeat failed.
        """
        stats, due = self.stats, self._due
        while True:
            now = time.monotonic()
            while due and due[0][0] <= now:
                at_s, name = heappop(due)
                if name not in self._last_beat:
                    continue
                now = self._last_beat[name] = time.monotonic()
                stats.late_s = max(stats.late_s, now - at_s)
                stats.beats += 1
                self._registry.beat(name)
                heappush(due, (max(at_s + self._beat_s, now), name))
            if self._registry.error is not None:
                raise self._registry.error
            await asyncio.sleep(_TICK_S)

    async def kill_some(self, count: int, span_s: float) -> None:
        """Kill `count` teachers at random times within `span_s` seconds."""
        victims = self._rng.sample(sorted(self._last_beat), count)
        for name, pause_s in zip(victims, _pauses(count, span_s, self._rng), strict=True):
            await asyncio.sleep(pause_s)
            self.kill(name)

    async def join_some(self, count: int, span_s: float) -> None:
        """Register `count` new teachers at random times within `span_s` seconds."""
        for number, pause_s in enumerate(_pauses(count, span_s, self._rng)):
            await asyncio.sleep(pause_s)
            await self.join(f"new-{number}")


def run_teachers(
    channel: Channel,
    url: str,
    service: str,
    count: int,
    ttl_s: float,
    changes: int,
    span_s: float,
) -> None:
    """Register teachers and follow the phases.

    In phase 1 `changes` teachers die at random times within `span_s` seconds, in phase 2 as many
    join. In phase 3 the process sends its figures and ends.

    Args:
        channel: its first message to the benchmark means that all teachers are registered.
        url: URL of Redis.
        service: service of the teachers.
        count: number of teachers.
        ttl_s: TTL of their leases in seconds.
        changes: number of teachers that die, and that join.
        span_s: seconds in which they die, and join.
    """
    asyncio.run(_run(channel, url, service, count, ttl_s, changes, span_s))


async def _run(
    channel: Channel,
    url: str,
    service: str,
    count: int,
    ttl_s: float,
    changes: int,
    span_s: float,
) -> None:
    phases, rng = Phases(channel), random.Random(1)
    address = urlsplit(url)
    connections = [
        await RespConnection.open(address.hostname or "127.0.0.1", address.port or 6379)
        for _ in range(CONNECTIONS)
    ]
    probed = ProbeServer()
    registry = await RegistryClient.open(connections, service, ttl_s, address=await probed.start())
    teachers = SimulatedTeachers(registry, ttl_s, rng)
    heartbeats = asyncio.create_task(teachers.send_heartbeats())
    heartbeats.add_done_callback(_exit_on_error)
    await teachers.join_all([f"teacher-{number}" for number in range(count)])
    teachers.stats.joined.clear()
    teachers.stats.beats, began_s = 0, time.monotonic()
    channel.send("ready")
    await phases.reach(1)
    await teachers.kill_some(changes, span_s)
    await phases.reach(2)
    await teachers.join_some(changes, span_s)
    await phases.reach(3)
    heartbeats.cancel()
    channel.send("stats", **asdict(teachers.stats), beating_s=time.monotonic() - began_s)
    for connection in connections:
        connection.close()
    await probed.stop()


def _exit_on_error(heartbeats: asyncio.Task[None]) -> None:
    """End the process if heartbeats failed: figures without all teachers would be wrong."""
    if not heartbeats.cancelled() and (error := heartbeats.exception()) is not None:
        sys.exit(f"{error}")


def _pauses(count: int, span_s: float, rng: random.Random) -> list[float]:
    """Return the pauses in seconds before each of `count` events at random times of a span."""
    moments = sorted(rng.uniform(0, span_s) for _ in range(count))
    return [later - earlier for earlier, later in zip([0.0, *moments], moments, strict=False)]
