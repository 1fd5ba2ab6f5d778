"""What contract tests run against: a store within the process, and a real Valkey of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from redis import Redis

from edl.coordinator import Registry
from edl.coordinator.embedded import start_embedded
from edl.coordinator.store import Store
from edl.coordinator.store.redis_store import RedisStore
from edl.tests.stores import FaultyStore
from edl.tests.waiting import DEADLINE_S, wait_until

#: Where the tests are to see the end of a lease; with the time for which facts outlive it, 1 s.
SHORT_S = 0.2
#: Where no lease is to end, however slow the machine is.
LONG_S = 30.0
Kept = TypeVar("Kept")


@dataclass
class Holds(Generic[Kept]):
    """What is kept, as two processes see it, and ways to let its time pass and to lose it all."""

    one: Kept
    another: Kept
    pass_s: Callable[[float], None]
    empty: Callable[[], object]


Registries = Holds[Registry]
#: Makes two views of an empty store: `hold(JobBoard)`.
Hold = Callable[[Callable[[Store], Any]], Holds[Any]]


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


@pytest.fixture(params=["memory", "valkey"])
def hold(request: pytest.FixtureRequest, redis: Redis, private_valkey_url: str) -> Iterator[Hold]:
    now = [1_700_000_000.0]
    stores = ExitStack()

    def move(seconds: float) -> None:
        now[0] += seconds

    def hold(make: Callable[[Store], Any]) -> Holds[Any]:
        if request.param == "memory":
            inside = FaultyStore(clock=lambda: now[0])
            return Holds(make(inside), make(inside), move, inside.clear)
        one, another = (RedisStore(private_valkey_url, timeout_s=DEADLINE_S) for _ in range(2))
        for store in (one, another):
            stores.callback(store.close)

        def wait(seconds: float) -> None:
            until = one.time_ms() + seconds * 1000
            wait_until(lambda: one.time_ms() > until)

        return Holds(make(one), make(another), wait, redis.flushall)

    with stores:
        yield hold


@pytest.fixture
def registries(hold: Hold) -> Registries:
    return hold(Registry)
