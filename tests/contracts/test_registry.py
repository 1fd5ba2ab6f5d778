"""One contract, two registries: within the process, and on a real Valkey."""

from __future__ import annotations

import pytest

from edl.coordinator import Registry
from edl.coordinator.registry import FACTS_TTLS, LogEntry, Mandate
from edl.coordinator.registry.memory_registry import MemoryRegistry
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.errors import LeaseSuperseded, RegistryUnavailable, UsageError
from edl.tests.contracts.conftest import Bench

TTL_S = 0.25


def enter(registry: Registry, member: str, incarnation: int = 1, **facts: str) -> None:
    registry.register("teachers", "s", member, {"incarnation": str(incarnation), **facts}, TTL_S)


def test_a_registered_member_lives_until_its_deadline(bench: Bench) -> None:
    enter(bench.registry, "t1", address="h:1")
    (member,) = bench.registry.members("teachers", "s")
    assert (member.member, member.incarnation) == ("t1", 1)
    assert member.facts["address"] == "h:1"
    assert 0 < member.remaining_s <= TTL_S
    bench.pass_s(TTL_S + 0.01)
    assert bench.registry.members("teachers", "s") == []


def test_beats_prolong_a_lease(bench: Bench) -> None:
    enter(bench.registry, "t1")
    for _ in range(6):
        bench.pass_s(TTL_S / 2)
        assert bench.registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    assert [m.member for m in bench.registry.members("teachers", "s")] == ["t1"]


def test_a_beat_makes_no_lease(bench: Bench) -> None:
    assert not bench.registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    assert bench.registry.names("teachers", "s") == set()
    assert bench.registry.members("teachers", "s") == []


def test_a_late_beat_revives_what_no_sweep_took_and_nothing_else(bench: Bench) -> None:
    enter(bench.registry, "t1")
    bench.pass_s(TTL_S * 1.2)
    assert bench.registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    bench.pass_s(TTL_S * 1.2)
    assert bench.registry.sweep("teachers", "s") == ["t1"]
    assert not bench.registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)


def test_a_sweep_names_the_dead_once_and_spares_the_living(bench: Bench) -> None:
    enter(bench.registry, "dead")
    bench.pass_s(TTL_S * 0.8)
    enter(bench.registry, "living")
    bench.pass_s(TTL_S * 0.4)
    assert bench.registry.sweep("teachers", "s") == ["dead"]
    assert bench.registry.sweep("teachers", "s") == []
    assert bench.registry.names("teachers", "s") == {"living"}


def test_facts_are_replaced_by_register_and_added_to_by_beat(bench: Bench) -> None:
    enter(bench.registry, "t1", address="h:1", state="serving")
    bench.registry.beat("teachers", "s", "t1", TTL_S, incarnation=1, facts={"state": "draining"})
    (member,) = bench.registry.members("teachers", "s")
    assert dict(member.facts) == {"incarnation": "1", "address": "h:1", "state": "draining"}
    enter(bench.registry, "t1", 2, device="cpu")
    (member,) = bench.registry.members("teachers", "s")
    assert dict(member.facts) == {"incarnation": "2", "device": "cpu"}


@pytest.mark.parametrize(
    ("older", "newer"), [(1, 2), (9, 10), (2**60, 2**60 + 1), (1_699_999_999, 1_700_000_000_000)]
)
def test_an_older_incarnation_neither_overwrites_nor_beats_nor_deletes(
    bench: Bench, older: int, newer: int
) -> None:
    enter(bench.registry, "t1", older)
    enter(bench.registry, "t1", newer, address="new")
    with pytest.raises(LeaseSuperseded, match=f"newer incarnation of t1 than {older}"):
        enter(bench.registry, "t1", older, address="old")
    assert not bench.registry.beat(
        "teachers", "s", "t1", TTL_S, incarnation=older, facts={"address": "old"}
    )
    assert not bench.registry.leave("teachers", "s", "t1", older)
    (member,) = bench.registry.members("teachers", "s")
    assert (member.incarnation, member.facts["address"]) == (newer, "new")


