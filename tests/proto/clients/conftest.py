"""A teacher that offers HTTP beside gRPC, by a server that does what a test tells it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.proto.clients import http_way
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.tests.proto.clients.scripted_http import WAIT_S, ScriptedHttp
from edl.tests.scripted_teacher import ScriptedTeacher


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def server(teacher: ScriptedTeacher, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHttp]:
    monkeypatch.setattr(http_way, "_OPEN_S", WAIT_S)  # a busy machine must not shut the way
    server = ScriptedHttp()
    server.offered(teacher)
    yield server
    server.stop()


@pytest.fixture
def client(teacher: ScriptedTeacher, server: ScriptedHttp) -> Iterator[OipGrpcClient]:
    client = OipGrpcClient(teacher.address, "m")
    client.probe(WAIT_S)
    yield client
    client.close()
