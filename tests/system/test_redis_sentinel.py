"""Redis behind sentinels: when the master dies, the mesh follows the new one by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl.coordinator import Heartbeat
from edl.coordinator.registry import Registry, Row, connect
from edl.errors import EdlError, RegistryUnavailable
from edl.tests.ground.programs import wait_for
from edl.tests.system.redis_servers import DOWN_AFTER_MS, Watched, watched_redis

TTL_S = 1.0
#: Of sentinels that watch a master which nobody kills: no stall is to have them fail over.
PATIENT_MS = 3000


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with watched_redis(tmp_path) as watched:
        yield watched


@pytest.fixture
def unharmed(tmp_path: Path) -> Iterator[Watched]:
    with watched_redis(tmp_path, down_after_ms=PATIENT_MS) as watched:
        yield watched


@pytest.fixture
def registry(watched: Watched) -> Iterator[Registry]:
    registry = connect(watched.url)
    yield registry
    registry.close()


@contextmanager
def connect_to(port: int) -> Iterator[Registry]:
    registry = connect(f"redis://127.0.0.1:{port}")
    yield registry
    registry.close()


def answers(registry: Registry) -> bool:
    try:
        registry.lead("s", "m#1", 30.0)
    except EdlError:
        return False
    return True


@pytest.mark.serial
def test_after_a_fail_over_the_registry_follows_the_new_master(
    watched: Watched, registry: Registry
) -> None:
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "1"}, TTL_S)
    heart.start()
    before = registry.lead("s", "m#1", 30.0)
    assert registry.write("s", "m#1", (0, 0), (5, 1), {"j/0": Row(("t",))})
    with connect_to(watched.ports[1]) as replica:
        wait_for(lambda: replica.table("s").epoch == (5, 1))

    killed = time.monotonic()
    watched.kill_master()
    with pytest.raises(RegistryUnavailable):
        registry.lead("s", "m#1", 30.0)
    wait_for(lambda: answers(registry))
    took_s = time.monotonic() - killed
    # Sentinel notices, asks for a vote and promotes; of that, following takes next to nothing.
    assert took_s < DOWN_AFTER_MS / 1000 + 4.0

    after = registry.lead("s", "m#1", 30.0)
    assert after.registry_id != before.registry_id
    assert after.epoch == (5, 1)
    assert registry.table("s").rows == {"j/0": Row(("t",))}
    wait_for(lambda: [m.member for m in registry.members("teachers", "s")] == ["t"])
    wait_for(lambda: heart.answering)
    heart.stop()


@pytest.mark.serial
def test_following_takes_less_than_two_seconds_once_the_sentinels_agree(
    watched: Watched, registry: Registry
) -> None:
    assert answers(registry)
    watched.kill_master()
    with connect_to(watched.ports[1]) as replica:
        wait_for(lambda: replica.server_info()["role"] == "master")
        promoted = time.monotonic()
    wait_for(lambda: answers(registry))
    assert time.monotonic() - promoted < 2.0


def test_a_replica_refuses_to_be_written(unharmed: Watched) -> None:
    with (
        connect_to(unharmed.ports[1]) as replica,
        pytest.raises(RegistryUnavailable, match="is a replica"),
    ):
        replica.register("teachers", "s", "t", {"incarnation": "1"}, 5.0)


def test_a_sentinel_that_is_away_is_passed_over(unharmed: Watched) -> None:
    port = unharmed.sentinels[0]
    registry = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/mesh")
    assert answers(registry)
    registry.close()


def test_a_master_that_the_sentinels_do_not_know(unharmed: Watched) -> None:
    registry = connect(f"redis+sentinel://127.0.0.1:{unharmed.sentinels[0]}/other")
    with pytest.raises(RegistryUnavailable, match="No master found for 'other'"):
        registry.time_ms()
    registry.close()