def test_leave_ends_a_lease_at_once(bench: Bench) -> None:
    enter(bench.registry, "t1", 7)
    assert bench.registry.leave("teachers", "s", "t1", 7)
    assert bench.registry.members("teachers", "s") == []
    assert not bench.registry.leave("teachers", "s", "t1", 7)
    enter(bench.registry, "t2")
    assert bench.registry.leave("teachers", "s", "t2")  # whoever holds it


def test_changes_tell_joining_leaving_and_dying_apart(bench: Bench) -> None:
    registry = bench.registry
    enter(registry, "a")
    start = registry.changes("teachers", "s")
    assert start.full
    assert [m.member for m in start.members] == ["a"]

    enter(registry, "leaver")
    enter(registry, "sleeper")
    joined = registry.changes("teachers", "s", start.cursor)
    assert sorted(m.member for m in joined.members) == ["leaver", "sleeper"]
    assert not joined.full

    registry.leave("teachers", "s", "leaver", 1)
    bench.pass_s(TTL_S * 0.7)
    registry.beat("teachers", "s", "a", TTL_S, incarnation=1)
    bench.pass_s(TTL_S * 0.5)
    registry.sweep("teachers", "s")
    gone = registry.changes("teachers", "s", joined.cursor)
    assert (gone.members, gone.left, gone.lost) == ((), ("leaver",), ("sleeper",))
    nothing = registry.changes("teachers", "s", gone.cursor)
    assert (nothing.members, nothing.left, nothing.lost) == ((), (), ())
    assert nothing.cursor == gone.cursor


def test_changes_read_facts_again_only_when_managers_are_concerned(bench: Bench) -> None:
    registry = bench.registry
    enter(registry, "t1", state="serving")
    cursor = registry.changes("teachers", "s").cursor
    registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    registry.beat("teachers", "s", "t1", TTL_S, incarnation=1, facts={"in_flight": "3"})
    assert registry.changes("teachers", "s", cursor).members == ()
    registry.beat("teachers", "s", "t1", TTL_S, incarnation=1, facts={"state": "draining"})
    (member,) = registry.changes("teachers", "s", cursor).members
    assert (member.facts["state"], member.facts["in_flight"]) == ("draining", "3")


def test_facts_outlive_the_deadline_so_that_the_dead_can_be_named(bench: Bench) -> None:
    enter(bench.registry, "t1")
    cursor = bench.registry.changes("teachers", "s").cursor
    bench.pass_s(TTL_S * 1.1)
    bench.registry.sweep("teachers", "s")
    assert bench.registry.changes("teachers", "s", cursor).lost == ("t1",)
    bench.pass_s(TTL_S * (FACTS_TTLS - 0.9))  # nothing is left of it, and yet it has not left
    gone = bench.registry.changes("teachers", "s", cursor)
    assert (gone.left, gone.lost) == ((), ("t1",))


def test_who_left_and_came_back_has_not_left(bench: Bench) -> None:
    enter(bench.registry, "t1")
    cursor = bench.registry.changes("teachers", "s").cursor
    bench.registry.leave("teachers", "s", "t1", 1)
    left = bench.registry.changes("teachers", "s", cursor)
    assert (left.members, left.left, left.lost) == ((), ("t1",), ())
    enter(bench.registry, "t1")
    back = bench.registry.changes("teachers", "s", left.cursor)
    assert ([m.member for m in back.members], back.left, back.lost) == (["t1"], (), ())
    assert bench.registry.changes("teachers", "s", cursor).left == ()
    assert bench.registry.changes("teachers", "s").left == ()


def test_nobody_left_because_facts_expired_while_nobody_could_beat(bench: Bench) -> None:
    for name in ("a", "leaver"):
        enter(bench.registry, name)
    bench.registry.leave("teachers", "s", "leaver", 1)
    bench.pass_s(TTL_S * (FACTS_TTLS + 0.1))
    everything = bench.registry.changes("teachers", "s")
    assert (everything.members, everything.left) == ((), ("leaver",))


