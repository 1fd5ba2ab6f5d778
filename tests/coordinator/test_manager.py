"""A manager's threads: streams, takeover, outages; over a registry within the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pytest

from edl.coordinator import Registry
from edl.coordinator.config import ManagerConfig
from edl.coordinator.manager.manager import Manager
from edl.coordinator.manager.student_sessions import StudentCaller
from edl.coordinator.manager.subscription_hub import SubscriptionHub
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import RedisUnavailable
from edl.tests.stores import FaultyStore, memory
from edl.tests.waiting import DEADLINE_S, wait_until

from .world import FakeStream

CONFIG = ManagerConfig(ttl_s=60.0, leader_ttl_s=4.0, sweep_s=0.01, outage_sweep_s=0.02)
ME = StudentCaller(principal="me", secret="mine")
Start = Callable[..., Manager]


@pytest.fixture
def registry() -> Registry:
    return Registry(FaultyStore())


@pytest.fixture
def start(registry: Registry) -> Iterator[Start]:
    started: list[Manager] = []

    def one(**more: Any) -> Manager:
        manager = Manager(registry, replace(CONFIG, **more), address="m:1", prober=None)
        manager.start()
        started.append(manager)
        return manager

    yield one
    for manager in started:
        manager.stop()


@pytest.fixture
def manager(start: Start) -> Manager:
    return start()


def add_teacher(registry: Registry, name: str) -> None:
    facts = {"incarnation": "1", "address": f"{name}:1", "state": "serving"}
    registry.register("teachers", "s", name, facts, 600.0)


def report(want: int = 1, student: str = "j/0", **more: Any) -> pb.StudentReport:
    return pb.StudentReport(service="s", student_id=student, incarnation=1, want=want, **more)


def subscribe(manager: Manager, **fields: Any) -> FakeStream:
    stream = FakeStream()
    manager.subscribe(stream, report(**fields), ME)
    wait_until(lambda: stream.assignments or stream.error)
    return stream


def test_an_outage_is_logged_once(
    start: Start, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(leader_ttl_s=0.4)  # so often the registry is asked
    subscribe(manager)
    with caplog.at_level(logging.INFO, "edl.coordinator.manager.election"):
        memory(registry).set_available(False)
        wait_until(lambda: not manager.view().redis_available)
        memory(registry).set_available(True)
        wait_until(lambda: any("answers again" in r.getMessage() for r in caplog.records))
    levels = [r.levelno for r in caplog.records if r.name == "edl.coordinator.manager.election"]
    assert levels.count(logging.WARNING) == 1


def test_reports_during_an_outage_do_not_make_a_manager_ask_more_often(
    start: Start, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start(outage_sweep_s=600.0)
    stream = subscribe(manager)
    asked, handled = list[str](), list[str]()
    reported = SubscriptionHub.reported

    def fails(*_: object) -> NoReturn:
        if threading.current_thread().name == "edl-hubs":
            asked.append("the table")
        raise RedisUnavailable("it is away")

    def counted(hub: SubscriptionHub, *given: Any) -> None:
        reported(hub, *given)
        handled.append("a report")

    monkeypatch.setattr(registry, "table", fails)
    monkeypatch.setattr(SubscriptionHub, "reported", counted)
    wait_until(lambda: asked)
    for number in range(1, 31):
        manager.report(stream, report(volume_bytes=number))
        wait_until(partial(lambda count: len(handled) == count, number))
    assert len(asked) <= 3, "once, and once for each assignment that the leader had just written"


def test_reports_reach_the_leader_and_the_view(manager: Manager, registry: Registry) -> None:
    add_teacher(registry, "a")
    add_teacher(registry, "b")
    stream = subscribe(manager, state="starved", starved_seconds=2.5)
    wait_until(lambda: stream.teachers)

    def shown() -> list[tuple[object, ...]]:
        return [
            (leading.teachers, leading.idle, hub.streams, hub.assigned, hub.students)
            for one in manager.view().services
            if (leading := one.leading) and (hub := one.hub) and hub.starved_s == 2.5
        ]

    wait_until(lambda: shown() == [({"serving": 2, "draining": 0}, 1, 1, 1, {"starved": 1})])
    assert manager.view().services[0].leader == "m:1"
    assert manager.view().redis_available
    manager.report(stream, report(want=2))
    wait_until(lambda: stream.teachers == ["a", "b"])


def test_a_failing_stream_stops_nothing(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeStream):
        def push(self, assignment: pb.Assignment) -> None:
            raise RuntimeError("broken")

    manager.subscribe(Broken(), report(student="bad/0"), ME)
    wait_until(lambda: any("goes on" in r.getMessage() for r in caplog.records))
    assert subscribe(manager).assignments


def test_nothing_is_kept_of_a_service_that_is_over(start: Start, registry: Registry) -> None:
    manager = start(ttl_s=0.3)  # as long as a service is led after its last member
    add_teacher(registry, "a")
    stream = subscribe(manager)
    wait_until(lambda: stream.teachers == ["a"])
    assert [service.name for service in manager.view().services] == ["s"]
    assert [service.name for service in manager.status().services] == ["s"]
    manager.end(stream, report(), clean=True)
    wait_until(lambda: registry.names("students", "s") == set())
    registry.leave("teachers", "s", "a")
    wait_until(lambda: not manager.view().services)
    assert "left" in [event.kind for event in registry.events("s")]


def test_reports_do_not_pile_up_while_the_registry_hangs(
    manager: Manager, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = [(FakeStream(), report(student=f"j/{n}")) for n in range(300)]
    for stream, first in crowd:
        manager.subscribe(stream, first, ME)
    wait_until(lambda: all(stream.assignments for stream, _ in crowd))
    released, calls, handled = threading.Event(), list[str](), list[int]()
    reported = SubscriptionHub.reported

    def hang(*_: object) -> NoReturn:
        if threading.current_thread().name == "edl-hubs":
            calls.append("a call")
            released.wait(DEADLINE_S)
        raise RedisUnavailable("it hangs")

    def counted(hub: SubscriptionHub, *given: Any) -> None:
        handled.append(len(calls))
        reported(hub, *given)

    monkeypatch.setattr("edl.coordinator.manager.manager._EVENTS_AT_ONCE", 10)
    monkeypatch.setattr(registry, "table", hang)
    monkeypatch.setattr(registry, "beat_many", hang)
    monkeypatch.setattr(SubscriptionHub, "reported", counted)
    wait_until(lambda: calls)
    for _ in range(10):
        for stream, again in crowd:
            manager.report(stream, again)
    released.set()
    wait_until(lambda: len(handled) == 3000)
    assert handled[-1] - handled[0] < 10, "calls that hang between reports"
