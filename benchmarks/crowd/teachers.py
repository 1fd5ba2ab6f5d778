"""Thousands of teachers that register, beat, answer probes, die and join: `python -m` this.

Each beat is one packet, as it would be from a machine of its own. They lie evenly over the beat's
time, and go over some hundred connections.

    python -m edl.benchmarks.crowd.teachers URL SERVICE COUNT TTL_S CHANGES SPAN_S

SIGUSR1 begins the second phase, in which CHANGES of them die at random moments of SPAN_S seconds;
again, the third, in which as many new ones join; again, the end. Times are of the monotonic clock,
which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ...coordinator.heartbeat import BEATS_PER_TTL
from ...supervise import end_with_parent
from . import schedule
from .beats import Wire
from .probed import ProbedServer
from .resp import Connection

CONNECTIONS: Final = 100
#: Registrations at once, while the crowd gathers.
_GATHERING: Final = 64


@dataclass
class Figures:
    """What happened when, in monotonic seconds."""

    died: dict[str, float] = field(default_factory=dict)  # teacher -> its last beat
    joined: dict[str, float] = field(default_factory=dict)  # teacher -> its registration
    beats: int = 0
    late_s: float = 0.0  # the latest beat, behind its time


class Crowd:
    """All teachers of one process."""

    def __init__(self, wire: Wire, ttl_s: float, rng: random.Random) -> None:
        self.figures = Figures()
        self._wire = wire
        self._beat_s = ttl_s / BEATS_PER_TTL
        self._rng = rng
        self._alive: dict[str, asyncio.Task[None]] = {}
        self._last_beat: dict[str, float] = {}

    async def gather(self, names: list[str]) -> None:
        """Register all, and let each beat from then on."""
        for start in range(0, len(names), _GATHERING):
            await asyncio.gather(*map(self.join, names[start : start + _GATHERING]))

    async def join(self, name: str) -> None:
        """One registers and begins to beat."""
        self.figures.joined[name] = time.monotonic()
        await self._wire.register(name)
        self._alive[name] = asyncio.create_task(self._live(name))

    def kill(self, name: str) -> None:
        """One says nothing any more."""
        self._alive.pop(name).cancel()
        self.figures.died[name] = self._last_beat[name]

    async def _live(self, name: str) -> None:
        due = time.monotonic() + self._beat_s * self._rng.random()
        self._last_beat[name] = self.figures.joined[name]
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = self._last_beat[name] = time.monotonic()
            self.figures.late_s = max(self.figures.late_s, now - due)
            self.figures.beats += 1
            await self._wire.beat(name)
            due = max(due + self._beat_s, now)

    async def kill_some(self, count: int, span_s: float) -> None:
        """So many die, at random moments of `span_s` seconds."""
        victims = self._rng.sample(sorted(self._alive), count)
        for name, pause_s in zip(victims, _pauses(count, span_s, self._rng), strict=True):
            await asyncio.sleep(pause_s)
            self.kill(name)

    async def join_some(self, count: int, span_s: float) -> None:
        """So many come, at random moments of `span_s` seconds."""
        for number, pause_s in enumerate(_pauses(count, span_s, self._rng)):
            await asyncio.sleep(pause_s)
            await self.join(f"new-{number}")

    def stop(self) -> None:
        for life in self._alive.values():
            life.cancel()


async def main(
    url: str, service: str, count: int, ttl_s: float, changes: int, span_s: float
) -> None:
    """Gather, and follow the schedule."""
    phases, rng = schedule.Phases(), random.Random(1)
    where = urlsplit(url)
    connections = [
        await Connection.open(where.hostname or "127.0.0.1", where.port or 6379)
        for _ in range(CONNECTIONS)
    ]
    probed = ProbedServer()
    wire = await Wire.open(connections, service, ttl_s, address=await probed.start())
    crowd = Crowd(wire, ttl_s, rng)
    await crowd.gather([f"teacher-{number}" for number in range(count)])
    crowd.figures.joined.clear()
    crowd.figures.beats, began = 0, time.monotonic()
    schedule.ready()
    await phases.reach(1)
    await crowd.kill_some(changes, span_s)
    await phases.reach(2)
    await crowd.join_some(changes, span_s)
    await phases.reach(3)
    crowd.stop()
    figures = crowd.figures
    schedule.tell(
        {
            "died": figures.died,
            "joined": figures.joined,
            "beats": figures.beats,
            "beating_s": time.monotonic() - began,
            "late_s": figures.late_s,
        }
    )
    for connection in connections:
        connection.close()
    await probed.stop()


def _pauses(count: int, span_s: float, rng: random.Random) -> list[float]:
    """Between events at random moments of a span."""
    moments = sorted(rng.uniform(0, span_s) for _ in range(count))
    return [later - earlier for earlier, later in zip([0.0, *moments], moments, strict=False)]


def _arguments(words: list[str]) -> tuple[Any, ...]:
    url, service, count, ttl_s, changes, span_s = words
    return url, service, int(count), float(ttl_s), int(changes), float(span_s)


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main(*_arguments(sys.argv[1:])))
