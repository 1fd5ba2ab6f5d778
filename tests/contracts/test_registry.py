"""One contract, two registries: within the process, and on a real Valkey."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from edl.coordinator import Registry
from edl.coordinator.registry import Kind, LogEntry
from edl.coordinator.store import redis_leases
from edl.coordinator.store.records import FACTS_TTLS, BeatAnswer, MemberBeat, SweepPermit
from edl.runtime.errors import LeaseSuperseded, UsageError
from edl.tests.contracts.conftest import LONG_S, SHORT_S, Registries
from edl.tests.stores import renew

TTL_S = 1.0  # after its end, facts are kept for 4 s


def enter(
    registry: Registry, member: str, incarnation: int = 1, ttl_s: float = LONG_S, **facts: str
) -> None:
    registry.register("teachers", "s", member, {"incarnation": str(incarnation), **facts}, ttl_s)


def test_a_registered_member_lives_until_its_deadline(registries: Registries) -> None:
    enter(registries.one, "t1", address="h:1")
    (member,) = registries.one.members("teachers", "s")
    assert (member.member, member.incarnation) == ("t1", 1)
    assert member.facts["address"] == "h:1"
    assert 0 < member.remaining_s <= LONG_S
    assert renew(registries.one, "teachers", "s", "t1", 2 * LONG_S, incarnation=1)
    (member,) = registries.one.members("teachers", "s")
    assert LONG_S < member.remaining_s <= 2 * LONG_S, "beats prolong it"
    assert renew(registries.one, "teachers", "s", "t1", SHORT_S, incarnation=1)
    registries.pass_s(SHORT_S + 0.01)
    assert registries.one.members("teachers", "s") == []


def test_a_late_beat_revives_what_no_sweep_took_and_nothing_else(registries: Registries) -> None:
    assert not renew(registries.one, "teachers", "s", "t1", TTL_S, incarnation=1)
    assert registries.one.names("teachers", "s") == set()
    enter(registries.one, "living")
    enter(registries.one, "t1", ttl_s=TTL_S)
    registries.pass_s(TTL_S * 1.2)
    assert renew(registries.one, "teachers", "s", "t1", SHORT_S, incarnation=1)
    registries.pass_s(SHORT_S * 1.2)
    assert registries.one.sweep("teachers", "s") == ["t1"]
    assert registries.one.sweep("teachers", "s") == [], "the dead are named once"
    assert registries.one.names("teachers", "s") == {"living"}
    assert not renew(registries.one, "teachers", "s", "t1", TTL_S, incarnation=1)


def test_followers_see_a_member_that_comes_back_after_its_deadline(registries: Registries) -> None:
    """They may have begun meanwhile: then they did not list it."""
    enter(registries.one, "t1", ttl_s=TTL_S)
    registries.pass_s(TTL_S * 1.2)
    began = registries.another.changes("teachers", "s")
    assert began.members == ()
    assert renew(registries.one, "teachers", "s", "t1", LONG_S, incarnation=1)
    later = registries.another.changes("teachers", "s", began.cursor)
    assert [one.member for one in later.members] == ["t1"]
    assert renew(registries.one, "teachers", "s", "t1", LONG_S, incarnation=1)
    assert not registries.another.changes("teachers", "s", later.cursor).members


def test_a_beat_is_not_kept_by_a_deadline_of_a_former_clock(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of Redis was set forward, or the machine of the member slept."""
    own_s = [1000.0]
    monkeypatch.setattr(redis_leases, "time", SimpleNamespace(monotonic=lambda: own_s[0]))
    enter(registries.one, "t1", ttl_s=TTL_S)
    assert renew(registries.one, "teachers", "s", "t1", TTL_S, incarnation=1)
    registries.pass_s(TTL_S * 1.2)
    own_s[0] += 0.01
    began_ms = registries.one.time_ms()
    facts = {"in_flight": "1"}  # such a beat reads Redis's clock
    assert renew(registries.one, "teachers", "s", "t1", TTL_S, incarnation=1, facts=facts)
    (member,) = registries.one.read("teachers", "s", ["t1"])
    ends_ms = registries.one.time_ms() + member.remaining_s * 1000
    assert ends_ms >= began_ms + TTL_S * 1000 - 1


