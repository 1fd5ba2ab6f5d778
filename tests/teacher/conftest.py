"""What the tests of a teacher share: servers of a fake model, and what guards them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.proto.security import ClientSecurity, ServerSecurity
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import Bench, Make


@pytest.fixture
def make() -> Iterator[Make]:
    """Starts servers, and stops them after the test."""
    benches: list[Bench] = []

    def make(client: ClientSecurity | None = None, **config: Any) -> Bench:
        benches.append(Bench(client, **config))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    """Memory is freed by its last reference, or not at all."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def tokens(tmp_path: Path) -> ServerSecurity:
    """A server's token file: the tokens of a student, a viewer and an admin."""
    lines = "student:resnet s3cret\nviewer:grafana l00k\nadmin:ann r00t\n"
    return ServerSecurity(tokens_file=write_secret(tmp_path / "tokens", lines))
