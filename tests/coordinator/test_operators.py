"""What operators call: status, drains, upgrades and the log, over managers that die."""

from __future__ import annotations

import json
import threading
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edl.cli import command_line
from edl.coordinator import Registry
from edl.coordinator.calling import client
from edl.coordinator.operations import drain, upgrade
from edl.coordinator.registry.schema import LogEntry, StoredContentPlan
from edl.coordinator.store.records import WrongKeyType
from edl.proto import coordinator_pb2 as pb
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.runtime import errors
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.proto.security.authority import write_secret
from edl.tests.stores import FaultyStore, memory
from edl.tests.waiting import DEADLINE_S, wait_until

C2, C3 = "c2" * 32, "c3" * 32


def test_status_asks_a_manager_that_answers_or_says_how_to_start_one(mesh: Served) -> None:
    for port in range(1, 6):
        mesh.registry.register("managers", "", f"127.0.0.1:{port}", {"incarnation": "1"}, 600.0)
    teacher = pb.Teacher(teacher_id="t" * 100, address="a" * 100, content_id="c" * 300)
    service = pb.ServiceStatus(name="s", teachers=[teacher] * 10_000)
    mesh.manager.mesh = pb.MeshStatus(managers=["me"], services=[service])
    assert client.fetch_status(mesh.url, "s", max_members=5) == mesh.manager.mesh
    assert mesh.manager.asked == [("s", 5)]
    mesh.retire()
    with pytest.raises(errors.CoordinatorUnavailable, match=r"127\.0\.0\.1:\d does not answer"):
        client.fetch_status(mesh.url)
    with pytest.raises(errors.CoordinatorUnavailable, match="edl coordinator serve"):
        client.fetch_status("memory://nobody")


def test_watching_as_json_goes_on_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only complete documents are on stdout."""
    mesh = pb.MeshStatus(managers=["me"])
    failures = iter(
        [None, errors.CoordinatorUnavailable("away"), None, errors.UsageError("enough")]
    )

    def fetch(*_: object, **__: object) -> pb.MeshStatus:
        if (failure := next(failures)) is not None:
            raise failure
        return mesh

    monkeypatch.setattr(client, "fetch_status", fetch)
    arguments = ["status", "--watch", "--json", "--redis", "memory://watched"]
    result = CliRunner().invoke(command_line("status"), arguments)
    assert str(result.exception) == "enough"
    assert [json.loads(line)["managers"] for line in result.stdout.splitlines()] == [["me"]] * 2
    assert "away" in result.stderr


def test_drain_and_upgrade_reach_the_registry(mesh: Served) -> None:
    register(mesh.registry, "t1", "c1", "s")
    assert client.drain(mesh.url, teacher_id="t1") == ["s/t1"]
    assert mesh.registry.members("teachers", "s")[0].draining
    assert C2 in client.upgrade(mesh.url, "s", C2, "epoch")
    assert mesh.registry.content_plan("s").next_content_id == C2
    with pytest.raises(errors.UsageError, match="on its way"):
        client.upgrade(mesh.url, "s", C2[:6], "epoch")


def say(registry: Registry, service: str, *texts: str) -> None:
    """Write these into a service's log, as its leader does."""
    registry.register("teachers", service, "t", {"incarnation": "1"}, 600.0)
    led = registry.lead(service, "test", 600.0)
    entries = [LogEntry("assigned", "j/0", text, ("t1",), ("t2",)) for text in texts]
    assert registry.write(service, led.fence, led.table_version, led.table_version, {}, entries)