def test_facts_are_replaced_by_register_and_added_to_by_beat(registries: Registries) -> None:
    enter(registries.one, "t1", address="h:1", state="serving")
    renew(registries.one, "teachers", "s", "t1", LONG_S, incarnation=1, facts={"state": "draining"})
    (member,) = registries.one.members("teachers", "s")
    assert dict(member.facts) == {"incarnation": "1", "address": "h:1", "state": "draining"}
    enter(registries.one, "t1", 2, device="cpu")
    (member,) = registries.one.members("teachers", "s")
    assert dict(member.facts) == {"incarnation": "2", "device": "cpu"}


@pytest.mark.parametrize(
    ("older", "newer"), [(1, 2), (9, 10), (2**60, 2**60 + 1), (1_699_999_999, 1_700_000_000_000)]
)
def test_an_older_incarnation_changes_nothing(
    registries: Registries, older: int, newer: int
) -> None:
    enter(registries.one, "t1", older)
    enter(registries.one, "t1", newer, address="new")
    with pytest.raises(LeaseSuperseded, match=f"newer incarnation of t1 than {older}"):
        enter(registries.one, "t1", older, address="old")
    old = {"address": "old"}
    assert not renew(registries.one, "teachers", "s", "t1", LONG_S, incarnation=older, facts=old)
    assert not registries.one.leave("teachers", "s", "t1", older)
    (member,) = registries.one.members("teachers", "s")
    assert (member.incarnation, member.facts["address"]) == (newer, "new")


def test_changes_tell_joining_leaving_and_dying_apart(registries: Registries) -> None:
    registry = registries.one
    enter(registry, "a")
    start = registry.changes("teachers", "s")
    assert ([m.member for m in start.members], start.full) == (["a"], True)

    enter(registry, "leaver", 7)
    enter(registry, "sleeper", ttl_s=TTL_S)
    joined = registry.changes("teachers", "s", start.cursor)
    assert sorted(m.member for m in joined.members) == ["leaver", "sleeper"]
    assert not joined.full

    assert registry.leave("teachers", "s", "leaver", 7)
    assert not registry.leave("teachers", "s", "leaver", 7)
    left = registry.changes("teachers", "s", joined.cursor)
    assert (left.members, left.left, left.lost) == ((), ("leaver",), ())
    registries.pass_s(TTL_S * 1.1)
    registry.sweep("teachers", "s")
    gone = registry.changes("teachers", "s", joined.cursor)
    assert (gone.members, gone.left, gone.lost) == ((), ("leaver",), ("sleeper",))
    nothing = registry.changes("teachers", "s", gone.cursor)
    assert (nothing.members, nothing.left, nothing.lost) == ((), (), ())
    assert nothing.cursor == gone.cursor

    everything = registry.changes("teachers", "s")
    assert [m.member for m in everything.members] == ["a"]
    assert (everything.left, everything.lost, everything.full) == (("leaver",), ("sleeper",), True)
    (dead,) = registry.read("teachers", "s", ["sleeper"])
    assert dead.remaining_s <= 0

    enter(registry, "leaver", 8)  # it comes back, so it has not left
    back = registry.changes("teachers", "s", left.cursor)
    assert ([m.member for m in back.members], back.left) == (["leaver"], ())
    for cursor in (start.cursor, 0):
        assert registry.changes("teachers", "s", cursor).left == ()
    assert registry.leave("teachers", "s", "a")  # whoever holds it


def test_a_member_that_leaves_while_changes_are_read_is_not_lost(registries: Registries) -> None:
    """Reading takes several round trips; each member here leaves as soon as it has registered."""
    count, left, lost = 300, set[str](), set[str]()

    def come_and_go() -> None:
        for number in range(count):
            enter(registries.another, f"t{number}")
            registries.another.leave("teachers", "s", f"t{number}", 1)

    enter(registries.one, "stays")
    cursor = registries.one.changes("teachers", "s").cursor
    with ThreadPoolExecutor(1) as pool:
        goes = pool.submit(come_and_go)
        while len(left | lost) < count:
            is_over = goes.done()
            changes = registries.one.changes("teachers", "s", cursor)
            cursor = changes.cursor
            left |= {*changes.left}
            lost |= {*changes.lost}
            assert not is_over or len(left | lost) == count
        goes.result()
    assert lost == set()


