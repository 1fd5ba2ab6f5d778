"""A process that measures how late a teacher answers.

It runs on the CPU core of the teacher's I/O process. Every 10 ms it wakes up, records how late it
woke, calls `ServerLive`, and reads the deadline of the teacher's lease.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any, Final

import grpc

from ...proto import inference_pb2 as pb
from ...proto.channel import Channel
from ...proto.security.client_connections import stub_of
from ...scheduler.leadership import BEATS_PER_TTL

#: Seconds between two calls of `ServerLive`.
_EVERY_S: Final = 0.01


class LatencyProbe:
    """Measures latencies of a teacher. `run` and `take` may be called in different threads.

    Args:
        address: address of the teacher.
        redis_url: URL of Redis.
        key: Redis key of the sorted set of leases.
        member: the teacher's member in this set.
        ttl_s: TTL of its lease in seconds.
    """

    def __init__(self, address: str, redis_url: str, key: str, member: str, ttl_s: float) -> None:
        import redis

        service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
        self._stub = stub_of(grpc.insecure_channel(address), service)
        self._redis: Any = redis.Redis.from_url(redis_url)
        self._key = key
        self._member = member
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._latencies: dict[str, list[float]] = defaultdict(list)
        self._deadline_ms = 0.0

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
                self._latencies["control"].append(woke - due)
                self._latencies["live"].append(answered - woke)
                self.record_lease(self._redis.zscore(self._key, self._member))

    def take(self) -> dict[str, list[float]]:
        """Return and forget all latencies: "control", "live", "beat" -> seconds of each event."""
        with self._lock:
            latencies, self._latencies = self._latencies, defaultdict(list)
        return dict(latencies)

    def record_lease(self, deadline_ms: float | None) -> None:
        """Record how late a heartbeat is, by how far it moved the deadline of the lease.

        The caller holds the lock.

        Args:
            deadline_ms: deadline of the lease in Redis time; None: there is no lease.
        """
        deadline_ms = deadline_ms or 0.0
        if deadline_ms > self._deadline_ms > 0:
            period_s = (deadline_ms - self._deadline_ms) / 1000
            self._latencies["beat"].append(max(0.0, period_s - self._ttl_s / BEATS_PER_TTL))
        self._deadline_ms = deadline_ms


def take_latencies(
    channel: Channel, address: str, redis_url: str, key: str, member: str, ttl_s: float
) -> None:
    """Measure until the channel ends; answer messages with the latencies since the last message.

    Args:
        channel: its first message to the benchmark means that the measurement has begun.
        address: see `LatencyProbe`.
        redis_url: see `LatencyProbe`.
        key: see `LatencyProbe`.
        member: see `LatencyProbe`.
        ttl_s: see `LatencyProbe`.
    """
    probe = LatencyProbe(address, redis_url, key, member, ttl_s)
    threading.Thread(target=probe.run, daemon=True).start()
    channel.send("ready")
    for _ in channel:
        channel.send("counted", latencies=probe.take())
