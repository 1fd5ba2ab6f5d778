"""A manager's threads: streams, incarnations, outages; over a registry within the process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pytest

from edl.coordinator import Heartbeat, MemoryRegistry
from edl.coordinator.config import ManagerConfig
from edl.coordinator.manager.admission import Verdict
from edl.coordinator.manager.claims import Claimant
from edl.coordinator.manager.manager import Manager
from edl.errors import Forbidden, LeaseSuperseded, RegistryUnavailable, RetryableError
from edl.proto import coordinator_pb2 as pb
from edl.tests.ground.programs import wait_for

from .world import FakeProber, FakeStream

TTL_S = 2.0
CONFIG = ManagerConfig(ttl_s=TTL_S, leader_ttl_s=0.4, sweep_s=0.01, outage_sweep_s=0.02)
ME = Claimant(principal="me", secret="mine")


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def start(registry: MemoryRegistry) -> Iterator[Callable[..., Manager]]:
    started: list[Manager] = []

    def one(address: str = "m:1", prober: FakeProber | None = None, **more: Any) -> Manager:
        manager = Manager(registry, replace(CONFIG, **more), address=address, prober=prober)
        manager.start()
        started.append(manager)
        return manager

    yield one
    for manager in started:
        manager.stop()


@pytest.fixture
def manager(start: Callable[..., Manager]) -> Manager:
    return start()


@pytest.fixture
def teacher(registry: MemoryRegistry) -> Iterator[Callable[[str], Heartbeat]]:
    hearts: list[Heartbeat] = []

    def start(name: str) -> Heartbeat:
        facts = {"incarnation": "1", "address": f"{name}:1", "state": "serving"}
        heart = Heartbeat(registry, "teachers", "s", name, lambda: facts, TTL_S)
        heart.start()
        hearts.append(heart)
        return heart

    yield start
    for heart in hearts:
        heart.stop()


def report(want: int = 1, student: str = "j/0", incarnation: int = 1, **more: Any) -> Any:
    return pb.StudentReport(
        service="s", student_id=student, incarnation=incarnation, want=want, **more
    )


def subscribe(manager: Manager, caller: Claimant = ME, **fields: Any) -> FakeStream:
    stream = FakeStream()
    manager.subscribe(stream, report(**fields), caller)
    wait_for(lambda: bool(stream.assignments or stream.error))
    return stream


def test_a_student_is_told_its_teachers_and_of_every_new_one(
    manager: Manager, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    stream = subscribe(manager, want=2)
    wait_for(lambda: stream.teachers == ["a"])
    teacher("b")
    wait_for(lambda: stream.teachers == ["a", "b"])


def test_a_student_without_teachers_is_told_so(manager: Manager) -> None:
    stream = subscribe(manager)
    assert stream.teachers == []
    assert stream.assignments[-1].reason


def test_students_at_two_managers_share_what_there_is(
    start: Callable[..., Manager], teacher: Callable[[str], Heartbeat]
) -> None:
    first, second = (start(f"m:{n}", leader_ttl_s=30.0) for n in (1, 2))
    teacher("a")
    teacher("b")
    one, two = subscribe(first, student="j/0"), subscribe(second, student="j/1")
    wait_for(lambda: sorted((one.teachers or []) + (two.teachers or [])) == ["a", "b"])
    led = [bool(s.leading) for m in (first, second) for s in m.view().services]
    wait_for(lambda: [bool(s.leading) for m in (first, second) for s in m.view().services] != [])
    assert led.count(True) <= 1


def test_another_manager_leads_when_one_stops(
    start: Callable[..., Manager], teacher: Callable[[str], Heartbeat]
) -> None:
    first = start("m:1", leader_ttl_s=30.0)  # it gives the lease back: nobody waits for its end
    subscribe(first, student="j/0")
    second = start("m:2", leader_ttl_s=30.0)
    stream = subscribe(second, student="j/1")
    wait_for(lambda: [s.leader for s in second.view().services] == ["m:1"])
    first.stop()
    teacher("a")
    wait_for(lambda: stream.teachers == ["a"] or stream.teachers == [])
    wait_for(lambda: [s.leader for s in second.view().services] == ["m:2"])


def test_a_newer_incarnation_supersedes_the_older_at_once(manager: Manager) -> None:
    old = subscribe(manager, incarnation=1)
    new = subscribe(manager, Claimant("me", "another"), incarnation=2)
    wait_for(lambda: isinstance(old.error, LeaseSuperseded))
    assert new.error is None
    late = subscribe(manager, incarnation=1)
    assert isinstance(late.error, LeaseSuperseded)
    assert new.error is None


def test_a_second_stream_of_one_incarnation_replaces_the_first(
    manager: Manager, registry: MemoryRegistry
) -> None:
    old = subscribe(manager)
    new = subscribe(manager)
    wait_for(lambda: isinstance(old.error, RetryableError))
    manager.end(old, report(), clean=True)  # the end of the old one is not the student's
    manager.report(new, report(want=5))
    wait_for(lambda: registry.members("students", "s")[0].facts["want"] == "5")


@pytest.mark.parametrize(
    ("caller", "incarnation"),
    [
        (Claimant("another", "guess"), 1),
        (Claimant("another", "guess"), 2),
        (Claimant("me", "guess"), 1),
    ],
)
def test_a_stranger_cannot_take_a_students_place(
    start: Callable[..., Manager], caller: Claimant, incarnation: int
) -> None:
    for manager in (start("m:1"), start("m:2")):
        owner = subscribe(manager)
        stranger = subscribe(manager, caller, incarnation=incarnation)
        assert isinstance(stranger.error, Forbidden)
        assert not stranger.assignments
        assert owner.error is None


def test_a_clean_end_gives_teachers_back_at_once(
    manager: Manager, registry: MemoryRegistry, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    teacher("b")
    stream = subscribe(manager, want=2)
    other = subscribe(manager, want=2, student="k/0")
    manager.end(stream, report(), clean=True)

    def all_are_its() -> bool:
        manager.report(other, report(want=2, student="k/0"))
        return other.teachers == ["a", "b"]

    wait_for(all_are_its)
    wait_for(lambda: registry.names("students", "s") == {"k/0"})


def test_a_student_that_reports_no_more_is_gone_in_time(
    manager: Manager, registry: MemoryRegistry, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    stream = subscribe(manager)
    wait_for(lambda: stream.teachers == ["a"])
    manager.end(stream, report(), clean=False)
    assert registry.table("s").rows["j/0"].teachers == ("a",)
    wait_for(lambda: "j/0" not in registry.table("s").rows)
    assert any(event.kind == "gone" for event in registry.events("s"))


def test_an_outage_takes_nothing_away_and_is_logged_once(
    manager: Manager,
    registry: MemoryRegistry,
    teacher: Callable[[str], Heartbeat],
    caplog: pytest.LogCaptureFixture,
) -> None:
    teacher("a")
    stream = subscribe(manager)
    wait_for(lambda: stream.teachers == ["a"])
    before = len(stream.assignments)
    with caplog.at_level(logging.INFO, "edl.coordinator.manager.election"):
        registry.set_available(False)
        wait_for(lambda: bool(caplog.records))
        wait_until = registry._clock() + 1.5 * TTL_S
        while registry._clock() < wait_until:  # old leases run out in the meantime
            manager.report(stream, report(want=1))
            assert stream.teachers == ["a"]
        registry.clear()
        registry.set_available(True)
        manager.report(stream, report(teachers=["a"]))
        wait_for(lambda: any("answers again" in r.getMessage() for r in caplog.records))
    levels = [r.levelno for r in caplog.records if r.name == "edl.coordinator.manager.election"]
    assert levels.count(logging.WARNING) == 1
    wait_for(lambda: registry.names("teachers", "s") == {"a"})
    wait_for(lambda: registry.names("students", "s") == {"j/0"})
    wait_for(lambda: len(stream.assignments) > before)  # a new term
    told = [[t.teacher_id for t in told.teachers] for told in stream.assignments[before:]]
    assert told == [["a"]] * len(told)


@pytest.mark.serial
def test_each_death_is_noticed_at_its_moment_however_seldom_one_looks(
    registry: MemoryRegistry,
) -> None:
    lives_s = {"a": 4.5, "b": 5.2, "c": 5.9}
    dies_s = {name: time.monotonic() + life_s for name, life_s in lives_s.items()}
    for name, life_s in lives_s.items():
        facts = {"incarnation": "1", "address": f"{name}:1"}
        registry.register("teachers", "s", name, facts, life_s)
    config = ManagerConfig(ttl_s=2.0, leader_ttl_s=30.0, sweep_s=2.0, admission=False)
    manager = Manager(registry, config, address="m:1")
    manager.start()
    try:
        stream = subscribe(manager, want=3)

        def is_told_of(dead: str) -> bool:
            manager.report(stream, report(want=3))
            return dead not in (stream.teachers or ())

        for name, at_s in dies_s.items():
            wait_for(partial(is_told_of, name))
            assert -0.01 <= time.monotonic() - at_s < 0.5
    finally:
        manager.stop()


def test_a_teacher_is_probed_before_students_hear_of_it(
    start: Callable[..., Manager],
    registry: MemoryRegistry,
    teacher: Callable[[str], Heartbeat],
) -> None:
    prober = FakeProber()
    manager = start(prober=prober)
    stream = subscribe(manager)
    teacher("a")
    wait_for(lambda: [name for name, _ in prober.asked] == ["a"])
    assert stream.teachers == []
    prober.asked[0][1](Verdict(ok=False, retry=True, why="it does not answer"))
    wait_for(lambda: len(prober.asked) == 2)
    assert [e.text for e in registry.events("s") if e.kind == "refused"] == [
        "refused: it does not answer"
    ]
    status = manager.status().services[0]
    assert (dict(status.teacher_states), "not answer" in status.teachers[0].admission) == (
        {"refused": 1},
        True,
    )
    prober.asked[1][1](Verdict(ok=True))
    manager.report(stream, report())  # its lease may have run out while it said nothing
    wait_for(lambda: stream.teachers == ["a"])
    assert registry.admitted("s") == {"a": 1}


def test_the_view_says_how_it_is(manager: Manager, teacher: Callable[[str], Heartbeat]) -> None:
    teacher("a")
    teacher("b")
    stream = subscribe(manager, state="starved", starved_seconds=2.5)
    wait_for(lambda: bool(stream.teachers))

    def is_whole() -> bool:
        services = manager.view().services
        if not services or services[0].leading is None or services[0].desk is None:
            return False
        leading, desk = services[0].leading, services[0].desk
        return (leading.teachers, leading.idle, desk.streams, desk.assigned) == (
            {"serving": 2, "draining": 0},
            1,
            1,
            1,
        )

    wait_for(is_whole)
    (service,) = manager.view().services
    assert service.leader == "m:1"
    assert service.desk is not None
    assert (service.desk.students, service.desk.starved_s) == ({"starved": 1}, 2.5)
    assert manager.view().answering


def test_a_failing_stream_does_not_stop_the_manager(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeStream):
        def push(self, assignment: pb.Assignment) -> None:
            raise RuntimeError("broken")

    manager.subscribe(Broken(), report(student="bad/0"), ME)
    wait_for(lambda: any("goes on" in r.getMessage() for r in caplog.records))
    assert subscribe(manager).assignments


def test_nothing_is_kept_of_a_service_that_is_over(
    manager: Manager, registry: MemoryRegistry, teacher: Callable[[str], Heartbeat]
) -> None:
    heart = teacher("a")
    wait_for(lambda: any(event.kind == "registered" for event in registry.events("s")))
    assert "s" in manager._leaders
    heart.stop()
    wait_for(lambda: not manager._leaders)
    assert [e.kind for e in registry.events("s")][-1] in ("left", "recovery")
    assert "left" in [e.kind for e in registry.events("s")]


def test_reports_do_not_pile_up_while_the_registry_hangs(
    manager: Manager, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = [(FakeStream(), report(student=f"j/{n}")) for n in range(300)]
    for stream, said in crowd:
        manager.subscribe(stream, said, ME)
    wait_for(lambda: all(stream.assignments for stream, _ in crowd))
    monkeypatch.setattr("edl.coordinator.manager.manager._EVENTS_AT_ONCE", 10)

    def hang(*_: object) -> NoReturn:
        time.sleep(0.2)
        raise RegistryUnavailable("it hangs")

    monkeypatch.setattr(registry, "table", hang)
    monkeypatch.setattr(registry, "beat_many", hang)
    for _ in range(10):
        for stream, said in crowd:
            manager.report(stream, said)
        time.sleep(0.05)
    wait_for(lambda: manager._events.empty())