def test_changes_read_facts_again_only_when_managers_are_concerned(registries: Registries) -> None:
    registry = registries.one
    enter(registry, "t1", state="serving")
    cursor = registry.changes("teachers", "s").cursor
    renew(registry, "teachers", "s", "t1", LONG_S, incarnation=1)
    renew(registry, "teachers", "s", "t1", LONG_S, incarnation=1, facts={"in_flight": "3"})
    assert registry.changes("teachers", "s", cursor).members == ()
    renew(registry, "teachers", "s", "t1", LONG_S, incarnation=1, facts={"state": "draining"})
    (member,) = registry.changes("teachers", "s", cursor).members
    assert (member.facts["state"], member.facts["in_flight"]) == ("draining", "3")


@pytest.mark.system  # it takes 5 s
def test_facts_outlive_the_deadline_so_that_the_dead_can_be_named(registries: Registries) -> None:
    enter(registries.one, "living")
    enter(registries.one, "t1", ttl_s=TTL_S)
    cursor = registries.one.changes("teachers", "s").cursor
    registries.pass_s(TTL_S * 1.1)
    registries.one.sweep("teachers", "s")
    assert registries.one.changes("teachers", "s", cursor).lost == ("t1",)
    registries.pass_s(TTL_S * (FACTS_TTLS - 0.9))  # nothing is left of it, and yet it has not left
    gone = registries.one.changes("teachers", "s", cursor)
    assert (gone.left, gone.lost) == ((), ("t1",))


def test_expired_facts_do_not_count_as_left_and_keys_go(registries: Registries) -> None:
    enter(registries.one, "a", ttl_s=SHORT_S)
    enter(registries.one, "leaver", ttl_s=SHORT_S)
    registries.one.leave("teachers", "s", "leaver", 1)
    registries.pass_s(SHORT_S * (FACTS_TTLS + 0.1))
    everything = registries.one.changes("teachers", "s")
    assert (everything.members, everything.left) == ((), ("leaver",))
    assert registries.one.names("teachers", "s") == set()
    assert registries.one.services() == []


def test_sweep_with_an_expired_or_foreign_mandate_removes_no_member(registries: Registries) -> None:
    registry = registries.one
    enter(registry, "living")  # where all leases have ended, nothing is left soon
    enter(registry, "t1", ttl_s=SHORT_S)
    answer = registry.lead("s", "m#1", LONG_S)
    registries.pass_s(SHORT_S * 1.1)
    late = SweepPermit(answer.registry_id, answer.time_ms + round(SHORT_S * 800))
    assert registry.sweep("teachers", "s", late) == []
    assert registry.sweep("teachers", "s", SweepPermit("f" * 40, answer.time_ms + 60_000)) == []
    assert registry.names("teachers", "s") == {"living", "t1"}
    good = SweepPermit(answer.registry_id, answer.time_ms + 60_000)
    assert registry.sweep("teachers", "s", good) == ["t1"]


def test_a_log_is_found_when_nobody_is_left(registries: Registries) -> None:
    enter(registries.one, "t1")
    assert registries.one.services_with_log() == []
    fence = registries.one.lead("s", "m#1", 30.0).fence
    entry = LogEntry("left", "t1", "left by itself")
    assert registries.one.write("s", fence, (0, 0), (1, 1), {}, [entry])
    registries.one.leave("teachers", "s", "t1")
    assert (registries.one.services(), registries.one.services_with_log()) == ([], ["s"])


def test_kinds_and_services_are_apart(registries: Registries) -> None:
    registry = registries.one
    places: list[tuple[Kind, str]] = [
        ("teachers", "a"), ("students", "a"), ("managers", ""), ("teachers", "b"),
    ]  # fmt: skip
    for kind, service in places:
        registry.register(kind, service, "x/0", {"incarnation": "1"}, LONG_S)
    registry.leave("teachers", "b", "x/0")
    assert [registry.names(*place) for place in places] == [{"x/0"}] * 3 + [set()]
    assert registry.services() == ["a"]


