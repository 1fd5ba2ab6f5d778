"""One contract, two registries: who leads, the table that it alone writes, the log, the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from edl.coordinator import Registry
from edl.coordinator.registry import LogEntry, Row, StoredContentPlan, TableVersion
from edl.coordinator.registry.schema import DesiredCount
from edl.runtime.errors import UsageError
from edl.tests.contracts.conftest import LONG_S, SHORT_S, Registries
from edl.tests.stores import of_service

ROW = Row(("t1", "t2"), ("t0",), "c1", "c2", 3, 1, "t2 \u2192 j/0: it wants 2", 2**63)


@pytest.fixture
def registry(registries: Registries) -> Registry:
    """One that "a#1" leads."""
    assert lead(registries, "a#1") == "a#1"
    return registries.one


def lead(registries: Registries, token: str, ttl_s: float = LONG_S) -> str:
    return registries.one.lead("s", token, ttl_s).leader


def write(
    registry: Registry,
    token: str,
    expected: TableVersion,
    version: TableVersion,
    rows: Mapping[str, Row | None],
    *more: Any,
) -> bool:
    return registry.write("s", of_service(registry, token), expected, version, rows, *more)


def test_one_leads_until_it_stops_prolonging_or_resigns(registries: Registries) -> None:
    assert lead(registries, "a#1", SHORT_S) == "a#1"
    assert lead(registries, "a#1") == "a#1"
    registries.pass_s(SHORT_S + 0.01)
    assert lead(registries, "b#1") == "a#1"
    assert lead(registries, "a#1", SHORT_S) == "a#1"
    registries.pass_s(SHORT_S + 0.01)
    assert not write(registries.one, "a#1", (0, 0), (5, 1), {"j/0": ROW}), "its lease is over"
    assert registries.one.table("s").rows == {}
    assert lead(registries, "b#1") == "b#1"
    assert lead(registries, "a#1") == "b#1"
    assert not registries.one.resign("s", "a#1")
    assert registries.one.resign("s", "b#1")
    assert not registries.one.resign("s", "b#1")
    assert lead(registries, "a#1") == "a#1"


def test_leadership_and_rows_are_read_as_they_were_written(registries: Registries) -> None:
    registry = registries.one
    began_ms = registry.time_ms()
    fresh = registry.lead("s", "a#1", LONG_S)
    assert fresh.table_version == registry.table("s").version == (0, 0)
    assert began_ms <= fresh.time_ms <= registry.time_ms()
    assert fresh.registry_id
    term, rows = fresh.time_ms, {"j/0": ROW, "j/1": Row()}
    assert write(registry, "a#1", (0, 0), (term, 1), rows)
    seen = registry.lead("s", "b#1", LONG_S)
    assert (seen.leader, seen.table_version) == ("a#1", (term, 1))
    assert seen.registry_id == fresh.registry_id
    table = registry.table("s")
    assert (table.version, dict(table.rows), table.full) == ((term, 1), rows, True)
    for expected, version in (((5, 1), (5, 1)), ((5, 1), (5, 0)), ((5, 1), (4, 9))):
        with pytest.raises(UsageError, match="versions must grow"):
            write(registry, "a#1", expected, version, {"j/0": ROW})


def test_a_leader_that_was_paused_writes_nothing_after_its_successor(
    registry: Registry, registries: Registries
) -> None:
    assert write(registry, "a#1", (0, 0), (5, 1), {"j/0": ROW})
    lead(registries, "a#1", SHORT_S)
    registries.pass_s(SHORT_S + 0.01)  # a is stopped between computing and writing
    assert lead(registries, "b#1") == "b#1"
    before = registry.table("s")
    lost = [LogEntry("lost", "t", "")]
    assert not write(registry, "a#1", (5, 1), (5, 2), {"j/0": None}, lost, {"t1": 1})
    assert registry.table("s") == before
    assert registry.events("s") == []
    assert registry.admitted("s") == {}
    assert write(registry, "b#1", (5, 1), (6, 0), {"j/0": Row(("t9",))})
    # Even if it leads again, what it computed stands on a table that is no more.
    registry.resign("s", "b#1")
    lead(registries, "a#1")
    assert not write(registry, "a#1", (5, 1), (5, 2), {"j/0": None})
    assert registry.table("s").rows == {"j/0": Row(("t9",))}


def test_only_what_changed_is_read_again(registry: Registry) -> None:
    write(registry, "a#1", (0, 0), (5, 1), {f"j/{n}": Row((f"t{n}",)) for n in range(5)})
    write(registry, "a#1", (5, 1), (5, 2), {"j/1": Row(("x",)), "j/2": None, "j/9": None})
    news = registry.table("s", (5, 1))
    assert (news.version, dict(news.rows), news.full) == ((5, 2), {"j/1": Row(("x",))}, False)
    assert sorted(news.gone) == ["j/2", "j/9"]
    nothing = registry.table("s", (5, 2))
    assert (dict(nothing.rows), nothing.gone, nothing.full) == ({}, (), False)
    assert sorted(registry.table("s").rows) == ["j/0", "j/1", "j/3", "j/4"]


def test_table_of_another_term_is_read_whole(registry: Registry) -> None:
    write(registry, "a#1", (0, 0), (5, 3), {"j/0": ROW})
    write(registry, "a#1", (5, 3), (9, 0), {"j/1": Row()})
    for since in ((5, 3), (5, 9), (9, 1), (12, 0)):
        table = registry.table("s", since)
        assert (table.full, sorted(table.rows), table.version) == (True, ["j/0", "j/1"], (9, 0))
    assert not registry.table("s", (9, 0)).full


def test_an_emptied_registry_begins_again(registry: Registry, registries: Registries) -> None:
    write(registry, "a#1", (0, 0), (5, 1), {"j/0": ROW})
    registries.empty()
    assert not write(registry, "a#1", (5, 1), (5, 2), {"j/0": ROW})
    assert registry.lead("s", "b#1", LONG_S).table_version == (0, 0)
    assert registry.table("s", (5, 1)).full
    assert registry.table("s", (5, 1)).rows == {}
    assert write(registry, "b#1", (0, 0), (6, 0), {"j/0": ROW})


def test_admitted_teachers_are_stored(registry: Registry) -> None:
    admitted = {"t1": 2**62, "t2": 0, "t3": 1}
    assert write(registry, "a#1", (0, 0), (0, 0), {}, (), admitted)
    assert registry.admitted("s") == admitted
    assert write(registry, "a#1", (0, 0), (0, 0), {}, (), {"t1": None, "t2": 8})
    assert registry.admitted("s") == {"t2": 8, "t3": 1}


def test_the_log_is_in_order_and_goes_on_after_an_id(registry: Registry) -> None:
    first = LogEntry("assigned", "j/0", "t1 joined: of 2 wanted", ("t0",), ("t0", "t1"))
    for entries in ([first, LogEntry("lost", "t0", "TTL")], [LogEntry("left", "t1", "")]):
        assert write(registry, "a#1", (0, 0), (0, 0), {}, entries)
    log = registry.events("s")
    assert [e.kind for e in log] == ["assigned", "lost", "left"]
    assert replace(log[0], id="", time_ms=0) == first
    assert abs(log[0].time_ms - registry.time_ms()) < 60_000
    assert len({e.id for e in log}) == 3
    assert registry.events("s", after=log[0].id) == log[1:]
    assert registry.events("s", last=1) == log[2:]
    assert registry.events("s", after=log[1].id, last=5) == log[2:]
    assert registry.events("s", after=log[2].id) == []
    with pytest.raises(UsageError, match="the id of an event"):
        registry.events("s", after="yesterday")


def test_an_operator_or_the_leader_changes_the_plan(registry: Registry) -> None:
    assert registry.content_plan("s") == StoredContentPlan()
    assert write(registry, "a#1", (0, 0), (7, 1), {})
    assert registry.set_content_plan("s", StoredContentPlan("c1", "c2", "now"), 0)
    assert not registry.set_content_plan("s", StoredContentPlan("c1", "c3", "now"), 0)
    before = registry.content_plan("s")
    assert replace(before, since_ms=0) == StoredContentPlan("c1", "c2", "now", version=1)
    entry = LogEntry("upgrade", "c2", "upgrade done: all students are on c2 \u2192")
    for token, table_version, version in (
        ("b#1", (7, 1), 1),
        ("a#1", (7, 2), 1),
        ("a#1", (7, 1), 0),
    ):
        fence = of_service(registry, token)
        assert not registry.move_content_plan(
            "s", fence, table_version, StoredContentPlan("c2", version=version), entry
        )
    assert registry.content_plan("s") == before
    assert registry.events("s") == []
    assert registry.move_content_plan(
        "s", of_service(registry, "a#1"), (7, 1), StoredContentPlan("c2", version=1), entry
    )
    plan = registry.content_plan("s")
    assert replace(plan, since_ms=0) == StoredContentPlan("c2", version=2)
    for each in (before, plan):
        assert abs(each.since_ms - registry.time_ms()) < 60_000
    (logged,) = registry.events("s")
    assert replace(logged, id="", time_ms=0) == entry


def test_a_whole_mesh_fits_in_one_write(registry: Registry) -> None:
    rows: dict[str, Row | None] = {f"j/{n}": Row((f"t{n}",)) for n in range(1000)}
    log = [LogEntry("registered", f"t{n}", "") for n in range(3000)]
    admitted = {f"t{n}": n for n in range(3000)}
    assert write(registry, "a#1", (0, 0), (5, 1), rows, log, admitted)
    assert len(registry.table("s").rows) == 1000
    assert len(registry.events("s")) == 3000
    assert len(registry.admitted("s")) == 3000


def test_the_leader_alone_says_how_many_teachers_are_desired(registries: Registries) -> None:
    registry = registries.one
    assert not registry.set_desired("s", of_service(registry, "a#1"), 3, "nobody leads")
    lead(registries, "a#1")
    assert not registry.set_desired("s", of_service(registry, "b#1"), 3, "another one leads")
    assert registry.desired("s") is None
    entry = LogEntry("scaled", "s", "3 teachers are desired")
    found: list[DesiredCount] = []
    for count, reason in ((3, "2 students want 3"), (3, "again"), (0, "nobody is there")):
        log = entry if not found else None
        assert registry.set_desired("s", of_service(registry, "a#1"), count, reason, log)
        desired = registries.another.desired("s")
        assert desired is not None
        assert (desired.count, desired.reason) == (count, reason)
        found.append(desired)
        registries.pass_s(0.01)
    first, again, none = found
    assert abs(first.since_ms - registry.time_ms()) < 60_000
    assert again.since_ms == first.since_ms, "it stays since the first"
    assert again.at_ms > first.at_ms
    assert none.since_ms >= again.at_ms
    assert [(e.kind, e.text) for e in registry.events("s")] == [("scaled", entry.text)]


def test_what_happens_to_machines_stands_in_the_log_of_the_service(registries: Registries) -> None:
    entries = [
        LogEntry("placed", "m", "why"), LogEntry("failed", "m", "é"),
        LogEntry("released", "m", "", ("a",), ("b",)),
    ]  # fmt: skip
    registries.one.add_events("resnet", entries[:2])
    registries.another.add_events("resnet", entries[2:])
    noted = [replace(one, id="", time_ms=0) for one in registries.another.events("resnet")]
    assert noted == entries
    assert registries.one.events("another") == []
    assert registries.one.services_with_log() == ["resnet"]
