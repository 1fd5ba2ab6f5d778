"""Thousands of teachers that register, beat, answer probes, die and join: `python -m` this.

Each beat is one packet, as it would be from a machine of its own. They lie evenly over the beat's
time, and go over some hundred connections.

    python -m edl.benchmarks.load.teachers URL SERVICE FILE COUNT TTL_S CHANGES SPAN_S

SIGUSR1 begins the second phase, in which CHANGES of them die at random moments of SPAN_S seconds;
again, the third, in which as many new ones join; again, the end: what was measured is written to
FILE. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final
from urllib.parse import urlsplit

from ...coordinator.heartbeat import BEATS_PER_TTL
from ...runtime.supervise import end_with_parent
from . import schedule
from .beats import Wire
from .probed import ProbedServer
from .resp import RespConnection

CONNECTIONS: Final = 100
#: Registrations at once, while the crowd gathers.
_GATHERING: Final = 64
_TICK_S: Final = 0.001


@dataclass
class TeacherLoadStats:
    """What happened when, in monotonic seconds."""

    died: dict[str, float] = field(default_factory=dict)  # teacher -> its last beat
    joined: dict[str, float] = field(default_factory=dict)  # teacher -> its registration
    beats: int = 0
    late_s: float = 0.0  # the latest beat, behind its time


class SimulatedTeachers:
    """All teachers of one process.

    One task beats for all: a task for each would cost more than Redis spends on them.
    """

    def __init__(self, wire: Wire, ttl_s: float, rng: random.Random) -> None:
        self.figures = TeacherLoadStats()
        self._wire = wire
        self._beat_s = ttl_s / BEATS_PER_TTL
        self._rng = rng
        self._last_beat: dict[str, float] = {}  # of those that live
        self._due: list[tuple[float, str]] = []  # a heap

    async def gather(self, names: list[str]) -> None:
        """Register all, and let each beat from then on."""
        for start in range(0, len(names), _GATHERING):
            await asyncio.gather(*map(self.join, names[start : start + _GATHERING]))

    async def join(self, name: str) -> None:
        """One registers and begins to beat."""
        now = self.figures.joined[name] = time.monotonic()
        await self._wire.register(name)
        self._last_beat[name] = now
        heappush(self._due, (now + self._beat_s * self._rng.random(), name))

    def kill(self, name: str) -> None:
        """One says nothing any more."""
        self.figures.died[name] = self._last_beat.pop(name)

    async def live(self) -> None:
        """Beat for all that live, each at its time."""
        figures, due = self.figures, self._due
        while True:
            now = time.monotonic()
            while due and due[0][0] <= now:
                at_s, name = heappop(due)
                if name not in self._last_beat:
                    continue
                now = self._last_beat[name] = time.monotonic()
                figures.late_s = max(figures.late_s, now - at_s)
                figures.beats += 1
                self._wire.beat(name)
                heappush(due, (max(at_s + self._beat_s, now), name))
            if self._wire.error is not None:
                raise self._wire.error
            await asyncio.sleep(_TICK_S)

    async def kill_some(self, count: int, span_s: float) -> None:
        """So many die, at random moments of `span_s` seconds."""
        victims = self._rng.sample(sorted(self._last_beat), count)
        for name, pause_s in zip(victims, _pauses(count, span_s, self._rng), strict=True):
            await asyncio.sleep(pause_s)
            self.kill(name)

    async def join_some(self, count: int, span_s: float) -> None:
        """So many come, at random moments of `span_s` seconds."""
        for number, pause_s in enumerate(_pauses(count, span_s, self._rng)):
            await asyncio.sleep(pause_s)
            await self.join(f"new-{number}")


async def main(
    url: str, service: str, file: str, count: int, ttl_s: float, changes: int, span_s: float
) -> None:
    """Gather, and follow the schedule."""
    phases, rng = schedule.Phases(), random.Random(1)
    where = urlsplit(url)
    connections = [
        await RespConnection.open(where.hostname or "127.0.0.1", where.port or 6379)
        for _ in range(CONNECTIONS)
    ]
    probed = ProbedServer()
    wire = await Wire.open(connections, service, ttl_s, address=await probed.start())
    crowd = SimulatedTeachers(wire, ttl_s, rng)
    life = asyncio.create_task(crowd.live())
    life.add_done_callback(_fail)
    await crowd.gather([f"teacher-{number}" for number in range(count)])
    crowd.figures.joined.clear()
    crowd.figures.beats, began = 0, time.monotonic()
    schedule.ready()
    await phases.reach(1)
    await crowd.kill_some(changes, span_s)
    await phases.reach(2)
    await crowd.join_some(changes, span_s)
    await phases.reach(3)
    life.cancel()
    figures = crowd.figures
    schedule.tell(
        file,
        {
            "died": figures.died,
            "joined": figures.joined,
            "beats": figures.beats,
            "beating_s": time.monotonic() - began,
            "late_s": figures.late_s,
        },
    )
    for connection in connections:
        connection.close()
    await probed.stop()


def _fail(life: asyncio.Task[None]) -> None:
    """Who cannot beat any more is no crowd any more."""
    if not life.cancelled() and (error := life.exception()) is not None:
        sys.exit(f"{error}")


def _pauses(count: int, span_s: float, rng: random.Random) -> list[float]:
    """Between events at random moments of a span."""
    moments = sorted(rng.uniform(0, span_s) for _ in range(count))
    return [later - earlier for earlier, later in zip([0.0, *moments], moments, strict=False)]


def _arguments(words: list[str]) -> tuple[Any, ...]:
    url, service, file, count, ttl_s, changes, span_s = words
    return url, service, file, int(count), float(ttl_s), int(changes), float(span_s)


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main(*_arguments(sys.argv[1:])))