@pytest.mark.parametrize("bad", ["", "a b", "a{b}", "a*", "ü", "x" * 201, "a\n"])
def test_names_that_cannot_stand_in_a_key_are_refused(registries: Registries, bad: str) -> None:
    with pytest.raises(UsageError, match="the id of a teacher"):
        enter(registries.one, bad)
    for service in (bad, "a:b", "a/b", "x" * 129):
        with pytest.raises(UsageError, match="the name of a service"):
            registries.one.register("teachers", service, "t1", {"incarnation": "1"}, LONG_S)


def test_a_drain_comes_with_the_next_beat_and_ends_with_it(registries: Registries) -> None:
    registry = registries.one
    assert not registry.request_drain("s", "t1")
    assert registry.members("teachers", "s") == []
    enter(registry, "t1", state="serving")
    for _ in range(3):  # so that the next beats are plain ones
        assert renew(registry, "teachers", "s", "t1", LONG_S, incarnation=1) is BeatAnswer.KEPT
    cursor = registry.changes("teachers", "s").cursor
    assert registry.request_drain("s", "t1")
    (member,) = registry.changes("teachers", "s", cursor).members
    assert member.draining
    assert member.facts["state"] == "draining"
    enter(registry, "t1", 1, state="serving")  # the same instance, in another Redis
    for ttl_s in (2 * LONG_S, SHORT_S):  # the first one moves the deadline
        assert registry.members("teachers", "s")[0].draining
        assert renew(registry, "teachers", "s", "t1", ttl_s, incarnation=1) is BeatAnswer.DRAIN
    registries.pass_s(SHORT_S * 1.1)  # the deadline is that of the beat
    assert registry.sweep("teachers", "s") == ["t1"]
    enter(registry, "t1", 2, state="serving")
    assert renew(registry, "teachers", "s", "t1", LONG_S, incarnation=2) is BeatAnswer.KEPT
    assert not registry.members("teachers", "s")[0].draining


def test_many_beats_have_their_answers_in_order(registries: Registries) -> None:
    registry = registries.one
    facts = {"incarnation": "7", "want": "1"}
    crowd = [f"j/{n}" for n in range(1200)]
    for name in crowd:
        registry.register("students", "s", name, facts, LONG_S)
    assert len(registry.members("students", "s")) == 1200
    assert len(registry.changes("students", "s", 1).members) == 1200
    cursor = registry.changes("students", "s").cursor
    beats = [MemberBeat(name, 7, {"volume_bytes": "5"}) for name in crowd]
    beats[3] = MemberBeat("j/3", 6)
    beats[5] = MemberBeat("nobody/0", 7)
    beats[7] = MemberBeat("j/7", 7, {"want": "2"}, notify=True)
    beats[9] = MemberBeat("j/9", 7, {"t_s_seconds": "0.1"})
    answers = registry.beat_many("students", [("s", beat) for beat in beats], LONG_S)
    assert [n for n, beat in enumerate(answers) if beat is not BeatAnswer.KEPT] == [3, 5]
    assert [m.member for m in registry.changes("students", "s", cursor).members] == ["j/7"]
    told = registry.read("students", "s", ["j/9", "nobody/0", "j/3"])
    assert [(m.member, m.facts.get("t_s_seconds")) for m in told] == [("j/9", "0.1"), ("j/3", None)]
    assert all(0 < m.remaining_s <= LONG_S for m in told)
    with pytest.raises(LeaseSuperseded):
        registry.register("students", "s", "j/1", {"incarnation": "6"}, LONG_S)


