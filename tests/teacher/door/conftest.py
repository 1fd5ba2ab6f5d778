"""Benches and neighbours that are closed behind each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl.proto.security import ClientSecurity
from edl.tests.teacher.bench import Bench
from edl.tests.teacher.door.callers import (
    Make,
    Neighbour,
)


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def make(client: ClientSecurity | None = None, **config: Any) -> Bench:
        benches.append(Bench(client, **config))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def settle() -> Iterator[Callable[..., Neighbour]]:
    neighbours: list[Neighbour] = []

    def settle(bench: Bench, security: ClientSecurity | None = None) -> Neighbour:
        neighbours.append(Neighbour(bench, security))
        return neighbours[-1]

    yield settle
    for neighbour in neighbours:
        neighbour.close()
