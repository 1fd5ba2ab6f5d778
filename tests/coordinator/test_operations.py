"""Orders of operators, as they reach the registry; and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.operations import drain, upgrade
from edl.coordinator.registry.records import Plan
from edl.errors import RetryableError, UsageError


@pytest.fixture
def registry() -> Iterator[MemoryRegistry]:
    registry = MemoryRegistry()
    for service, name, host, content in (
        ("resnet", "t1", "alpha", "c1"),
        ("resnet", "t2", "beta", "c1"),
        ("bert", "t1", "alpha", "b1"),
        ("bert", "lonely", "10.0.0.9", "b1"),
    ):
        facts = {
            "incarnation": "1",
            "host": host,
            "address": f"{host}.mesh:8001",
            "content_id": content,
        }
        registry.register("teachers", service, name, facts, 600.0)
    yield registry
    registry.close()


def draining(registry: MemoryRegistry) -> list[str]:
    return [
        f"{service}/{member.member}"
        for service in registry.services()
        for member in registry.members("teachers", service)
        if member.draining
    ]


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ({"teacher_id": "lonely"}, ["bert/lonely"]),
        ({"teacher_id": "t1"}, ["bert/t1", "resnet/t1"]),
        ({"teacher_id": "t1", "service": "resnet"}, ["resnet/t1"]),
        ({"host": "alpha"}, ["bert/t1", "resnet/t1"]),
        ({"host": "alpha", "service": "bert"}, ["bert/t1"]),
        ({"host": "beta.mesh"}, ["resnet/t2"]),
        ({"host": "10.0.0.9"}, ["bert/lonely"]),
    ],
)
def test_drain_asks_one_teacher_or_all_of_a_host(
    registry: MemoryRegistry, asked: dict[str, str], done: list[str]
) -> None:
    assert drain(registry, **asked) == done
    assert draining(registry) == done


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "either a teacher or a host"),
        ({"teacher_id": "t1", "host": "alpha"}, "either a teacher or a host"),
        ({"teacher_id": "lonly"}, "did you mean lonely"),
        ({"teacher_id": "lonely", "service": "resnet"}, "no teacher lonely of service resnet"),
        ({"teacher_id": "t1", "service": "resmet"}, "did you mean resnet"),
        ({"teacher_id": "a b"}, "id of a teacher"),
        ({"host": "alfa"}, "did you mean alpha"),
    ],
)
def test_a_drain_of_nobody_says_who_was_meant(
    registry: MemoryRegistry, asked: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        drain(registry, **asked)
    assert not draining(registry)


def teach(registry: MemoryRegistry, name: str, content: str) -> None:
    facts = {"incarnation": "1", "content_id": content}
    registry.register("teachers", "resnet", name, facts, 600.0)


def study(registry: MemoryRegistry, name: str) -> None:
    registry.register("students", "resnet", name, {"incarnation": "1"}, 600.0)


def plan(registry: MemoryRegistry) -> tuple[str, str, str]:
    found = registry.plan("resnet")
    return found.content_id, found.next_content_id, found.at


def test_an_upgrade_is_planned_and_says_what_is_waited_for(registry: MemoryRegistry) -> None:
    study(registry, "j/0")
    study(registry, "j/1")
    assert upgrade(registry, "resnet", "c2", "epoch") == (
        "service resnet moves from c1 to content c2: each of its 2 students when it begins its "
        "next epoch. No teacher of content c2 serves yet: students stay until one does"
    )
    assert plan(registry) == ("c1", "c2", "epoch")
    teach(registry, "new", "c2")
    assert upgrade(registry, "resnet", "c2", "now") == (
        "service resnet moves from c1 to content c2: each of its 2 students at once; teachers "
        "that serve it: 1"
    )
    assert plan(registry) == ("c1", "c2", "now")


def test_an_upgrade_can_be_taken_back(registry: MemoryRegistry) -> None:
    upgrade(registry, "resnet", "c2", "epoch")
    assert "from c2 to content c1" in upgrade(registry, "resnet", "c1", "now")
    assert plan(registry) == ("c2", "c1", "now")


@pytest.mark.parametrize(
    ("content", "at", "said"),
    [
        ("", "now", "a content id is"),
        ("c 2", "now", "a content id is"),
        ("c" * 201, "now", "a content id is"),
        ("c2", "noon", "'epoch' or 'now'"),
        ("c1", "now", "has content c1 already"),
    ],
)
def test_an_upgrade_that_cannot_be_is_refused(
    registry: MemoryRegistry, content: str, at: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        upgrade(registry, "resnet", content, at)
    assert registry.plan("resnet").version == 0


def test_an_upgrade_of_no_service_names_a_near_one(registry: MemoryRegistry) -> None:
    with pytest.raises(UsageError, match="did you mean resnet"):
        upgrade(registry, "resnt", "c2", "now")


def test_one_upgrade_at_a_time(registry: MemoryRegistry) -> None:
    upgrade(registry, "resnet", "c2", "epoch")
    with pytest.raises(UsageError, match="from content c1 to c2: wait"):
        upgrade(registry, "resnet", "c3", "epoch")
    with pytest.raises(UsageError, match="on its way"):
        upgrade(registry, "resnet", "c2", "epoch")


def test_one_that_was_quicker_is_not_written_over(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = registry.set_plan

    def too_late(service: str, planned: Plan, expected_version: int) -> bool:
        monkeypatch.setattr(registry, "set_plan", real)
        assert real(service, Plan("c1", "other", "epoch"), expected_version)
        return real(service, planned, expected_version)

    monkeypatch.setattr(registry, "set_plan", too_late)
    with pytest.raises(UsageError, match="from content c1 to other"):
        upgrade(registry, "resnet", "c2", "epoch")


def test_a_plan_that_others_keep_changing_is_given_up(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "set_plan", lambda *_: False)
    with pytest.raises(RetryableError, match="try again"):
        upgrade(registry, "resnet", "c2", "now")