def test_beats_of_teachers_that_are_sent_together_hear_all_that_one_hears(
    registries: Registries,
) -> None:
    registry, names = registries.one, [f"t{number}" for number in range(6)]
    of = {name: f"s{name[-1]}" for name in names}
    for name in names:
        registry.register("teachers", of[name], name, {"incarnation": "1"}, LONG_S)

    def beat(ttl_s: float) -> list[BeatAnswer]:
        beats = [(of[name], MemberBeat(name, 1)) for name in names]
        return registry.beat_many("teachers", beats, ttl_s)

    for _ in range(3):  # so that the next beats are plain ones
        assert beat(LONG_S) == [BeatAnswer.KEPT] * 6
    assert beat(2 * LONG_S) == [BeatAnswer.KEPT] * 6
    assert all(registry.members("teachers", s)[0].remaining_s > LONG_S for s in of.values())
    registries.another.request_drain("s1", "t1")
    registries.another.leave("teachers", "s2", "t2")
    registries.another.register("teachers", "s3", "t3", {"incarnation": "2"}, 3 * LONG_S)
    expected = [
        BeatAnswer.KEPT,
        BeatAnswer.DRAIN,
        BeatAnswer.UNKNOWN,
        BeatAnswer.UNKNOWN,
        BeatAnswer.KEPT,
        BeatAnswer.KEPT,
    ]
    assert beat(2 * LONG_S) == expected
    assert registry.members("teachers", "s2") == []


def test_a_reading_says_when_the_next_deadline_passes(registries: Registries) -> None:
    registry = registries.one
    assert registry.changes("teachers", "s").due_s == float("inf")
    enter(registry, "t1")
    enter(registry, "t2", ttl_s=60.0)
    everything = registry.changes("teachers", "s")
    assert 0 < everything.due_s <= LONG_S
    assert 0 < registry.changes("teachers", "s", everything.cursor).due_s <= everything.due_s
    renew(registry, "teachers", "s", "t1", SHORT_S, incarnation=1)
    registries.pass_s(SHORT_S * 1.1)
    assert registry.changes("teachers", "s", everything.cursor).due_s <= 0
    registry.sweep("teachers", "s")
    assert 0 < registry.changes("teachers", "s", everything.cursor).due_s < 60.0 - SHORT_S


def test_plain_beats_end_with_the_lease_of_another_or_none(registries: Registries) -> None:
    registry = registries.one
    enter(registry, "t1", 1)
    for ttl_s in (LONG_S, LONG_S, SHORT_S):  # the last one comes late for its time to live
        assert renew(registry, "teachers", "s", "t1", ttl_s, incarnation=1)
        registries.pass_s(SHORT_S / 2)
    registry.leave("teachers", "s", "t1")
    assert not renew(registry, "teachers", "s", "t1", LONG_S, incarnation=1)
    ghost = registries.another
    enter(ghost, "t1", 1)
    assert renew(ghost, "teachers", "s", "t1", LONG_S, incarnation=1)
    enter(registry, "t1", 2)
    registries.pass_s(0.05)
    assert not renew(ghost, "teachers", "s", "t1", LONG_S, incarnation=1)
    assert renew(registry, "teachers", "s", "t1", LONG_S, incarnation=2)


def test_figures_of_many_beats_do_not_concern_managers(registries: Registries) -> None:
    registry, names = registries.one, ["j/0", "j/1", "j/2"]
    for name in names:
        registry.register("students", "s", name, {"incarnation": "1", "want": "1"}, LONG_S)

    def beat(volume: int, ttl_s: float) -> list[BeatAnswer]:
        beats = [MemberBeat(name, 1, {"volume_bytes": str(volume)}) for name in names]
        return registry.beat_many("students", [("s", beat) for beat in beats], ttl_s)

    assert beat(1, LONG_S) == [BeatAnswer.KEPT] * 3
    cursor = registry.changes("students", "s").cursor
    assert beat(2, 2 * LONG_S) == [BeatAnswer.KEPT] * 3
    assert registry.changes("students", "s", cursor).members == ()
    for member in registry.members("students", "s"):
        assert member.facts["volume_bytes"] == "2"
        assert member.remaining_s > LONG_S
    registries.another.register("students", "s", "j/0", {"incarnation": "2", "want": "1"}, LONG_S)
    registry.leave("students", "s", "j/1", 1)
    assert beat(3, LONG_S) == [BeatAnswer.UNKNOWN, BeatAnswer.UNKNOWN, BeatAnswer.KEPT]
    left = {m.member: m.incarnation for m in registry.members("students", "s")}
    assert left == {"j/0": 2, "j/2": 1}
