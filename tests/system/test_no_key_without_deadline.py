"""Whenever a teacher or a manager dies, nothing of it stays in Redis for ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from edl.coordinator.embedded import start_embedded
from edl.coordinator.registry import LogEntry, Plan, Row
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.system.registering import audit


@pytest.fixture
def registry() -> Iterator[RedisRegistry]:
    process, url = start_embedded()
    registry = RedisRegistry(url)
    yield registry
    registry.close()
    process.stop()


@pytest.mark.parametrize("kills", [200, pytest.param(2000, marks=pytest.mark.nightly)])
def test_no_teacher_key_without_a_deadline_at_any_moment(
    registry: RedisRegistry, kills: int, rng: random.Random
) -> None:
    found: list[str] = []
    looks = 0
    over = threading.Event()

    def look() -> None:
        nonlocal looks
        while not over.wait(0.003) and not found:  # leaves Redis time for the others
            found.extend(audit(registry))
            looks += 1

    def kill() -> None:
        program = "edl.tests.system.registering"
        killer = start(python_command("killer", program, registry.url, kills, rng.randrange(2**32)))
        try:
            killer.expect(rf"killed {kills}\b", 60 + kills / 10)
            assert killer.wait(10) == 0
        finally:
            killer.stop()

    looking = threading.Thread(target=look)
    looking.start()
    killed = 0
    try:
        while killed == 0 or (looks <= kills and not found):  # not all of them were looked at
            kill()
            killed += kills
    finally:
        over.set()
        looking.join()
    assert found == []
    assert looks > kills
    # Kills hit processes at work, not processes that are still starting.
    assert registry._redis.info("commandstats")["cmdstat_evalsha"]["calls"] > 2 * killed
    for pattern in ("edl:*:teacher:*", "edl:*:teachers"):  # the dead are gone by themselves
        wait_for(lambda p=pattern: not registry._redis.keys(p), timeout_s=5)  # type: ignore[misc]


@pytest.mark.parametrize(
    "key",
    [
        "edl:{s}:leader", "edl:{s}:assignment", "edl:{s}:assignment:changes", "edl:{s}:admitted",
        "edl:{s}:events", "edl:{s}:plan", "edl:{s}:desired", "edl:{s}:student:j/0",
        "edl:{s}:students", "edl:managers",
        "edl:{edl:managers}:manager:h:1", "edl:{edl:managers}:managers:changes",
    ],
)  # fmt: skip
def test_each_key_that_managers_write_has_an_expiry(registry: RedisRegistry, key: str) -> None:
    registry.register("managers", "", "h:1", {"incarnation": "1"}, 30.0)
    registry.register("students", "s", "j/0", {"incarnation": "1"}, 30.0)
    registry.lead("s", "m#1", 30.0)
    log = [LogEntry("assigned", "j/0", "")]
    assert registry.write("s", "m#1", (0, 0), (1, 1), {"j/0": Row()}, log, {"t": 1})
    assert registry.set_desired("s", "m#1", 3, "why", log[0])
    assert registry.move_plan("s", "m#1", (1, 1), Plan("c"), log[0])
    assert registry._redis.exists(key)
    assert audit(registry) == []
    registry._redis.persist(key)
    assert f"{key} has no expiry" in audit(registry)


def test_the_audit_sees_what_it_looks_for(registry: RedisRegistry) -> None:
    facts = {"incarnation": "1"}
    registry.register("teachers", "s", "t", facts, 30.0)
    assert audit(registry) == []
    registry._redis.persist("edl:{s}:teacher:t")
    assert audit(registry) == ["edl:{s}:teacher:t has no expiry"]
    registry._redis.delete("edl:{s}:teacher:t")
    assert audit(registry) == ["t has a deadline and no facts"]
    registry._redis.persist("edl:{s}:teachers")
    assert "edl:{s}:teachers has no expiry" in audit(registry)
    registry._redis.zadd("edl:{s}:teachers", {"u": float("inf")})
    assert "u has no deadline" in audit(registry)
