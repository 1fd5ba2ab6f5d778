"""What operators call: status, drains, upgrades and the log, over managers that die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.calling import client
from edl.coordinator.registry.records import LogEntry
from edl.errors import (
    CoordinatorUnavailable,
    Forbidden,
    RegistryUnavailable,
    UsageError,
)
from edl.proto import coordinator_pb2 as pb
from edl.proto.security import ServerSecurity
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.coordinator.test_client import token_file
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret


@pytest.fixture
def mesh() -> Iterator[Served]:
    with served() as mesh:
        yield mesh


def test_status_asks_a_manager_and_hands_on_what_was_asked(mesh: Served) -> None:
    mesh.manager.mesh = pb.MeshStatus(managers=["me"], redis_time_ms=7)
    status = client.fetch_status(mesh.url, "s", max_members=5)
    assert list(status.managers) == ["me"]
    assert mesh.manager.asked == [("s", 5)]


def test_status_goes_on_to_a_manager_that_answers(mesh: Served) -> None:
    for port in range(1, 6):
        mesh.registry.register("managers", "", f"127.0.0.1:{port}", {"incarnation": "1"}, 600.0)
    assert client.fetch_status(mesh.url) == pb.MeshStatus()


def test_status_of_a_mesh_of_ten_thousand_arrives(mesh: Served) -> None:
    teacher = pb.Teacher(teacher_id="t" * 100, address="a" * 100, content_id="c" * 300)
    service = pb.ServiceStatus(name="s", teachers=[teacher] * 10_000)
    mesh.manager.mesh = pb.MeshStatus(services=[service])
    assert len(client.fetch_status(mesh.url).services[0].teachers) == 10_000


def test_without_a_manager_operators_are_told_how_to_start_one() -> None:
    with pytest.raises(CoordinatorUnavailable, match="edl coordinator serve"):
        client.fetch_status("memory://nobody")
    registry = MemoryRegistry.shared("memory://gone")
    registry.register("managers", "", "127.0.0.1:1", {"incarnation": "1"}, 30.0)
    with pytest.raises(CoordinatorUnavailable, match=r"127\.0\.0\.1:1 does not answer"):
        client.fetch_status("memory://gone")


def test_drain_and_upgrade_reach_the_registry(mesh: Served) -> None:
    facts = {"incarnation": "1", "content_id": "c1", "host": "h", "address": "h:1"}
    mesh.registry.register("teachers", "s", "t1", facts, 600.0)
    assert client.drain(mesh.url, teacher_id="t1") == ["s/t1"]
    assert mesh.registry.members("teachers", "s")[0].draining
    assert "c2" in client.upgrade(mesh.url, "s", "c2", "epoch")
    assert mesh.registry.plan("s").next_content_id == "c2"
    with pytest.raises(UsageError, match="did you mean t1"):
        client.drain(mesh.url, teacher_id="t2")
    with pytest.raises(UsageError, match="on its way"):
        client.upgrade(mesh.url, "s", "c2", "epoch")


def say(registry: MemoryRegistry, service: str, *texts: str) -> None:
    """Write these into a service's log, as its leader does."""
    standing = registry.lead(service, "test", 600.0).epoch
    entries = [LogEntry("assigned", "j/0", text, ("t1",), ("t2",)) for text in texts]
    assert registry.write(service, "test", standing, standing, {}, entries)


def begin_service(registry: MemoryRegistry, service: str) -> None:
    registry.register("teachers", service, "t", {"incarnation": "1"}, 600.0)


class Watcher:
    """Follows the log in a thread."""

    def __init__(self, url: str, service: str = "", last: int = 0) -> None:
        self.texts: list[str] = []
        self._end = f"the end of {service or 'all'}"
        self._events = client.watch(url, service=service, last=last, follow=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for event in self._events:
            if event.text == self._end:
                break
            self.texts.append(event.text)
        self._events.close()  # type: ignore[attr-defined]

    def end(self, registry: MemoryRegistry, service: str) -> None:
        say(registry, service, self._end)
        self._thread.join(20.0)
        assert not self._thread.is_alive()


def test_the_log_is_read_whole_or_its_latest(mesh: Served) -> None:
    begin_service(mesh.registry, "s")
    begin_service(mesh.registry, "r")
    say(mesh.registry, "s", "one", "two")
    wait_for(lambda: mesh.registry.time_ms() > mesh.registry.events("s")[-1].time_ms)
    say(mesh.registry, "r", "three")
    assert [e.text for e in client.watch(mesh.url)] == ["one", "two", "three"]
    assert [e.text for e in client.watch(mesh.url, last=2)] == ["two", "three"]
    (event,) = client.watch(mesh.url, service="r")
    assert (event.service, event.kind, event.subject) == ("r", "assigned", "j/0")
    assert (list(event.before), list(event.after)) == (["t1"], ["t2"])
    assert event.time_ms > 0
    assert list(client.watch(mesh.url, service="nothing-yet")) == []


def test_a_log_that_is_followed_says_what_comes_of_old_services_and_new(mesh: Served) -> None:
    begin_service(mesh.registry, "s")
    say(mesh.registry, "s", "old", "one")
    watcher = Watcher(mesh.url, last=1)
    only = Watcher(mesh.url, service="r")
    wait_for(lambda: watcher.texts == ["one"])
    say(mesh.registry, "s", "two")
    wait_for(lambda: watcher.texts == ["one", "two"])
    begin_service(mesh.registry, "r")
    say(mesh.registry, "r", "three", "four")
    wait_for(lambda: watcher.texts == ["one", "two", "three", "four"])
    wait_for(lambda: only.texts == ["three", "four"])
    only.end(mesh.registry, "r")
    say(mesh.registry, "s", "five")
    wait_for(lambda: watcher.texts[-1] == "five")
    assert len(watcher.texts) == 6  # each once, and the end of the other
    watcher.end(mesh.registry, "s")


def test_a_log_is_followed_over_an_outage_of_the_registry(mesh: Served) -> None:
    begin_service(mesh.registry, "s")
    watcher = Watcher(mesh.url, service="s")
    say(mesh.registry, "s", "one")
    wait_for(lambda: watcher.texts == ["one"])
    mesh.registry.set_available(False)
    with pytest.raises(RegistryUnavailable):
        list(client.watch(mesh.url))
    mesh.registry.set_available(True)
    say(mesh.registry, "s", "two")
    wait_for(lambda: watcher.texts == ["one", "two"])
    watcher.end(mesh.registry, "s")


def test_a_log_is_followed_over_the_deaths_of_managers_each_event_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "memory://followed"

    def complaints() -> int:
        return sum("cannot be read now" in record.message for record in caplog.records)

    with served(url) as first:
        begin_service(first.registry, "s")
        say(first.registry, "s", "long ago", "one")
        watcher = Watcher(url, last=1)
        wait_for(lambda: watcher.texts == ["one"])
        first.retire()
        say(first.registry, "s", "two", "three")
        wait_for(lambda: complaints() == 1)
        with served(url) as second:
            wait_for(lambda: watcher.texts == ["one", "two", "three"])
            say(first.registry, "s", "four")
            wait_for(lambda: watcher.texts[-1] == "four")
            watcher.end(second.registry, "s")
    assert watcher.texts == ["one", "two", "three", "four"]
    assert complaints() == 1


def test_who_may_not_follow_the_log_is_told_so(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student a-student\n")
    with served(security=ServerSecurity(None, tokens)) as mesh:
        security = token_file(tmp_path, "a-student")
        for follow in (False, True):
            with pytest.raises(Forbidden, match="viewer"):
                next(client.watch(mesh.url, follow=follow, security=security))
