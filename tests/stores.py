"""Access to in-memory stores for tests, fences of leaders that tests name, and heartbeats."""

from __future__ import annotations

from collections.abc import Mapping

from edl.coordinator.job_queue import QueueBoard, queue_key
from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.schema import job_key
from edl.coordinator.registry import Kind, Registry
from edl.coordinator.registry.schema import are_volatile, concerns_managers, service_keys
from edl.coordinator.store import Store
from edl.coordinator.store.memory_store import MemoryStore
from edl.coordinator.store.records import Beat, Leads, MemberBeat


def memory(schema: Registry | JobBoard | QueueBoard) -> MemoryStore:
    """Return the in-memory store of a schema."""
    assert isinstance(schema.store, MemoryStore)
    return schema.store


def fence(store: Store, key: str, holder: str) -> Leads:
    """Return a fence of `holder` with the token of the present leader, even if that is another."""
    leader = store.leader(key)
    return Leads(key, holder, 0 if leader is None else leader.token)


def of_service(registry: Registry, holder: str, service: str = "s") -> Leads:
    """Return the fence of a manager that leads a service."""
    return fence(registry.store, service_keys(service).leader, holder)


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
) -> Beat:
    """Renew a lease as `Heartbeat` does, with changed facts."""
    told = facts or {}
    noted = concerns_managers(kind, told, {})
    beat = MemberBeat(member, incarnation, told, noted, are_volatile(told))
    return registry.beat(kind, service, beat, ttl_s)
