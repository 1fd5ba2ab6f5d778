"""Access to in-memory stores for tests, and fences of leaders that tests name."""

from __future__ import annotations

from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.schema import job_key
from edl.coordinator.queue import QueueBoard
from edl.coordinator.queue.schema import queue_key
from edl.coordinator.registry import Registry
from edl.coordinator.registry.schema import service_keys
from edl.coordinator.store import Leads, Store
from edl.coordinator.store.memory_store import MemoryStore


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
