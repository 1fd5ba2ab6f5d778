"""Key names: one cluster slot per service, and nothing in them that could mean something else."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from edl.coordinator.registry import Kind, keys
from edl.errors import UsageError


@pytest.mark.parametrize("kind", ["teachers", "students", "managers"])
def test_all_keys_of_one_script_lie_in_one_cluster_slot(kind: Kind) -> None:
    service = "" if kind == "managers" else "resnet101"
    names = [
        keys.leases(kind, service),
        keys.facts(kind, service, "job/0"),
        keys.facts(kind, service, "[::1]:5000"),
        keys.changes(kind, service),
    ]
    assert len({key_slot(name.encode()) for name in names}) == 1
    assert len(set(names)) == 4


def test_the_table_of_a_service_lies_in_the_slot_of_its_leases() -> None:
    builders = (
        keys.leader, keys.assignment, keys.assignment_changes,
        keys.admitted, keys.plan, keys.events,
    )  # fmt: skip
    names = [build("s") for build in builders]
    assert names == [
        f"edl:{{s}}:{name}"
        for name in ("leader", "assignment", "assignment:changes", "admitted", "plan", "events")
    ]
    slots = {key_slot(name.encode()) for name in [*names, keys.leases("teachers", "s")]}
    assert len(slots) == 1
    for build in builders:
        with pytest.raises(UsageError):
            build("a b")


@pytest.mark.parametrize("service", ["s", "managers", "a.b"])
def test_no_member_has_the_key_of_something_else(service: str) -> None:
    others = {keys.leader(service), keys.events(service), keys.changes("teachers", service)}
    assert not any(key.startswith(keys.facts_prefix("teachers", service)) for key in others)
    assert keys.facts("teachers", service, "x").startswith(keys.facts_prefix("teachers", service))
    assert not keys.is_member("=term")


@pytest.mark.parametrize("odd", ["x", "1", "1-", "-", "1-2-3", "1 -2", "9" * 30 + "-0", "1-0\n"])
def test_what_is_no_place_in_the_log_is_refused(odd: str) -> None:
    with pytest.raises(UsageError, match="the id of an event"):
        keys.event_place(odd)


def test_places_in_the_log_are_ordered_by_number() -> None:
    ids = ["", "9-0", "10-2", "10-10"]
    assert sorted(ids, key=keys.event_place) == ids


def test_names_are_those_of_the_table() -> None:
    assert keys.leases("managers", "") == "edl:managers"
    assert keys.leases("teachers", "s") == "edl:{s}:teachers"
    assert keys.facts("teachers", "s", "t1") == "edl:{s}:teacher:t1"
    assert keys.facts("students", "s", "job/0") == "edl:{s}:student:job/0"


@pytest.mark.parametrize("name", ["", "a:b", "a}b", "a b", "a/b", "x" * 129, "ß", "a\n"])
def test_a_service_that_cannot_stand_in_a_key_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="the name of a service"):
        keys.check_service(name)


@pytest.mark.parametrize("name", ["", "a b", "a*", "{a}", "x" * 201, "a\n"])
def test_a_member_that_cannot_stand_in_a_key_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="the id of a teacher"):
        keys.check_member("teachers", name)
