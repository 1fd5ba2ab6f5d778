"""Through Envoy, which hides who serves: one of two backends dies, and nobody notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edl.distill_reader import DistilReader
from edl.distill_reader.options import Limits
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.interop.envoy import envoy
from edl.tests.interop.programs.network import MODEL, PACE_VARIABLE
from edl.tests.interop.servers import (
    FACTORY,
    TTL_S,
    known_batches,
    kserve,
    registered,
    triton,
    write_canary,
)
from edl.tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BATCHES = 300
KILLED_AT = 100
AT_ONCE = 4
BATCH_S = 0.02


def test_a_reader_loses_nothing_when_a_backend_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PACE_VARIABLE, str(BATCH_S))
    source = known_batches(BATCHES)
    options: dict[str, Any] = {"limits": Limits(window=AT_ONCE), "upper_bytes": 20_000}
    with (
        triton(tmp_path) as one,
        kserve(tmp_path) as other,
        envoy(tmp_path, [one.grpc, other.grpc]) as proxy,
        DistilReader(source, service=MODEL, teachers=[proxy.grpc], **options) as reader,
    ):
        batches = []
        for batch in reader:
            batches.append(batch)
            if len(batches) == KILLED_AT:
                assert min(proxy.answered().values()) > 0, "both serve"
                other.kill()
        source.check(batches)
        assert reader.stats.resends == 0, "the proxy has sent each again by itself"


POOL = ("ours", "triton", "kserve")


@pytest.mark.parametrize("victim", POOL)
def test_the_stream_is_complete_when_any_teacher_is_killed(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PACE_VARIABLE, str(BATCH_S))
    canary = write_canary(tmp_path / "canary")
    source = known_batches(BATCHES)
    options: dict[str, Any] = {"teachers_min": len(POOL), "upper_bytes": 50_000}
    with (
        LocalMesh(coordinator_options=["--ttl", str(TTL_S)]) as mesh,
        triton(tmp_path) as one,
        kserve(tmp_path) as other,
        registered("triton", one.grpc, mesh.url, canary),
        registered("kserve", other.grpc, mesh.url, canary),
        DistilReader(source, service=MODEL, coordinator=mesh.url, **options) as reader,
    ):
        mesh.add_teacher("ours", TeacherSpec(MODEL, FACTORY, ttl_s=TTL_S))
        kills = {"ours": lambda: mesh.kill("ours"), "triton": one.kill, "kserve": other.kill}
        batches = []
        for batch in reader:
            batches.append(batch)
            if len(batches) == KILLED_AT:
                wait_until(lambda: set(reader.stats.teachers) == set(POOL))
            in_flight = dict(reader.stats.in_flight).get(victim, 0)
            if len(batches) >= KILLED_AT and victim in kills and in_flight > 0:
                kills.pop(victim)()
        source.check(batches)
        assert reader.stats.resends > 0, "it was killed with batches in its hands"
        before = dict(reader.stats.served)
        source.check(list(reader))
        serving = {name for name, count in reader.stats.served if count > before.get(name, 0)}
    assert serving == set(POOL) - {victim}