def test_a_sweep_that_comes_too_late_or_to_another_server_takes_nobody_out(bench: Bench) -> None:
    registry = bench.registry
    enter(registry, "t1")
    answer = registry.lead("s", "m#1", 30.0)
    bench.pass_s(TTL_S * 1.1)
    late = Mandate(answer.registry_id, answer.time_ms + round(TTL_S * 800))
    assert registry.sweep("teachers", "s", late) == []
    assert registry.sweep("teachers", "s", Mandate("f" * 40, answer.time_ms + 60_000)) == []
    assert registry.names("teachers", "s") == {"t1"}
    good = Mandate(answer.registry_id, answer.time_ms + 60_000)
    assert registry.sweep("teachers", "s", good) == ["t1"]


def test_a_log_is_found_when_nobody_is_left(bench: Bench) -> None:
    enter(bench.registry, "t1")
    assert bench.registry.logs() == []
    bench.registry.lead("s", "m#1", 30.0)
    entry = LogEntry("left", "t1", "left by itself")
    assert bench.registry.write("s", "m#1", (0, 0), (1, 1), {}, [entry])
    bench.registry.leave("teachers", "s", "t1")
    assert (bench.registry.services(), bench.registry.logs()) == ([], ["s"])


def test_a_registry_that_everybody_forsook_empties_itself(bench: Bench) -> None:
    enter(bench.registry, "t1")
    assert bench.registry.services() == ["s"]
    bench.pass_s(TTL_S * (FACTS_TTLS + 0.1))
    assert bench.registry.names("teachers", "s") == set()
    assert bench.registry.services() == []


def test_kinds_and_services_are_apart(bench: Bench) -> None:
    registry, facts = bench.registry, {"incarnation": "1"}
    registry.register("teachers", "a", "x", facts, TTL_S)
    registry.register("teachers", "b", "x", facts, TTL_S)
    registry.register("students", "a", "job/0", facts, TTL_S)
    registry.register("managers", "", "127.0.0.1:5000", facts, TTL_S)
    registry.leave("teachers", "b", "x")
    assert registry.names("teachers", "a") == {"x"}
    assert registry.names("teachers", "b") == set()
    assert registry.names("students", "a") == {"job/0"}
    assert registry.names("managers", "") == {"127.0.0.1:5000"}
    assert registry.services() == ["a"]


@pytest.mark.parametrize("bad", ["", "a b", "a{b}", "a*", "ü", "x" * 300, "a\n"])
def test_names_that_cannot_stand_in_a_key_are_refused(bench: Bench, bad: str) -> None:
    with pytest.raises(UsageError):
        bench.registry.register("teachers", bad, "t1", {"incarnation": "1"}, TTL_S)
    with pytest.raises(UsageError):
        enter(bench.registry, bad)


def test_hundreds_of_members(bench: Bench) -> None:
    for number in range(1200):
        bench.registry.register("teachers", "s", f"t{number}", {"incarnation": "1"}, 30.0)
    assert len(bench.registry.members("teachers", "s")) == 1200
    assert len(bench.registry.changes("teachers", "s", 1).members) == 1200


def test_the_clock_is_the_registrys(bench: Bench) -> None:
    before = bench.registry.time_ms()
    bench.pass_s(0.02)
    assert bench.registry.time_ms() >= before + 20


def test_a_registry_that_does_not_answer_is_named_without_its_password() -> None:
    registry = RedisRegistry("redis://user:secret@127.0.0.1:1/0", timeout_s=0.2)
    with pytest.raises(RegistryUnavailable, match=r"redis://\*\*\*@127\.0\.0\.1:1/0 does not") as e:
        registry.time_ms()
    assert "secret" not in str(e.value)
    memory = MemoryRegistry()
    memory.set_available(False)
    with pytest.raises(RegistryUnavailable):
        memory.members("teachers", "s")