class Watcher:
    def __init__(self, url: str, service: str = "", last: int = 0) -> None:
        self.texts: list[str] = []
        self._end = f"the end of {service or 'all'}"
        self._events = client.watch(url, service=service, last=last, follow=True)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for event in self._events:
            if event.text == self._end:
                break
            self.texts.append(event.text)
        self._events.close()  # type: ignore[attr-defined]

    def end(self, registry: Registry, service: str) -> None:
        say(registry, service, self._end)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def test_the_log_is_read_whole_or_its_latest_and_followed(mesh: Served) -> None:
    say(mesh.registry, "s", "old", "one")
    watcher = Watcher(mesh.url, last=1)
    only = Watcher(mesh.url, service="r")
    wait_until(lambda: watcher.texts == ["one"])
    say(mesh.registry, "r", "two", "three")
    wait_until(lambda: watcher.texts == ["one", "two", "three"])
    wait_until(lambda: only.texts == ["two", "three"])
    assert [e.text for e in client.watch(mesh.url)] == ["old", "one", "two", "three"]
    assert [e.text for e in client.watch(mesh.url, last=2)] == ["two", "three"]
    event, _ = client.watch(mesh.url, service="r")
    assert (event.service, event.kind, event.subject) == ("r", "assigned", "j/0")
    assert (list(event.before), list(event.after)) == (["t1"], ["t2"])
    assert event.time_ms > 0
    assert list(client.watch(mesh.url, service="nothing-yet")) == []
    only.end(mesh.registry, "r")
    say(mesh.registry, "s", "four")
    wait_until(lambda: watcher.texts[-1] == "four")
    assert len(watcher.texts) == 5  # each once, and the end of the other
    watcher.end(mesh.registry, "s")


