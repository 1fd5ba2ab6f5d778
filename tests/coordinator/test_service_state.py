"""A service's state as a pure function: snapshots and events in, writes and instructions out."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from edl.coordinator.manager.rosters import ProbeAnswer
from edl.coordinator.manager.service_state import (
    Instructions,
    ServiceEvents,
    ServiceSnapshot,
    ServiceState,
    Write,
)
from edl.coordinator.registry import Row, StoredContentPlan, Table
from edl.coordinator.store.records import Changes, Member

NOW_S, TIME_MS, GRACE_S = 1000.0, 1_700_000_000_000, 8.4
NOBODY = Changes(1, full=True)


def teacher(name: str, **facts: str) -> Member:
    return Member(name, {"incarnation": "1", "address": f"{name}:1", **facts})


def student(name: str, **facts: str) -> Member:
    return Member(name, {"incarnation": "1", "want": "2", "state": "steady", **facts})


def all_of(members: Iterable[Member]) -> Changes:
    return Changes(1, tuple(members), full=True)


def snapshot(
    *teachers: Member, students: Iterable[Member] = (), table: Table | None = None
) -> ServiceSnapshot:
    return ServiceSnapshot(
        TIME_MS, table or Table(), all_of(teachers), all_of(students), {}, StoredContentPlan()
    )


def begin(
    found: ServiceSnapshot, former: ServiceState | None = None, rng: random.Random | None = None
) -> ServiceState:
    return ServiceState(found, former, NOW_S, grace_s=GRACE_S, lost_s=30.0, rng=rng, leader="m:1")


def step(state: ServiceState, events: ServiceEvents, now: float) -> tuple[Instructions, Write]:
    """Apply events, and take what is to be written for written."""
    todo = state.apply(events, now)
    write = state.next_write() or Write(state.table_version, state.table_version, {}, (), {})
    state.wrote(write, now)
    return todo, write


def teachers_of(write: Write, name: str = "j/0") -> tuple[str, ...]:
    row = write.rows[name]
    assert row is not None
    return row.teachers


TWO = [teacher("t0"), teacher("t1")]


def test_a_write_stays_the_same_until_it_stands() -> None:
    state = begin(snapshot(*TWO, students=[student("j/0")]))
    assert state.apply(ServiceEvents(), NOW_S).solved
    write = state.next_write()
    assert write == state.next_write()
    assert write is not None
    assert (write.expected, write.version) == ((0, 0), (state.term, 1))
    assert teachers_of(write) == ("t0", "t1")
    assert [entry.kind for entry in write.entries][:2] == ["leader", "recovery"]
    state.wrote(write, NOW_S)
    assert state.next_write() is None
    assert not state.apply(ServiceEvents(Changes(2), Changes(2)), NOW_S + 0.1).solved
    _, write = step(state, ServiceEvents(students=Changes(3, left=("j/0",))), NOW_S + 0.2)
    assert (write.rows, write.version) == ({"j/0": None}, (state.term, 2))


def test_equal_events_give_equal_writes() -> None:
    events = [
        ServiceEvents(),
        ServiceEvents(Changes(2, (teacher("t2"),)), Changes(2, (student("j/1"),))),
        ServiceEvents(Changes(3, lost=("t0",)), names=({"t1", "t2"}, {"j/0", "j/1"})),
    ]

    def run() -> list[tuple[Instructions, Write]]:
        state = begin(snapshot(*TWO, students=[student("j/0")]))
        return [step(state, one, NOW_S + 5.0 * n) for n, one in enumerate(events)]

    assert run() == run()


def test_sets_only_grow_until_recovery_is_over() -> None:
    table = Table((TIME_MS - 9, 4), {"j/0": Row(("t0", "t1"), incarnation=1)})
    state = begin(snapshot(teacher("t0"), teacher("t2"), students=[student("j/0")], table=table))
    _, write = step(state, ServiceEvents(), NOW_S)
    assert {"t0", "t1"} <= set(teachers_of(write))
    assert state.recovering
    names = {"t0", "t2"}, {"j/0"}
    _, write = step(state, ServiceEvents(names=names), NOW_S + GRACE_S - 0.1)
    assert not write.rows
    _, write = step(state, ServiceEvents(names=names), NOW_S + GRACE_S + 0.1)
    assert not state.recovering
    assert teachers_of(write) == ("t0", "t2")
    row = write.rows["j/0"]
    assert row is not None
    assert row.lost == ("t1",)


@pytest.mark.parametrize("lost", [True, False])
def test_the_dead_are_named_and_those_that_left_are_not(lost: bool) -> None:
    state = begin(snapshot(*TWO, teacher("t2"), students=[student("j/0")]))
    step(state, ServiceEvents(), NOW_S)
    gone = Changes(2, lost=("t0",)) if lost else Changes(2, left=("t0",))
    _, write = step(state, ServiceEvents(gone), NOW_S + 1)
    row = write.rows["j/0"]
    assert row is not None
    assert (row.teachers, row.lost) == (("t1", "t2"), ("t0",) if lost else ())
    assert (write.entries[0].kind, write.entries[0].subject) == ("lost" if lost else "left", "t0")


def test_an_emptied_registry_gets_back_what_the_former_term_knew() -> None:
    former = begin(snapshot(*TWO, students=[student("j/0")]))
    step(former, ServiceEvents(), NOW_S)
    assert not former.is_void(former.table_version, TIME_MS, NOW_S + 1)
    assert former.is_void((0, 0), TIME_MS, NOW_S + 1)
    state = begin(replace(snapshot(), time_ms=TIME_MS + 1), former)
    _, write = step(state, ServiceEvents(), NOW_S)
    assert state.term > former.term
    assert teachers_of(write) == ("t0", "t1")
    behind = begin(replace(snapshot(), time_ms=TIME_MS - 3_600_000), former)
    assert behind.term > former.term, "also if the clock of the empty registry is behind"
    stale = Table((former.term, 7), {"j/0": Row(("t9",), incarnation=1)})
    state = begin(snapshot(table=stale), former)  # another one has written since
    _, write = step(state, ServiceEvents(), NOW_S)
    assert teachers_of(write) == ("t9",)


def test_a_reader_far_ahead_makes_a_term_void_once_it_has_settled() -> None:
    state = begin(snapshot(*TWO, students=[student("j/0")]))
    step(state, ServiceEvents(), NOW_S)
    ahead = student("j/0", term=str(state.term + 5_000), counter="3")
    step(state, ServiceEvents(students=Changes(2, (ahead,))), NOW_S + 1)
    time_ms = TIME_MS + 10_000
    assert not state.is_void(state.table_version, time_ms, NOW_S + GRACE_S - 1)
    assert state.is_void(state.table_version, time_ms, NOW_S + GRACE_S + 1)


def test_a_teacher_is_assigned_once_its_probe_went_well() -> None:
    state = begin(snapshot(*TWO, students=[student("j/0")]), rng=random.Random(1))
    todo, write = step(state, ServiceEvents(), NOW_S)
    assert [member.member for _, member in todo.probes] == ["t0", "t1"]
    assert not write.rows.get("j/0") or not teachers_of(write)
    good, bad = (identity for identity, _ in todo.probes)
    answers = [ProbeAnswer(good, "ok"), ProbeAnswer(bad, "never", "an impostor")]
    todo, write = step(state, ServiceEvents(answers=answers), NOW_S + 1)
    assert (todo.refused, write.admitted) == (1, {"t0": 1, "t1": "refused: an impostor"})
    assert teachers_of(write) == ("t0",)
    assert [e.text for e in write.entries if e.kind == "refused"] == ["refused: an impostor"]


def test_the_content_that_prevails_is_declared_after_recovery() -> None:
    old = [replace(one, facts={**one.facts, "content_id": "old"}) for one in TWO]
    state = begin(snapshot(*old, students=[student("j/0")]))
    names = {"t0", "t1"}, {"j/0"}
    assert step(state, ServiceEvents(plan=StoredContentPlan()), NOW_S)[0].plan is None
    todo, _ = step(state, ServiceEvents(names=names), NOW_S + GRACE_S)
    assert todo.plan is not None
    plan, entry = todo.plan
    assert (plan.content_id, entry.kind) == ("old", "upgrade")
    state.wrote_plan(plan)
    assert step(state, ServiceEvents(plan=state.plan), NOW_S + GRACE_S + 1)[0].plan is None


def test_a_first_upgrade_is_not_lost_with_the_registrys_data() -> None:
    ordered = StoredContentPlan("", "new", "now", version=1, since_ms=TIME_MS)
    state = begin(replace(snapshot(students=[student("j/0")]), plan=ordered))
    assert state.plan == ordered
    todo, _ = step(state, ServiceEvents(plan=StoredContentPlan()), NOW_S)
    assert state.plan == ordered
    assert todo.plan is not None
    assert todo.plan[0] == replace(ordered, version=0)
    assert "students move to new at once, as it was before" in todo.plan[1].text
