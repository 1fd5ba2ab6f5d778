"""Key names: one cluster slot per service, and nothing in them that could mean something else."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from edl.coordinator import keys
from edl.coordinator.registry import Kind
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
