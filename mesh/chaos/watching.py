"""What a run can see from outside: who has a lease, and whether the machine gives it any time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ...coordinator.registry import Registry, connect
from ...errors import EdlError
from ...lifecycle import Periodic
from .cast import SERVICE
from .trace import Snapshot

LOOK_EVERY_S = 0.25
PULSE_EVERY_S = 0.1
#: A pulse that comes so much late says that the machine stood still.
STALL_S = 0.7


class Watcher:
    """Reads Redis now and then, and feels the machine's pulse, from `start` to `stop`.

    Args:
        url: of Redis.
        clock: seconds since the run began.
    """

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self._registry: Registry = connect(url)
        self._clock = clock
        self._snapshots: list[Snapshot] = []
        self._stalls: list[tuple[float, float]] = []
        self._load = 0.0
        self._beat_at = time.monotonic()
        self._looking = Periodic("edl-chaos-look", LOOK_EVERY_S, self._look)
        self._pulse = Periodic("edl-chaos-pulse", PULSE_EVERY_S, self._beat)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """What was seen so far."""
        return tuple(self._snapshots)

    @property
    def stalls(self) -> tuple[tuple[float, float], ...]:
        """When the machine stood still so far."""
        return tuple(self._stalls)

    @property
    def load(self) -> float:
        """The greatest load average of a minute so far."""
        return self._load

    def start(self) -> None:
        """Begin to look."""
        self._beat_at = time.monotonic()
        self._looking.start()
        self._pulse.start()

    def stop(self) -> None:
        """Look no more; again without effect."""
        self._pulse.stop()
        self._looking.stop()
        self._registry.close()

    def _look(self) -> None:
        self._load = max(self._load, os.getloadavg()[0])
        try:
            teachers = self._registry.members("teachers", SERVICE)
            students = self._registry.members("students", SERVICE)
            rows = self._registry.table(SERVICE).rows
        except EdlError:  # it is down, and that was seen too
            self._snapshots.append(Snapshot(self._clock()))
            return
        self._snapshots.append(
            Snapshot(
                self._clock(),
                frozenset(one.member for one in teachers),
                frozenset(_job(one.member) for one in students),
                {_job(name): frozenset(row.teachers) for name, row in rows.items()},
            )
        )

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at > PULSE_EVERY_S + STALL_S:
            ended_s = self._clock()
            self._stalls.append((ended_s - (now - self._beat_at), ended_s))
        self._beat_at = now


def _job(student_id: str) -> str:
    """The job of `job/rank`: each has one rank here."""
    return student_id.partition("/")[0]
