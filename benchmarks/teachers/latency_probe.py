"""A process that measures how late a teacher answers, on the core of the teacher's socket side.

    python -m edl.benchmarks.teachers.latency_probe CHANNEL ADDRESS CORE REDIS LEASES TEACHER TTL_S

Every few milliseconds it wakes up, notes how late, calls `ServerLive`, and reads the deadline of
the teacher's lease. It answers each message with the notes since the previous message.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from typing import Any, Final

import grpc

from ...proto import inference_pb2 as pb
from ...proto import inference_pb2_grpc as oip
from ...proto.channel import Channel
from ...runtime.supervise import end_with_parent
from ...scheduler.leadership import BEATS_PER_TTL
from ..children import ANY_CORE

#: Seconds between two calls of `ServerLive`.
_EVERY_S: Final = 0.01


class LatencyProbe:
    """Measures a teacher and keeps notes, in seconds. `run` and `take` may use different threads.

    Args:
        address: address of the teacher.
        redis_url: URL of the registry.
        key: Redis key of the leases.
        member: teacher in the leases.
        ttl_s: TTL of its lease in seconds.
    """

    def __init__(self, address: str, redis_url: str, key: str, member: str, ttl_s: float) -> None:
        import redis

        self._stub: Any = oip.GRPCInferenceServiceStub(  # type: ignore[no-untyped-call]
            grpc.insecure_channel(address)
        )
        self._redis: Any = redis.Redis.from_url(redis_url)
        self._key = key
        self._member = member
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._notes: dict[str, list[float]] = defaultdict(list)
        self._beat_ms = 0.0

    def run(self) -> None:
        """Measure for ever."""
        due = time.monotonic()
        while True:
            due = max(due + _EVERY_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            woke = time.monotonic()
            self._stub.ServerLive(pb.ServerLiveRequest(), timeout=10.0)
            answered = time.monotonic()
            with self._lock:
                self._notes["control"].append(woke - due)
                self._notes["live"].append(answered - woke)
                self.note_lease(self._redis.zscore(self._key, self._member))

    def take(self) -> dict[str, list[float]]:
        """Return and forget the notes: "control", "live" and "beat" -> seconds of each event."""
        with self._lock:
            notes, self._notes = self._notes, defaultdict(list)
        return dict(notes)

    def note_lease(self, deadline_ms: float | None) -> None:
        """Note how late a heartbeat is, by how far it moved the deadline of the lease.

        The caller holds the lock.

        Args:
            deadline_ms: deadline of the lease in Redis time; None: there is no lease.
        """
        deadline_ms = deadline_ms or 0.0
        if deadline_ms > self._beat_ms > 0:
            period_s = (deadline_ms - self._beat_ms) / 1000
            self._notes["beat"].append(max(0.0, period_s - self._ttl_s / BEATS_PER_TTL))
        self._beat_ms = deadline_ms


def main(channel_fd: int, core: int, watch: LatencyProbe) -> None:
    """Watch until the channel ends."""
    end_with_parent(at_once=True)
    if core != ANY_CORE:
        os.sched_setaffinity(0, {core})
    channel = Channel.attach(channel_fd)
    threading.Thread(target=watch.run, daemon=True).start()
    channel.send("ready")
    for _ in channel:
        channel.send("counted", notes=watch.take())


if __name__ == "__main__":
    fd, where, on, url, leases, held, ttl = sys.argv[1:]
    main(int(fd), int(on), LatencyProbe(where, url, leases, held, float(ttl)))
