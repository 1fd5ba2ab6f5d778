"""The registries and job boards of contract tests: within the process, and on a real Valkey."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.coordinator import Registry
from edl.coordinator.embedded import start_embedded
from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.coordinator.jobs.redis_board import RedisBoard
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.tests.contracts.holds import KINDS, Holds, held

Registries = Holds[Registry]
Boards = Holds[JobBoard]


@pytest.fixture(scope="module")
def valkey_url() -> Iterator[str]:
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture(params=KINDS)
def registries(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Registries]:
    with held(request.param, valkey_url, MemoryRegistry, RedisRegistry) as registries:
        yield registries


@pytest.fixture(params=KINDS)
def boards(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Boards]:
    with held(request.param, valkey_url, MemoryBoard, RedisBoard) as boards:
        yield boards
