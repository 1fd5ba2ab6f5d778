"""What contract tests run against: a twin within the process, and a real Valkey of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from redis import Redis

from edl.coordinator import Registry
from edl.coordinator.embedded import start_embedded
from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.coordinator.jobs.redis_board import RedisBoard
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.tests.waiting import DEADLINE_S, wait_until

#: Where the tests are to see the end of a lease; with the time for which facts outlive it, 1 s.
SHORT_S = 0.2
#: Where no lease is to end, however slow the machine is.
LONG_S = 30.0
KINDS = ("memory", "valkey")
Kept = TypeVar("Kept")


@dataclass
class Holds(Generic[Kept]):
    """What is kept, as two processes see it, and ways to let its time pass and to lose it all."""

    one: Kept
    another: Kept
    pass_s: Callable[[float], None]
    empty: Callable[[], object]


Registries = Holds[Registry]
Boards = Holds[JobBoard]


@contextmanager
def held(
    kind: str, redis: Redis, url: str, in_memory: Callable[..., Any], in_redis: Callable[..., Any]
) -> Iterator[Holds[Any]]:
    """Yield an empty store of one of `KINDS`: `in_memory(clock=)`, `in_redis(url, timeout_s=)`."""
    if kind == "memory":
        now = [1_700_000_000.0]

        def move(seconds: float) -> None:
            now[0] += seconds

        inside = in_memory(clock=lambda: now[0])
        yield Holds(inside, inside, move, lambda: inside.clear())
        return
    with (
        closing(in_redis(url, timeout_s=DEADLINE_S)) as one,
        closing(in_redis(url, timeout_s=DEADLINE_S)) as another,
    ):

        def wait(seconds: float) -> None:
            until = one.time_ms() + seconds * 1000
            wait_until(lambda: one.time_ms() > until)

        yield Holds(one, another, wait, redis.flushall)


@pytest.fixture(scope="session")
def private_valkey_url() -> Iterator[str]:
    """One that only contract tests use: each of them empties it first."""
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture
def redis(private_valkey_url: str) -> Iterator[Redis]:
    with Redis.from_url(
        private_valkey_url, decode_responses=True, socket_timeout=DEADLINE_S
    ) as client:
        client.flushall()
        yield client


@pytest.fixture(params=KINDS)
def registries(
    request: pytest.FixtureRequest, redis: Redis, private_valkey_url: str
) -> Iterator[Registries]:
    with held(
        request.param, redis, private_valkey_url, MemoryRegistry, RedisRegistry
    ) as registries:
        yield registries


@pytest.fixture(params=KINDS)
def boards(
    request: pytest.FixtureRequest, redis: Redis, private_valkey_url: str
) -> Iterator[Boards]:
    with held(request.param, redis, private_valkey_url, MemoryBoard, RedisBoard) as boards:
        yield boards
