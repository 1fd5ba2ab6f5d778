"""Third-party servers as teachers: NVIDIA Triton, KServe, MLServer.

All serve one tiny model whose labels are known to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.proto.clients import LabelRequest, open_client
from edl.runtime.errors import PoisonBatch, UsageError
from edl.tests.interop.programs.network import CLASSES, FEATURES, INPUT, MODEL, OUTPUT, labels_of
from edl.tests.interop.servers import (
    STARTS,
    TTL_S,
    Server,
    known_batches,
    mlserver,
    registered,
    write_canary,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ANSWER_S = 30.0
BATCHES = 60


@pytest.fixture(scope="module", params=list(STARTS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with STARTS[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_canary(tmp_path_factory.mktemp("canary") / "canary")


@pytest.fixture(params=["grpc", "http"])
def address(request: pytest.FixtureRequest, server: Server) -> str:
    """Where it is asked, as a user writes it."""
    return server.grpc if request.param == "grpc" else f"http://{server.http}"


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    client = open_client("oip", address, MODEL)
    yield client
    client.close()


def test_ours_reads_what_it_serves(client: Any, server: Server) -> None:
    found = client.probe(ANSWER_S)
    described = [
        [(t.name, t.datatype, t.shape) for t in one] for one in (found.inputs, found.outputs)
    ]
    assert described == [[(INPUT, "FP32", (-1, FEATURES))], [(OUTPUT, "FP32", (-1, CLASSES))]]
    x = known_batches().at(0)
    for outputs in ((), (OUTPUT,)):
        answer = client.infer(LabelRequest({INPUT: x}, outputs), ANSWER_S)
        assert list(answer.outputs) == [OUTPUT]
        np.testing.assert_array_equal(answer.outputs[OUTPUT], labels_of(x))
    assert getattr(client, "binary", server.binary) is server.binary


def test_a_batch_that_is_not_for_its_model_is_named(address: str) -> None:
    batches = [(known_batches().at(number), number) for number in range(10)]
    batches[3] = (batches[3][0][:, :9].copy(), 3)
    with DistilReader(batches, service=MODEL, teachers=[address]) as reader:
        epoch = iter(reader)
        assert [next(epoch)[1] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(PoisonBatch, match=r"batch 3: .*\[-1, ?16\].*\[8, ?9\]"):
            next(epoch)


def test_it_is_a_teacher_of_a_mesh(address: str, canary: Path) -> None:
    source = known_batches(BATCHES)
    with (
        LocalMesh(coordinator_options=["--ttl", str(TTL_S)]) as mesh,
        registered("foreign", address, mesh.url, canary),
        DistilReader(source, service=MODEL, coordinator=mesh.url) as reader,
    ):
        for _ in range(2):
            source.check(list(reader))
        assert reader.stats.resends == 0
        assert reader.stats.teachers == ("foreign",)


@pytest.fixture(scope="module")
def undescribed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """MLServer as it comes: it does not say what its model takes and gives."""
    with mlserver(tmp_path_factory.mktemp("undescribed"), declared=False) as server:
        yield server


@pytest.mark.parametrize("lane", ["grpc", "http"])
def test_a_reader_names_the_feeds_of_an_undescribed_model(undescribed: Server, lane: str) -> None:
    source = known_batches(BATCHES)
    address = undescribed.grpc if lane == "grpc" else f"http://{undescribed.http}"
    with DistilReader(source, service=MODEL, teachers=[address], feeds={INPUT: 0}) as reader:
        source.check(list(reader))
    with (
        DistilReader(source, service=MODEL, teachers=[address]) as reader,
        pytest.raises(UsageError, match="the model names no inputs; say which fields"),
    ):
        list(reader)


def test_a_sidecar_describes_the_model_for_all_readers(undescribed: Server, canary: Path) -> None:
    described = ("--input", f"{INPUT}:FP32:-1,{FEATURES}")
    source = known_batches(BATCHES)
    with (
        LocalMesh(coordinator_options=["--ttl", str(TTL_S)]) as mesh,
        registered("mlserver", undescribed.grpc, mesh.url, canary, *described),
        DistilReader(source, service=MODEL, coordinator=mesh.url) as reader,
    ):
        source.check(list(reader))
