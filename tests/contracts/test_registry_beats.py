"""One contract, two registries: what beats bring along, and what reading everything tells."""

from __future__ import annotations

from edl.coordinator.registry import Beat, MemberBeat
from edl.tests.contracts.conftest import Registries
from edl.tests.contracts.test_registry import TTL_S, enter


def test_a_drain_that_was_asked_for_comes_with_the_next_beat(registries: Registries) -> None:
    registry = registries.one
    assert not registry.request_drain("s", "t1")
    assert registry.members("teachers", "s") == []
    enter(registry, "t1", state="serving")
    for _ in range(3):  # so that the next beats are plain ones
        assert registry.beat("teachers", "s", "t1", TTL_S, incarnation=1) is Beat.KEPT
    cursor = registry.changes("teachers", "s").cursor
    assert registry.request_drain("s", "t1")
    (member,) = registry.changes("teachers", "s", cursor).members
    assert member.draining
    assert member.facts["state"] == "draining"
    for _ in range(2):
        assert registry.beat("teachers", "s", "t1", TTL_S, incarnation=1) is Beat.DRAIN
    registries.pass_s(TTL_S * 1.1)  # the deadline is that of the beat
    assert registry.sweep("teachers", "s") == ["t1"]


def test_a_drain_outlives_a_new_registration_of_the_same_instance_only(
    registries: Registries,
) -> None:
    enter(registries.one, "t1", 1)
    registries.one.request_drain("s", "t1")
    enter(registries.one, "t1", 1, state="serving")
    assert registries.one.beat("teachers", "s", "t1", TTL_S, incarnation=1) is Beat.DRAIN
    assert registries.one.members("teachers", "s")[0].draining
    enter(registries.one, "t1", 2, state="serving")
    assert registries.one.beat("teachers", "s", "t1", TTL_S, incarnation=2) is Beat.KEPT
    assert not registries.one.members("teachers", "s")[0].draining


def test_many_beats_have_their_answers_in_order(registries: Registries) -> None:
    registry = registries.one
    facts = {"incarnation": "7", "want": "1"}
    crowd = {f"j/{n}": facts for n in range(600)}
    assert registry.register_many("students", "s", crowd, 30.0) == []
    cursor = registry.changes("students", "s").cursor
    beats = [MemberBeat(name, 7, {"volume_bytes": "5"}) for name in crowd]
    beats[3] = MemberBeat("j/3", 6)
    beats[5] = MemberBeat("nobody/0", 7)
    beats[7] = MemberBeat("j/7", 7, {"want": "2"})
    beats[9] = MemberBeat("j/9", 7, {"t_s_seconds": "0.1"}, concerns=False)
    answers = registry.beat_many("students", "s", beats, 30.0)
    assert [n for n, beat in enumerate(answers) if beat is not Beat.KEPT] == [3, 5]
    assert [m.member for m in registry.changes("students", "s", cursor).members] == ["j/7"]
    told = registry.read("students", "s", ["j/9", "nobody/0", "j/3"])
    assert [(m.member, m.facts.get("t_s_seconds")) for m in told] == [("j/9", "0.1"), ("j/3", None)]
    assert all(29 < m.remaining_s <= 30 for m in told)
    older = {"j/1": {"incarnation": "6"}, "j/x": {"incarnation": "1"}}
    assert registry.register_many("students", "s", older, 30.0) == ["j/1"]


def test_reading_everything_names_those_that_went_within_the_last_minute(
    registries: Registries,
) -> None:
    registry = registries.one
    enter(registry, "sleeper")
    registries.pass_s(TTL_S * 1.1)
    registry.sweep("teachers", "s")
    enter(registry, "leaver")
    enter(registry, "living")
    registry.leave("teachers", "s", "leaver", 1)
    everything = registry.changes("teachers", "s")
    assert [m.member for m in everything.members] == ["living"]
    assert (everything.left, everything.lost, everything.full) == (("leaver",), ("sleeper",), True)
    (dead,) = registry.read("teachers", "s", ["sleeper"])
    assert dead.remaining_s <= 0


def test_a_reading_says_when_the_next_deadline_passes(registries: Registries) -> None:
    registry = registries.one
    assert registry.changes("teachers", "s").due_s == float("inf")
    enter(registry, "t1", ttl_s=30.0)  # a wait may last longer than asked
    enter(registry, "t2", ttl_s=60.0)
    everything = registry.changes("teachers", "s")
    assert 0 < everything.due_s <= 30.0
    assert 0 < registry.changes("teachers", "s", everything.cursor).due_s <= everything.due_s
    registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    registries.pass_s(TTL_S * 1.1)
    assert registry.changes("teachers", "s", everything.cursor).due_s <= 0
    registry.sweep("teachers", "s")
    assert 0 < registry.changes("teachers", "s", everything.cursor).due_s < 60.0 - TTL_S


def test_plain_beats_end_with_the_lease_of_another_or_none(registries: Registries) -> None:
    registry = registries.one
    enter(registry, "t1", 1)
    assert registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    assert registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    registry.leave("teachers", "s", "t1")
    assert not registry.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    ghost = registries.another
    enter(ghost, "t1", 1)
    assert ghost.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    enter(registry, "t1", 2)
    registries.pass_s(TTL_S / 3)
    assert not ghost.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    assert registry.beat("teachers", "s", "t1", TTL_S, incarnation=2)


def test_many_that_beat_again_tell_figures_that_managers_need_not_hear_of(
    registries: Registries,
) -> None:
    registry, names = registries.one, ["j/0", "j/1", "j/2"]
    for name in names:
        registry.register("students", "s", name, {"incarnation": "1", "want": "1"}, TTL_S)

    def beat(volume: int, ttl_s: float) -> list[Beat]:
        beats = [MemberBeat(name, 1, {"volume_bytes": str(volume)}) for name in names]
        return registry.beat_many("students", "s", beats, ttl_s)

    assert beat(1, TTL_S) == [Beat.KEPT] * 3
    registries.pass_s(TTL_S / 2)
    cursor = registry.changes("students", "s").cursor
    assert beat(2, 30.0) == [Beat.KEPT] * 3
    assert registry.changes("students", "s", cursor).members == ()
    for member in registry.members("students", "s"):
        assert member.facts["volume_bytes"] == "2"
        assert member.remaining_s > 30.0 * 0.6
    registries.another.register("students", "s", "j/0", {"incarnation": "2", "want": "1"}, TTL_S)
    registry.leave("students", "s", "j/1", 1)
    assert beat(3, 30.0) == [Beat.UNKNOWN, Beat.UNKNOWN, Beat.KEPT]
    assert {m.member: m.incarnation for m in registry.members("students", "s")} == {
        "j/0": 2,
        "j/2": 1,
    }


def test_a_ghost_that_was_stopped_is_told_when_it_wakes(registries: Registries) -> None:
    registry, ghost = registries.one, registries.another
    enter(ghost, "t1", 1)
    assert ghost.beat("teachers", "s", "t1", TTL_S, incarnation=1)
    enter(registry, "t1", 2)
    for _ in range(3):
        registries.pass_s(TTL_S / 3)
        assert registry.beat("teachers", "s", "t1", TTL_S, incarnation=2)
    assert not ghost.beat("teachers", "s", "t1", TTL_S, incarnation=1)
