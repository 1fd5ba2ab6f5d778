"""Access to in-memory stores for tests, fences of leaders that tests name, and heartbeats."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from edl.coordinator.job_queue import QueueBoard, queue_key
from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.schema import job_key
from edl.coordinator.registry import Kind, Registry
from edl.coordinator.registry.schema import are_volatile, concerns_managers, service_key
from edl.coordinator.store import Store
from edl.coordinator.store.memory_store import MemoryStore
from edl.coordinator.store.records import BeatAnswer, Leads, MemberBeat
from edl.runtime.errors import RedisUnavailable


class FaultyStore(MemoryStore):
    """A store within this process that fails, restarts and forgets as a Redis may."""

    def __init__(self, clock: Callable[[], float] = time.time, url: str = "memory://") -> None:
        super().__init__(clock, url)
        self._available = True

    def now_s(self) -> float:
        if not self._available:
            raise RedisUnavailable(f"the registry {self.url} does not answer")
        return super().now_s()

    def set_available(self, available: bool) -> None:
        """Begin or end an outage, in which every step fails."""
        self._available = available

    def clear(self) -> None:
        """Restart without persistence."""
        with self.lock:
            self._values.clear()
            self._expires_s.clear()
            self.registry_id = secrets.token_hex(20)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the content, which a replica that stops replicating keeps."""
        with self.lock:
            return copy.deepcopy((self._values, self._expires_s))

    def restore(self, snapshot: tuple[dict[str, Any], dict[str, float]]) -> None:
        """Fail over to a stale replica: another server with older content."""
        values, expires_s = copy.deepcopy(snapshot)
        with self.lock:
            self.clear()
            self._values.update(values)
            self._expires_s.update(expires_s)

    def restart(self) -> None:
        """Restart with the content: another server process."""
        self.restore(self.snapshot())


def memory(schema: Registry | JobBoard | QueueBoard) -> FaultyStore:
    """Return the `FaultyStore` of a registry or board."""
    assert isinstance(schema.store, FaultyStore)
    return schema.store


def fence(store: Store, key: str, holder: str) -> Leads:
    """Return a fence of `holder` with the token of the present leader, even if that is another."""
    leader = store.leader(key)
    return Leads(key, holder, 0 if leader is None else leader.token)


def of_service(registry: Registry, holder: str, service: str = "s") -> Leads:
    """Return the fence of a manager that leads a service."""
    return fence(registry.store, service_key(service, "leader"), holder)


def of_job(board: JobBoard, job: str, node: str) -> Leads:
    """Return the fence of a node that leads a job."""
    return fence(board.store, job_key(job, "leader"), node)


def of_queue(board: QueueBoard, runner: str, queue: str = "main") -> Leads:
    """Return the fence of a runner of a queue."""
    return fence(board.store, queue_key(queue, "runner"), runner)


def renew(
    registry: Registry,
    kind: Kind,
    service: str,
    member: str,
    ttl_s: float,
    *,
    incarnation: int,
    facts: Mapping[str, str] | None = None,
) -> BeatAnswer:
    """Renew a lease as `Heartbeat` does, with changed facts."""
    told = facts or {}
    notify = concerns_managers(kind, told, {})
    beat = MemberBeat(member, incarnation, told, notify, are_volatile(told))
    return registry.beat(kind, service, beat, ttl_s)
