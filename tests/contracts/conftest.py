"""The registries and job boards of contract tests: within the process, and on a real Valkey."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from edl.coordinator import Registry
from edl.coordinator.embedded import start_embedded
from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.coordinator.jobs.redis_board import RedisBoard
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.coordinator.registry.redis_registry import RedisRegistry


@dataclass
class Bench:
    """A registry, another process's hold on it, and a way to let its time pass."""

    registry: Registry
    another: Registry
    pass_s: Callable[[float], None]
    empty: Callable[[], object]


@pytest.fixture(scope="module")
def valkey_url() -> Iterator[str]:
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture(params=["memory", "valkey"])
def bench(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Bench]:
    if request.param == "memory":
        now = [1_700_000_000.0]

        def move(seconds: float) -> None:
            now[0] += seconds

        memory = MemoryRegistry(clock=lambda: now[0])
        yield Bench(memory, memory, move, memory.clear)
        return
    registry, another = RedisRegistry(valkey_url), RedisRegistry(valkey_url)
    registry._redis.flushall()

    def wait(seconds: float) -> None:
        until = registry.time_ms() + seconds * 1000
        while registry.time_ms() <= until:
            time.sleep(0.005)

    yield Bench(registry, another, wait, registry._redis.flushall)
    registry.close()
    another.close()


@dataclass
class Boards:
    """A board, another process's hold on it, and a way to let its time pass."""

    board: JobBoard
    another: JobBoard
    pass_s: Callable[[float], None]


@pytest.fixture(params=["memory", "valkey"])
def boards(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Boards]:
    if request.param == "memory":
        now = [1_700_000_000.0]

        def move(seconds: float) -> None:
            now[0] += seconds

        memory = MemoryBoard(clock=lambda: now[0])
        yield Boards(memory, memory, move)
        return
    board, another = RedisBoard(valkey_url), RedisBoard(valkey_url)
    board._redis.flushall()

    def wait(seconds: float) -> None:
        until = board.time_ms() + seconds * 1000
        while board.time_ms() <= until:
            time.sleep(0.005)

    yield Boards(board, another, wait)
    board.close()
    another.close()
