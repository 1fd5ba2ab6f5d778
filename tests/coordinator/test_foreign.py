"""What strangers write into Redis may be ignored, and must not stop anybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edl.coordinator import keys
from edl.coordinator.discovery import live_managers
from edl.coordinator.embedded import start_embedded
from edl.coordinator.facts import report_facts, student_from, teacher_from
from edl.coordinator.overview import mesh_status
from edl.coordinator.redis_registry import RedisRegistry
from edl.coordinator.registry import Member
from edl.errors import RegistryUnavailable
from edl.proto import coordinator_pb2 as pb


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    process, url = start_embedded()
    yield url
    process.stop()


@pytest.fixture
def registry(server_url: str) -> Iterator[RedisRegistry]:
    registry = RedisRegistry(server_url)
    registry._redis.flushall()
    yield registry
    registry.close()


def test_names_that_we_would_not_write_are_passed_over(registry: RedisRegistry) -> None:
    registry.register("teachers", "s", "good", {"incarnation": "1"}, 30.0)
    cursor = registry.changes("teachers", "s").cursor
    odds: list[Any] = ["a b", "{x}", b"\xff\xfe", ""]
    for odd in odds:
        registry._redis.zadd(keys.SERVICES, {odd: 1})
        registry._redis.zadd(keys.leases("teachers", "s"), {odd: 1e14})
        registry._redis.zadd(keys.changes("teachers", "s"), {odd: cursor + 10})
    assert registry.services() == ["s"]
    assert [m.member for m in registry.members("teachers", "s")] == ["good"]
    assert registry.changes("teachers", "s", cursor).members == ()
    status = mesh_status(registry, [])
    assert [t.teacher_id for t in status.services[0].teachers] == ["good"]


def test_a_key_of_another_type_is_said_to_be_refused(registry: RedisRegistry) -> None:
    registry._redis.set(keys.leases("teachers", "s"), "a string")
    with pytest.raises(RegistryUnavailable, match="refuses a command") as error:
        registry.register("teachers", "s", "t", {"incarnation": "1"}, 30.0)
    assert "\n" not in str(error.value)


def test_facts_of_a_wrong_kind_are_left_out() -> None:
    facts = {
        "incarnation": "many", "slots": "-1", "in_flight": "99999999999999", "t_t_seconds": "x",
        "address": "h:1", "unheard": "of",
    }  # fmt: skip
    teacher = teacher_from(Member("t", facts, 1.5))
    assert teacher == pb.Teacher(teacher_id="t", address="h:1", lease_remaining_s=1.5)
    assert Member("t", facts).incarnation == 0


def test_a_report_comes_back_from_its_facts_as_it_was() -> None:
    report = pb.StudentReport(
        protocol_version=1, service="s", student_id="j/0", incarnation=2**60, want=3, priority=-2,
        t_s_seconds=1 / 3, volume_bytes=2**40, teachers=["a", "b"], term=2**50, state="steady",
    )  # fmt: skip
    facts = report_facts(report, ("a",))
    assert all(isinstance(value, str) for value in facts.values())
    status = student_from(Member("j/0", facts, 2.0))
    assert status.report == report
    assert list(status.assigned) == ["a"]


def test_the_oldest_manager_comes_first(registry: RedisRegistry) -> None:
    for address, started in (("h:1", "2000"), ("h:2", "999"), ("h:3", "odd"), ("h:4", "1000")):
        facts = {"incarnation": "1", "started_ms": started}
        registry.register("managers", "", address, facts, 30.0)
    assert [a for a in live_managers(registry) if a != "h:3"] == ["h:2", "h:4", "h:1"]
