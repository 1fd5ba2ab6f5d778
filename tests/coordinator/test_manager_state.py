"""Parts of a manager: its campaigns, what it knows, whom it believes, the status."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from edl.coordinator import Registry
from edl.coordinator.manager.election import Election
from edl.coordinator.manager.overview import Overview, own_part
from edl.coordinator.manager.student_sessions import OWNER, SECRET, StudentCaller, owns, refusal_of
from edl.coordinator.manager.watch_cache import WatchCache
from edl.coordinator.registry import Row, ServiceLeadership, StoredContentPlan
from edl.coordinator.store.records import Changes, Member
from edl.runtime.errors import EdlError, Forbidden, LeaseSuperseded, RedisUnavailable
from edl.scheduler.leadership import BEATS_PER_TTL
from edl.tests.stores import FaultyStore, memory, of_service
from edl.tests.waiting import DEADLINE_S, wait_until

TTL_S, LEADER_TTL_S = 6.0, 2.0
LEASE_S = 30.0


class Mesh:
    """A registry that somebody has filled, who campaigns for its services, and their time."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.registry = Registry(FaultyStore(clock=lambda: self.now))
        self.overview = Overview(self.registry, lambda _: "m:1", clock=lambda: self.now)
        self.election = Election(self.registry, "m:1", LEADER_TTL_S, TTL_S, lambda: self.now)

    def teacher(self, name: str, service: str = "s", **facts: str) -> None:
        facts = {"incarnation": "1", "state": "serving", "content_id": "c1", **facts}
        self.registry.register("teachers", service, name, facts, LEASE_S)

    def student(self, name: str, **facts: str) -> None:
        facts = {"incarnation": "1", "state": "steady", "want": "2", **facts}
        self.registry.register("students", "s", name, facts, LEASE_S)

    def write(self, rows: dict[str, Row], **admitted: int | str) -> None:
        self.registry.lead("s", "me", 2.0)
        assert self.registry.write(
            "s", of_service(self.registry, "me"), (0, 0), (7, 1), rows, (), admitted
        )


def test_calls_that_waited_for_a_failed_read_do_not_read_in_turn() -> None:
    """While Redis hangs, the last of many calls would wait as many timeouts."""
    mesh, times, timed_out, reads = Mesh(), list[float](), threading.Event(), list[str]()

    def clock() -> float:
        times.append(len(times))
        return times[-1]

    def members(kind: str, _: str) -> list[Member]:
        reads.append(kind)
        assert timed_out.wait(DEADLINE_S)
        raise RedisUnavailable("it hangs")

    overview = Overview(mesh.registry, clock=clock)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(5) as pool:
        patch.setattr(mesh.registry, "members", members)
        calls = [pool.submit(overview.status) for _ in range(5)]
        wait_until(lambda: len(times) == 6)  # all have come, and one of them reads
        timed_out.set()
        for call in calls:
            with pytest.raises(RedisUnavailable, match="it hangs"):
                call.result(DEADLINE_S)
    assert len(reads) == 1
    assert overview.status().redis_time_ms


def test_a_service_is_led_on_after_its_last_member() -> None:
    mesh = Mesh()
    election = mesh.election
    mesh.teacher("t")
    election.renew()
    assert election.led_services() == ["s"]
    mesh.registry.leave("teachers", "s", "t", 1)  # the leader has not read that yet
    for _ in range(4):
        mesh.now += 0.5
        election.renew()
        assert election.led_services() == ["s"]
    assert election.campaigns_for("s")
    mesh.now += 2 * TTL_S
    election.renew()
    assert election.led_services() == []
    assert not election.campaigns_for("s")
    assert mesh.registry.lead("s", "another#1", LEADER_TTL_S).leader == "another#1"


def test_a_service_that_cannot_be_led_hinders_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = Mesh()
    for service in ("a", "b", "c"):
        mesh.teacher("t", service)
    lead, broken = mesh.registry.lead, {"b"}

    def refuses(service: str, holder: str, ttl_s: float) -> ServiceLeadership:
        if service in broken:
            raise RedisUnavailable("a value of another type")
        return lead(service, holder, ttl_s)

    monkeypatch.setattr(mesh.registry, "lead", refuses)
    for _ in range(2):
        mesh.election.renew()
        assert sorted(mesh.election.led_services()) == ["a", "c"]
        assert mesh.election.answering
    assert caplog.text.count("service b: its leadership") == 1
    broken |= {"a", "c"}
    mesh.election.renew()
    assert not mesh.election.answering
    broken.clear()
    mesh.election.renew()
    assert sorted(mesh.election.led_services()) == ["a", "b", "c"]
    assert mesh.election.answering
    memory(mesh.registry).set_available(False)
    mesh.election.renew()
    assert not mesh.election.answering


