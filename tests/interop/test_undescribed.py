"""MLServer as it comes: it does not say what its model takes and gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.distill_reader import DistilReader
from edl.errors import UsageError
from edl.mesh.local import LocalMesh
from edl.tests.interop.known_batches import KnownBatches
from edl.tests.interop.programs.network import FEATURES, INPUT, MODEL
from edl.tests.interop.servers import Server, mlserver
from edl.tests.interop.sidecars import TTL_S, registered, write_canary

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BATCHES = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with mlserver(tmp_path_factory.mktemp("undescribed"), declared=False) as server:
        yield server


@pytest.mark.parametrize("lane", ["grpc", "http"])
def test_a_reader_says_itself_what_is_fed(server: Server, lane: str) -> None:
    source = KnownBatches(BATCHES)
    address = server.grpc if lane == "grpc" else f"http://{server.http}"
    with DistilReader(source, service=MODEL, teachers=[address], feeds={INPUT: 0}) as reader:
        source.check(list(reader))


def test_a_reader_that_does_not_is_told_to(server: Server) -> None:
    source = KnownBatches(BATCHES)
    with (
        DistilReader(source, service=MODEL, teachers=[server.grpc]) as reader,
        pytest.raises(UsageError, match="the model names no inputs; say which fields"),
    ):
        list(reader)


def test_its_sidecar_says_it_for_all_readers(server: Server, tmp_path: Path) -> None:
    canary = write_canary(tmp_path / "canary")
    described = ("--input", f"{INPUT}:FP32:-1,{FEATURES}")
    source = KnownBatches(BATCHES)
    with (
        LocalMesh(coordinator_options=["--ttl", str(TTL_S)]) as mesh,
        registered("mlserver", server.grpc, mesh.url, canary, *described),
        DistilReader(source, service=MODEL, coordinator=mesh.url) as reader,
    ):
        source.check(list(reader))
