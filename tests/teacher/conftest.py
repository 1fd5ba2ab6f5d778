"""What the tests of a teacher share: servers of a fake model, and what guards them."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from edl.proto.clients import oip_grpc
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.teacher.recorder import access_log
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import Bench, Make
from edl.tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    # Of a busy machine: a client that waits no longer sends its batches by gRPC instead.
    monkeypatch.setattr(oip_grpc, "_CONNECT_S", DEADLINE_S)
    with ExitStack() as made:

        def make(client: ClientSecurity | None = None, **config: Any) -> Bench:
            return made.enter_context(closing(Bench(client, **config)))

        yield make


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """What it is told is done at the end of the test."""
    with ExitStack() as ending:
        yield ending


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


class AccessLog:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts()]

    def labelled(self) -> list[str]:
        """The protocol and method of each request that was answered."""
        return [f"{one['protocol']} {one['method']}" for one in self() if one["samples"]]

    def texts(self) -> list[str]:
        return [r.getMessage() for r in self._caplog.records if r.name == access_log.name]

    def last(self, count: int = 1) -> dict[str, Any]:
        """The newest line, once there are `count`: it is written after the answer is sent."""
        wait_until(lambda: len(self.texts()) >= count)
        found = self()
        assert len(found) == count, found
        return found[-1]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> AccessLog:
    caplog.set_level(logging.DEBUG, access_log.name)
    return AccessLog(caplog)