def test_a_manager_that_cannot_read_the_log_first_changes_nothing(
    mesh: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(mesh.registry, "s", "old", "one")
    failures, read = [errors.RedisUnavailable("slow")], mesh.registry.services_with_log

    def fails_once() -> list[str]:
        if failures:
            raise failures.pop()
        return read()

    monkeypatch.setattr(mesh.registry, "services_with_log", fails_once)
    watcher = Watcher(mesh.url, last=1)
    wait_until(lambda: bool(watcher.texts))
    say(mesh.registry, "s", "two")
    wait_until(lambda: watcher.texts[-1] == "two")
    assert watcher.texts == ["one", "two"]
    assert not failures
    watcher.end(mesh.registry, "all")


def test_a_log_that_cannot_be_read_hides_no_other(
    mesh: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(mesh.registry, "odd", "hidden")
    say(mesh.registry, "s", "one")
    events = mesh.registry.events

    def read(service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        if service == "odd":
            raise WrongKeyType("another program wrote it")
        return events(service, after, last)

    monkeypatch.setattr(mesh.registry, "events", read)
    assert [event.text for event in client.watch(mesh.url)] == ["one"]
    with pytest.raises(errors.CoordinatorUnavailable, match="another program wrote it"):
        list(client.watch(mesh.url, service="odd"))


def test_events_of_one_millisecond_are_all_told() -> None:
    """Also those of a service without a log before, and after the manager that told them died."""
    url = "memory://one-millisecond"
    registry = Registry(FaultyStore.shared(url, clock=lambda: 1_000_000.0))
    with served(url) as first:
        say(registry, "s", "one", "two")
        watcher, only = Watcher(url, last=1), Watcher(url, service="r")
        wait_until(lambda: watcher.texts == ["two"])
        say(registry, "r", "three")
        wait_until(lambda: watcher.texts == ["two", "three"])
        wait_until(lambda: only.texts == ["three"])
        first.retire()
        say(registry, "q", "four")
        with served(url):
            only.end(registry, "r")
            wait_until(lambda: len(watcher.texts) == 4)
            assert set(watcher.texts[2:]) == {"four", "the end of r"}
            watcher.end(registry, "s")


def test_an_outage_between_two_logs_loses_no_entry(
    mesh: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, outages = mesh.registry.events, count()

    def events(service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        if service == "s" and next(outages) < 2:
            raise errors.RedisUnavailable("no answer")
        return read(service, after, last)

    say(mesh.registry, "r", "one")
    watcher = Watcher(mesh.url)
    wait_until(lambda: watcher.texts == ["one"])
    monkeypatch.setattr(mesh.registry, "events", events)
    say(mesh.registry, "r", "two")
    say(mesh.registry, "s", "three")
    wait_until(lambda: sorted(watcher.texts) == ["one", "three", "two"])
    watcher.end(mesh.registry, "s")


def test_following_survives_deaths_and_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    url = "memory://followed"

    def complaints(words: str) -> int:
        return sum(words in record.message for record in caplog.records)

    with served(url) as first:
        say(first.registry, "s", "long ago", "one")
        watcher = Watcher(url, service="s", last=1)
        wait_until(lambda: watcher.texts == ["one"])
        first.retire()
        say(first.registry, "s", "two", "three")
        wait_until(lambda: complaints("cannot read the log now") == 1)
        with served(url) as second:
            wait_until(lambda: watcher.texts == ["one", "two", "three"])
            memory(second.registry).set_available(False)
            with pytest.raises(errors.RedisUnavailable):
                list(client.watch(url))
            wait_until(lambda: complaints("watchers of the log wait") == 1)
            memory(second.registry).set_available(True)
            say(first.registry, "s", "four")
            wait_until(lambda: watcher.texts == ["one", "two", "three", "four"])
            watcher.end(second.registry, "s")


def test_who_may_not_follow_the_log_is_told_so(tmp_path: Path) -> None:
    tokens = write_secret(tmp_path / "tokens", "student a-student\n")
    with served(security=ServerSecurity(None, tokens)) as mesh:
        security = ClientSecurity(None, write_secret(tmp_path / "token", "a-student"))
        for follow in (False, True):
            with pytest.raises(errors.Forbidden, match="viewer"):
                next(client.watch(mesh.url, follow=follow, security=security))


def register(
    registry: Registry, name: str, content: str, service: str = "resnet", host: str = "alpha"
) -> None:
    facts = {"incarnation": "1", "content_id": content, "host": host}
    registry.register("teachers", service, name, {**facts, "address": f"{host}.mesh:8001"}, 600.0)


@pytest.fixture
def teachers() -> Registry:
    registry = Registry(FaultyStore())
    register(registry, "t1", "c1")
    register(registry, "t2", "c1", host="beta")
    register(registry, "t1", "b1", "bert")
    register(registry, "lonely", "b1", "bert", "10.0.0.9")
    return registry


def draining(registry: Registry) -> list[str]:
    return [
        f"{service}/{member.member}"
        for service in ("bert", "resnet")
        for member in registry.members("teachers", service)
        if member.draining
    ]


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        ({"teacher_id": "lonely"}, ["bert/lonely"]),
        ({"teacher_id": "t1"}, ["bert/t1", "resnet/t1"]),
        ({"teacher_id": "t1", "service": "resnet"}, ["resnet/t1"]),
        ({"host": "alpha"}, ["bert/t1", "resnet/t1"]),
        ({"host": "alpha", "service": "bert"}, ["bert/t1"]),
        ({"host": "beta.mesh"}, ["resnet/t2"]),
        ({"host": "10.0.0.9"}, ["bert/lonely"]),
        ({}, "either a teacher or a host"),
        ({"teacher_id": "t1", "host": "alpha"}, "either a teacher or a host"),
        ({"teacher_id": "lonly"}, "did you mean lonely"),
        ({"teacher_id": "lonely", "service": "resnet"}, "no teacher lonely of service resnet"),
        ({"teacher_id": "t1", "service": "resmet"}, "did you mean resnet"),
        ({"teacher_id": "a b"}, "id of a teacher"),
        ({"host": "alfa"}, "did you mean alpha"),
    ],
)
def test_a_drain(teachers: Registry, asked: dict[str, str], outcome: list[str] | str) -> None:
    if isinstance(outcome, str):
        with pytest.raises(errors.UsageError, match=outcome):
            drain(teachers, **asked)
        outcome = []
    else:
        assert drain(teachers, **asked) == outcome
    assert draining(teachers) == outcome


def plan(teachers: Registry) -> tuple[str, str, str]:
    found = teachers.content_plan("resnet")
    return found.content_id, found.next_content_id, found.at


def test_upgrades_are_planned_one_at_a_time_and_taken_back(teachers: Registry) -> None:
    for name in ("j/0", "j/1"):
        teachers.register("students", "resnet", name, {"incarnation": "1"}, 600.0)
    said = upgrade(teachers, "resnet", C2, "epoch")
    assert f"from c1 to content {C2}: each of its 2 students when it begins its next epoch" in said
    assert f"No teacher of content {C2} serves yet" in said
    assert plan(teachers) == ("c1", C2, "epoch")
    with pytest.raises(errors.UsageError, match=f"from content c1 to {C2}: wait"):
        upgrade(teachers, "resnet", C3, "epoch")
    with pytest.raises(errors.UsageError, match="on its way"):
        upgrade(teachers, "resnet", C2, "epoch")
    register(teachers, "new", C2)
    assert upgrade(teachers, "resnet", C2, "now").endswith("teachers registered to serve it: 1")
    assert plan(teachers) == ("c1", C2, "now")
    assert f"from {C2} to content c1" in upgrade(teachers, "resnet", "c1", "now")
    assert plan(teachers) == (C2, "c1", "now")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("ab1", "ab1" + "0" * 61),
        ("ab", "ab"),  # in full, though others begin so
        ("c", "c1"),  # as a foreign server declares it
        (C3, C3),  # that no teacher has yet
    ],
)
def test_the_content_of_an_upgrade_may_be_a_unique_prefix(
    teachers: Registry, said: str, meant: str
) -> None:
    for name, content in (("x", "ab"), ("y", "ab1" + "0" * 61), ("z", "ab2" + "0" * 61)):
        register(teachers, name, content)
    assert teachers.set_content_plan("resnet", StoredContentPlan("ab2" + "0" * 61), 0)
    assert f"to content {meant}:" in upgrade(teachers, "resnet", said, "now")
    assert plan(teachers)[1] == meant


@pytest.mark.parametrize(
    ("service", "content", "at", "said"),
    [
        ("resnet", "", "now", "no teacher or student"),
        ("resnet", "c 2", "now", "no teacher or student .*c 2"),
        ("resnet", "deadbeef" * 9, "now", "no teacher or student .* content .*deadbeef"),
        ("bert", "b", "now", "several contents: b1, b2"),
        ("resnet", "c2", "noon", "'epoch' or 'now'"),
        ("resnet", "c1", "now", "has content c1 already"),
        ("resnt", "c2", "now", "did you mean resnet"),
    ],
)
def test_an_upgrade_that_cannot_be_is_refused(
    teachers: Registry, service: str, content: str, at: str, said: str
) -> None:
    register(teachers, "second", "b2", "bert")
    with pytest.raises(errors.UsageError, match=said):
        upgrade(teachers, service, content, at)
    assert teachers.content_plan("resnet").version == 0


def test_a_quicker_upgrade_stays(teachers: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    real = teachers.set_content_plan

    def too_late(service: str, planned: StoredContentPlan, expected_version: int) -> bool:
        monkeypatch.setattr(teachers, "set_content_plan", real)
        assert real(service, StoredContentPlan("c1", "other", "epoch"), expected_version)
        return real(service, planned, expected_version)

    monkeypatch.setattr(teachers, "set_content_plan", too_late)
    with pytest.raises(errors.UsageError, match="from content c1 to other"):
        upgrade(teachers, "resnet", C2, "epoch")
    monkeypatch.setattr(teachers, "set_content_plan", lambda *_: False)
    with pytest.raises(errors.RetryableError, match="try again"):
        upgrade(teachers, "bert", C2, "now")