@pytest.mark.parametrize("leader_ttl_s", [0.3, 2.0, 60.0])
def test_no_lease_runs_out_in_a_silence_that_goes_unnoticed(leader_ttl_s: float) -> None:
    mesh = Mesh()
    election = Election(mesh.registry, "m:1", leader_ttl_s, TTL_S, lambda: mesh.now)
    mesh.teacher("t")
    election.renew()
    for _ in range(20):
        mesh.now += 0.5
        election.renew()
    mesh.now += TTL_S * (1 - 1 / BEATS_PER_TTL) + 0.01  # a teacher may have sent a beat earlier
    assert election.permit() is None


def test_an_error_does_not_end_the_election(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh()
    mesh.teacher("t")

    def fails_once() -> list[str]:
        monkeypatch.undo()
        mesh.election.campaign_for("s")  # so that it looks again at once
        raise ValueError("ours")

    monkeypatch.setattr(mesh.registry, "services", fails_once)
    mesh.election.start()
    wait_until(lambda: mesh.election.led_services() == ["s"])
    mesh.election.stop()


def test_a_stop_while_the_registry_hangs_waits_for_one_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh()
    for service in ("a", "b", "c"):
        mesh.teacher("t", service)
    mesh.election.renew()
    hang = Mock(side_effect=RedisUnavailable("it hangs"))
    monkeypatch.setattr(mesh.registry, "resign", hang)
    mesh.election.stop()
    assert hang.call_count == 1


@pytest.fixture
def mesh() -> Mesh:
    mesh = Mesh()
    mesh.registry.register("managers", "", "m:1", {"incarnation": "1"}, LEASE_S)
    for name in ("admitted", "idle", "waiting", "bad"):
        mesh.teacher(name)
    mesh.teacher("leaving", state="draining")
    mesh.student("j/0", samples_per_second="10.5", starved_seconds="1")
    mesh.student("j/1", samples_per_second="1.5", starved_seconds="2", state="starved")
    mesh.student("j/2", want="1")
    rows = {
        "j/0": Row(("admitted",), content_id="c1", reason="as told"),
        "j/1": Row(("admitted", "leaving"), content_id="c1"),
    }
    bad = "refused: another instance answers"
    mesh.write(rows, admitted=1, idle=1, leaving=1, bad=bad)
    mesh.registry.set_content_plan("s", StoredContentPlan("c1", "c2", "epoch"), 0)
    return mesh


def test_it_is_summed_up_and_those_that_need_a_look_come_first(mesh: Mesh) -> None:
    status = mesh.overview.status()
    assert list(status.managers) == ["m:1"]
    (service,) = status.services
    assert (service.teacher_count, service.student_count) == (5, 3)
    assert dict(service.teacher_states) == {
        "serving": 2, "draining": 1, "waiting": 1, "refused": 1,
    }  # fmt: skip
    assert dict(service.student_states) == {"steady": 2, "starved": 1}
    assert (service.wanted, service.assigned) == (5, 3)
    assert (service.samples_per_second, service.starved_seconds) == (12.0, 3.0)
    assert (service.term, service.counter, service.leader) == (7, 1, "m:1")
    assert (service.content_id, service.next_content_id, service.upgrade_at) == (
        "c1", "c2", "epoch",
    )  # fmt: skip
    assert dict(service.content_students) == {"c1": 2}
    assert dict(service.content_teachers) == {"c1": 5}
    assert [(t.teacher_id, t.admission) for t in service.teachers][:2] == [
        ("bad", "refused: another instance answers"), ("waiting", ""),
    ]  # fmt: skip
    assert [t.teacher_id for t in service.teachers][2:] == ["leaving", "idle", "admitted"]
    assert [s.report.student_id for s in service.students] == ["j/2", "j/1", "j/0"]
    assert service.students[2].reason == "as told"
    (few,) = mesh.overview.status(max_members=2).services
    assert [t.teacher_id for t in few.teachers] == ["bad", "waiting"]
    assert (len(few.students), few.teacher_count) == (2, 5)


def test_a_reading_serves_all_that_ask_within_half_a_second(mesh: Mesh) -> None:
    first = mesh.overview.status()
    assert not first.services[0].HasField("desired_teachers")
    mesh.registry.leave("teachers", "s", "idle")
    assert mesh.registry.set_desired("s", of_service(mesh.registry, "me"), 0, "no student")
    assert mesh.overview.status() is first
    mesh.now += 0.6
    (service,) = mesh.overview.status("s").services
    assert service.teacher_count == 4
    assert (service.HasField("desired_teachers"), service.desired_reason) == (True, "no student")
    assert not mesh.overview.status("another").services
    mesh.now += LEASE_S
    mesh.registry.sweep("teachers", "s")
    mesh.teacher("late")
    assert [t.teacher_id for t in mesh.overview.status().services[0].teachers] == ["late"]
    memory(mesh.registry).set_available(False)
    mesh.now += 0.6
    with pytest.raises(RedisUnavailable):
        mesh.overview.status()


def test_students_that_want_very_many_teachers_can_be_shown(mesh: Mesh) -> None:
    most = 2**32 - 1
    for name in ("greedy/0", "greedy/1"):
        mesh.student(name, want=str(most))
    whole = mesh.overview.status()
    assert whole.services[0].wanted == most
    assert own_part(whole, lambda _: {"greedy/0", "greedy/1"}).services[0].wanted == most


GRACE_S = 8.0


def full(*names: str, cursor: int = 1) -> Changes:
    return Changes(cursor, tuple(Member(name) for name in names), full=True)


def mirror(*names: str) -> WatchCache:
    made = WatchCache(GRACE_S)
    made.apply(full(*names), 0.0)
    return made


def test_a_member_that_was_missed_is_looked_for_once() -> None:
    known = mirror("a")
    known.compare({"a", "b"}, 1.0)
    assert known.cursor == 1, "it came between two readings"
    known.apply(Changes(2, (Member("b"),)), 1.1)
    known.compare({"a", "b", "c"}, 2.0)
    assert known.cursor == 2
    known = mirror("a")
    cursors = []
    for second in range(1, 6):
        known.compare({"a", "missed"}, second)
        cursors.append(known.cursor)
        if known.cursor == 0:
            known.apply(full("a"), second)
    assert cursors == [1, 0, 1, 1, 1]


def test_a_lease_that_no_sweep_takes_out_does_not_begin_the_time_of_grace_anew() -> None:
    known = mirror("a")
    assert known.add_missing("dead", 0.0)
    for second in (2.0, 4.0, 6.0):
        known.compare({"a", "dead"}, second)  # its lease has run out, and nobody may sweep yet
        assert known.drop_overdue(second) == ()
        assert known.cursor == 0
        known.apply(full("a"), second)
    known.compare({"a"}, 8.0)
    assert known.drop_overdue(8.0) == ("dead",)


def test_a_member_that_came_back_unseen_is_read_before_it_is_given_up() -> None:
    known = mirror("a", "b")
    known.compare({"a"}, 0.0)
    known.compare({"a", "b"}, GRACE_S + 1)
    assert known.drop_overdue(GRACE_S + 1) == ()
    known.apply(full("a", "b"), GRACE_S + 1)
    assert known.drop_overdue(9 * GRACE_S) == ()


ME = StudentCaller("me", "mine")
FACTS = {"incarnation": "5", **ME.facts()}


@pytest.mark.parametrize(
    ("caller", "incarnation", "expected"),
    [
        (ME, 5, None), (ME, 4, LeaseSuperseded),
        (StudentCaller("me", "new"), 6, None), (StudentCaller("me", "guess"), 5, Forbidden),
        *((StudentCaller("you", "guess"), incarnation, Forbidden) for incarnation in (4, 5, 6)),
        (StudentCaller("me again, by another token", "mine"), 5, None),
        (StudentCaller("you", "mine"), 6, Forbidden),
    ],
)  # fmt: skip
def test_the_first_owns_the_name(
    caller: StudentCaller, incarnation: int, expected: type[EdlError] | None
) -> None:
    no = refusal_of("j/0", incarnation, caller, FACTS)
    assert (type(no) if no else None) is expected
    assert set(FACTS) == {"incarnation", OWNER, SECRET}
    assert not {ME.principal, ME.secret} & set(" ".join(FACTS.values()).split())
    for nothing in (None, {"incarnation": "1"}, {"incarnation": "odd"}):
        assert refusal_of("j/0", 1, caller, nothing) is None


def test_stored_hashes_that_are_no_hashes_belong_to_nobody() -> None:
    odd = {"incarnation": "5", OWNER: "\ufffd", SECRET: "\ufffd"}  # bytes that are not UTF-8
    for incarnation in (4, 5, 6):
        assert isinstance(refusal_of("j/0", incarnation, ME, odd), Forbidden)
    assert not owns("me", odd)
