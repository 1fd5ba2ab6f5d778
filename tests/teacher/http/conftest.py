"""Teachers that speak HTTP, closed behind each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl.tests.teacher.bench import Bench


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**config: Any) -> Bench:
        benches.append(Bench(**{"http": "0", **config}))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()
