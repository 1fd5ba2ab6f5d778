"""Through Envoy, which hides who serves: one of two backends dies, and nobody notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edl.distill_reader import DistilReader
from edl.distill_reader.options import Limits
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.interop.envoy import Proxy, envoy
from edl.tests.interop.programs.network import MODEL, PACE_VARIABLE
from edl.tests.interop.servers import Server, known_batches, kserve, triton
from edl.tests.interop.sidecars import FACTORY, TTL_S, registered, write_canary
from edl.tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BATCHES = 300
KILLED_AT = 100
AT_ONCE = 4
BATCH_S = 0.02


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    monkeypatch.setenv(PACE_VARIABLE, str(BATCH_S))
    with triton(tmp_path) as one, kserve(tmp_path) as other:
        yield one, other


@pytest.fixture
def proxy(backends: tuple[Server, Server], tmp_path: Path) -> Iterator[Proxy]:
    with envoy(tmp_path, [server.grpc for server in backends]) as proxy:
        yield proxy


def test_a_reader_loses_nothing_when_a_backend_is_killed(
    backends: tuple[Server, Server], proxy: Proxy
) -> None:
    source = known_batches(BATCHES)
    options: dict[str, Any] = {"limits": Limits(window=AT_ONCE), "upper_bytes": 20_000}
    with DistilReader(source, service=MODEL, teachers=[proxy.grpc], **options) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            if len(batches) == KILLED_AT:
                assert min(proxy.answered().values()) > 0, "both serve"
                backends[1].kill()
        source.check(batches)
        assert reader.stats.resends == 0, "the proxy has sent each again by itself"


POOL = ("ours", "triton", "kserve")


class Pool(NamedTuple):
    """The mesh with its three teachers, and how each is killed."""

    mesh: LocalMesh
    kills: dict[str, Callable[[], None]]


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv(PACE_VARIABLE, str(BATCH_S))
    canary = write_canary(tmp_path / "canary")
    with ExitStack() as running:
        mesh = running.enter_context(LocalMesh(coordinator_options=["--ttl", str(TTL_S)]))
        mesh.start_teacher("ours", TeacherSpec(MODEL, FACTORY, ttl_s=TTL_S))
        theirs = {
            "triton": running.enter_context(triton(tmp_path)),
            "kserve": running.enter_context(kserve(tmp_path)),
        }
        for name, server in theirs.items():
            running.enter_context(registered(name, server.grpc, mesh.url, canary))
        mesh.wait_ready("ours")
        kills: dict[str, Callable[[], None]] = {"ours": lambda: mesh.kill("ours")}
        kills |= {name: server.kill for name, server in theirs.items()}
        yield Pool(mesh, kills)


@pytest.mark.parametrize("victim", POOL)
def test_the_stream_is_complete_when_any_teacher_is_killed(pool: Pool, victim: str) -> None:
    source = known_batches(BATCHES)
    with DistilReader(
        source, service=MODEL, coordinator=pool.mesh.url, teachers_min=len(POOL), upper_bytes=50_000
    ) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            if len(batches) == KILLED_AT:
                wait_until(lambda: set(reader.stats.teachers) == set(POOL))
            in_flight = dict(reader.stats.in_flight).get(victim, 0)
            if len(batches) >= KILLED_AT and victim in pool.kills and in_flight > 0:
                pool.kills.pop(victim)()
        source.check(batches)
        assert reader.stats.resends > 0, "it was killed with batches in its hands"
        before = dict(reader.stats.served)
        source.check(list(reader))
        serving = {name for name, count in reader.stats.served if count > before.get(name, 0)}
    assert serving == set(POOL) - {victim}
