"""What strangers write into Redis may be ignored, and must not stop anything."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha1
from typing import Any

import pytest
import redis

from edl.coordinator.machines import Deployment, MachineBoard, Report
from edl.coordinator.machines.placing import Placer
from edl.coordinator.machines.schema import DEPLOYMENTS
from edl.coordinator.manager.messages import report_facts, report_from, teacher_from
from edl.coordinator.manager.overview import Overview
from edl.coordinator.operations import drain
from edl.coordinator.registry import LogEntry, Registry, Row, StoredContentPlan
from edl.coordinator.registry.schema import SERVICES, lease_set, pack_row, service_key, unpack_row
from edl.coordinator.store import redis_connection, redis_leases
from edl.coordinator.store.records import BeatAnswer, Leads, Member, MemberBeat
from edl.coordinator.store.redis_store import RedisStore
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import RedisUnavailable
from edl.tests.stores import renew
from edl.tests.waiting import DEADLINE_S


@pytest.fixture
def registry(valkey_url: str) -> Iterator[Registry]:
    with contextlib.closing(Registry(RedisStore(valkey_url, timeout_s=DEADLINE_S))) as registry:
        yield registry


@pytest.fixture
def stranger(valkey_url: str) -> Iterator[redis.Redis]:
    """A client that writes what it likes."""
    with redis.Redis.from_url(valkey_url) as client:
        yield client


@pytest.fixture
def s() -> str:
    """A service that no other test has."""
    return f"foreign-{uuid.uuid4().hex}"


def names(members: Any) -> list[str]:
    return [member.member for member in members]


def test_odd_names_are_passed_over(registry: Registry, stranger: redis.Redis, s: str) -> None:
    registry.register("teachers", s, "good", {"incarnation": "1"}, 600.0)
    cursor = registry.changes("teachers", s).cursor
    odds: list[Any] = ["a b", "{x}", b"\xff\xfe", ""]
    for odd in odds:
        stranger.zadd(SERVICES, {odd: 1})
        stranger.zadd(lease_set("teachers", s).deadlines, {odd: 1e14})
        stranger.zadd(lease_set("teachers", s).changes, {odd: cursor + 10})
    assert s in registry.services()
    assert not set(odds) & set(registry.services())
    assert names(registry.members("teachers", s)) == ["good"]
    assert registry.changes("teachers", s, cursor).members == ()
    (service,) = Overview(registry).status(s).services
    assert [t.teacher_id for t in service.teachers] == ["good"]
    stranger.zrem(SERVICES, *odds)
    stranger.xadd(service_key(s, "events"), {b"\xff": b"\xff", "kind": "odd"}, id="5-1")
    assert registry.events(s) == [LogEntry("odd", "", "", id="5-1", time_ms=5)]


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "9007199254740992", "-5"])
def test_odd_numbers_stop_nothing(
    registry: Registry, stranger: redis.Redis, s: str, score: str
) -> None:
    for name in ("good", "odd"):
        registry.register("teachers", s, name, {"incarnation": "1"}, 600.0)
    cursor = registry.changes("teachers", s).cursor
    stranger.zadd(lease_set("teachers", s).changes, {"odd": score})
    stranger.zadd(lease_set("teachers", s).deadlines, {"odd": score})
    assert names(registry.members("teachers", s)) == ["good"]
    assert registry.changes("teachers", s).full
    renew(registry, "teachers", s, "good", 600.0, incarnation=1, facts={"state": "draining"})
    changed = registry.changes("teachers", s, cursor)
    assert "good" in names(changed.members)
    renew(registry, "teachers", s, "good", 600.0, incarnation=1, facts={"state": "serving"})
    again = registry.changes("teachers", s, changed.cursor)
    assert [m.facts["state"] for m in again.members if m.member == "good"] == ["serving"]
    assert registry.sweep("teachers", s) == ["odd"]


def test_odd_deadlines_count_in_the_limit_of_a_sweep(
    registry: Registry, stranger: redis.Redis, s: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_leases, "_SWEEP_LIMIT", 3)
    deadlines = {"dead": 1, "dead-too": 2, "odd": 1e300, "odd-too": 2e300}
    for name in deadlines:
        registry.register("teachers", s, name, {"incarnation": "1"}, 600.0)
    stranger.zadd(lease_set("teachers", s).deadlines, deadlines)
    assert registry.sweep("teachers", s) == ["dead", "dead-too", "odd"]
    assert registry.sweep("teachers", s) == ["odd-too"]


@pytest.mark.parametrize("name", ["{s}-odd", "{s} odd"])
@pytest.mark.parametrize("score", ["inf", "-inf", "1.5"])
def test_an_odd_number_in_the_list_of_services_hides_none_and_goes(
    registry: Registry, stranger: redis.Redis, s: str, name: str, score: str
) -> None:
    registry.register("teachers", s, "t", {"incarnation": "1"}, 600.0)
    odd = name.format(s=s)
    stranger.zadd(SERVICES, {odd: score})
    assert s in registry.services()
    assert stranger.zscore(SERVICES, odd) is None


def test_an_odd_number_alone_stops_nothing(
    registry: Registry, stranger: redis.Redis, s: str
) -> None:
    leases = lease_set("teachers", s)
    registry.register("teachers", s, "t", {"incarnation": "1"}, 600.0)
    stranger.delete(leases.changes)
    stranger.zadd(leases.changes, {"t": "-inf"})
    found = registry.changes("teachers", s)
    assert (names(found.members), found.full, found.cursor > 0) == (["t"], True, True)
    stranger.zadd(leases.deadlines, {"t": "inf"})
    assert registry.request_drain(s, "t")
    (member,) = registry.changes("teachers", s, found.cursor).members
    assert member.remaining_s <= 86_400


def test_changes_are_seen_after_the_clock_was_set_back(
    registry: Registry, stranger: redis.Redis, s: str
) -> None:
    registry.register("teachers", s, "t", {"incarnation": "1"}, 600.0)
    hour_us = 3_600_000_000
    cursor = registry.changes("teachers", s).cursor + hour_us  # by the former time
    found = registry.changes("teachers", s, cursor)
    assert found.full
    assert names(found.members) == ["t"]
    # With changes that have numbers of the former time, further ones count on from them.
    stranger.zadd(lease_set("teachers", s).changes, {"t": cursor})
    assert not registry.changes("teachers", s, cursor).full
    registry.request_drain(s, "t")
    assert names(registry.changes("teachers", s, cursor).members) == ["t"]


def test_keys_of_another_type(registry: Registry, stranger: redis.Redis, s: str) -> None:
    other = f"{s}-other"
    stranger.set(lease_set("teachers", other).deadlines, "a string")
    with pytest.raises(RedisUnavailable, match="a value of another type") as error:
        registry.register("teachers", other, "t", {"incarnation": "1"}, 600.0)
    assert "\n" not in str(error.value)
    for name in ("good", "odd"):
        registry.register("teachers", s, name, {"incarnation": "1"}, 600.0)
    stranger.delete(lease_set("teachers", s).facts + "odd")
    stranger.lpush(lease_set("teachers", s).facts + "odd", "x")
    for members in (
        registry.members("teachers", s),
        registry.changes("teachers", s, 1).members,
        registry.read("teachers", s, ["odd", "good"]),
    ):
        assert names(members) == ["good"]
    with pytest.raises(RedisUnavailable, match="a value of another type"):
        registry.register("teachers", s, "odd", {"incarnation": "1"}, 600.0)


def test_a_service_with_a_key_of_another_type_hides_no_other(
    registry: Registry, stranger: redis.Redis, s: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every teacher of the service could write it."""
    good = f"{s}-good"
    for service in (s, good):
        registry.register("teachers", service, f"t-{s}", {"incarnation": "1"}, 600.0)
    stranger.delete(lease_set("teachers", s).deadlines)
    stranger.hset(lease_set("teachers", s).deadlines, "a", "b")
    overview = Overview(registry)
    for _ in range(2):
        found = {one.name: one.teacher_count for one in overview.status().services}
        assert (found[s], found[good]) == (0, 1)
    with pytest.raises(RedisUnavailable, match="another type"):
        overview.status(s)
    assert drain(registry, teacher_id=f"t-{s}") == [f"{good}/t-{s}"]
    with pytest.raises(RedisUnavailable, match="another type"):
        drain(registry, host=f"no-host-{s}")

    board = MachineBoard(registry.store)
    for service in (s, good):
        assert board.deploy(Deployment(service, "s3://m/a", "aa" * 32))
    board.join(f"machine-{s}", 1, Report(), 600.0)
    placer = Placer(board, registry, ttl_s=0.0)
    try:
        assert placer.reconcile()
        (machine,) = (one for one in board.machines() if one.machine_id == f"machine-{s}")
        assert machine.order.service == ""  # the teacher of the other service is enough
        assert registry.leave("teachers", good, f"t-{s}")
        assert placer.reconcile()
        (machine,) = (one for one in board.machines() if one.machine_id == f"machine-{s}")
        assert machine.order.service == good
    finally:
        placer.stop()
        board.leave(f"machine-{s}", 1)
        stranger.hdel(DEPLOYMENTS, s, good)
        stranger.delete(lease_set("teachers", s).deadlines)
    assert caplog.text.count(f"service {s}: its machines keep their orders") == 1


@pytest.mark.parametrize("state", ["unknown", "plain", "whole"])
def test_a_member_of_another_type_is_refused_alone(
    registry: Registry, stranger: redis.Redis, s: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the heartbeats are scripts, plain commands or full ones without a script."""
    texts = {name: f"{redis_connection.script(name)[0]}\n-- {s}" for name in ("register", "beat")}
    scripts = {name: (text, sha1(text.encode()).hexdigest()) for name, text in texts.items()}
    monkeypatch.setattr(redis_connection, "script", scripts.__getitem__)  # the server has none
    names, leases = ("good", "odd", "better"), lease_set("teachers", s)
    facts = {"in_flight": "1"} if state == "whole" else {}
    beats = [(s, MemberBeat(name, 1, facts, volatile=True)) for name in names]
    for name in names:
        registry.register("teachers", s, name, {"incarnation": "1"}, 600.0)
    if state != "unknown":
        assert registry.beat_many("teachers", beats, 600.0) == [BeatAnswer.KEPT] * 3
    stranger.delete(leases.facts + "odd")
    stranger.lpush(leases.facts + "odd", "x")
    if state == "plain":  # it reads no facts
        stranger.zrem(leases.deadlines, "odd")
    for _ in range(2):
        answers = registry.beat_many("teachers", beats, 900.0)
        assert answers == [BeatAnswer.KEPT, BeatAnswer.UNKNOWN, BeatAnswer.KEPT]
    assert [one.remaining_s > 600.0 for one in registry.members("teachers", s)] == [True, True]
    stranger.delete(leases.facts + "odd")


TABLES = ("leader", "assignment", "assignment:changes", "admitted", "events", "plan")


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_another_type_gives_an_error_or_is_passed_over(
    registry: Registry, stranger: redis.Redis, s: str, table: str
) -> None:
    stranger.set(service_key(s, table), "a string")
    fence = Leads(service_key(s, "leader"), "a#1", 1)
    calls: list[Callable[[], object]] = [
        partial(registry.lead, s, "a#1", 600.0),
        partial(registry.write, s, fence, (0, 0), (1, 1), {"j/0": Row()}, [], {"t": 1}),
        partial(registry.table, s, (1, 0)),
        *(partial(read, s) for read in (registry.table, registry.admitted, registry.content_plan)),
        *(partial(registry.events, s, last=last) for last in (0, 3)),
        partial(registry.set_content_plan, s, StoredContentPlan("c"), 0),
        partial(
            registry.move_content_plan,
            s,
            fence,
            (1, 1),
            StoredContentPlan("c"),
            LogEntry("upgrade", "c", ""),
        ),
        partial(registry.resign, s, "a#1"),
    ]
    for call in calls:
        with contextlib.suppress(RedisUnavailable):
            call()


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", "{}", '{"teachers": 5}', '{"teachers": [1], "lost": []}', "[" * 9000],
    ids=repr,
)
def test_odd_rows_are_passed_over(
    registry: Registry, stranger: redis.Redis, s: str, text: str
) -> None:
    fence = registry.lead(s, "a#1", 600.0).fence
    registry.write(s, fence, (0, 0), (1, 1), {"j/0": Row(("t",))})
    registry.write(s, fence, (1, 1), (1, 2), {"j/1": Row(("u",))})
    stranger.hset(service_key(s, "assignment"), mapping={"j/1": text, "a b": "{}", "=x": "1"})
    assert registry.table(s).rows == {"j/0": Row(("t",))}
    news = registry.table(s, (1, 1))
    assert (dict(news.rows), news.gone) == ({}, ("j/1",))


def test_rows_of_other_versions_are_read() -> None:
    row = Row(("t",), ("u",), counter=3)
    newer = json.dumps({**json.loads(pack_row(row)), "of_tomorrow": 1})
    assert unpack_row(newer) == row
    assert unpack_row('{"teachers": ["t"], "lost": ["u"], "counter": 3}') == row


@pytest.mark.parametrize("text", ["many", "-1", "1e5", "9" * 40, ""])
def test_an_odd_epoch_counts_as_none(
    registry: Registry, stranger: redis.Redis, s: str, text: str
) -> None:
    version: dict[Any, Any] = {"=term": text, "=counter": text, "=floor": text}
    stranger.hset(service_key(s, "assignment"), mapping=version)
    stranger.hset(service_key(s, "plan"), mapping={"version": text, "since_ms": text})
    stranger.hset(service_key(s, "admitted"), mapping={"t": text, "a b": "1", "good": "2"})
    led = registry.lead(s, "a#1", 600.0)
    assert led.table_version == (0, 0)
    assert registry.table(s).version == (0, 0)
    assert registry.write(s, led.fence, (0, 0), (1, 1), {"j/0": Row()})
    assert registry.table(s, (1, 0)).version == (1, 1)
    assert registry.content_plan(s).version == 0
    assert registry.move_content_plan(
        s, led.fence, (1, 1), StoredContentPlan("c"), LogEntry("upgrade", "c", "")
    )
    assert registry.admitted(s)["good"] == 2
    assert set(registry.admitted(s)) <= {"good", "t"}


def test_a_write_may_come_twice(
    registry: Registry, s: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends a command again when the connection breaks before the answer comes."""
    sent: list[tuple[Any, ...]] = []
    evalsha = redis.Redis.evalsha

    def send_twice(client: redis.Redis, *args: Any) -> Any:
        evalsha(client, *args)
        sent.append(args)
        return evalsha(client, *args)

    fence = registry.lead(s, "a#1", 600.0).fence
    registry.write(s, fence, (0, 0), (1, 1), {"j/0": Row()})  # the server knows the script now
    with monkeypatch.context() as patch:
        patch.setattr(redis.Redis, "evalsha", send_twice)
        event = [LogEntry("lost", "t", "")]
        assert registry.write(s, fence, (1, 1), (1, 2), {"j/0": None}, event)
    assert len(sent) == 1
    assert len(registry.events(s)) == 1
    assert not registry.write(s, fence, (1, 1), (1, 2), {"j/0": Row()})


def test_a_reader_that_lags_too_far_behind_reads_the_whole_table(
    registry: Registry, stranger: redis.Redis, s: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.coordinator.registry.registry._KEPT", 10)
    fence = registry.lead(s, "a#1", 600.0).fence
    registry.write(s, fence, (0, 0), (1, 0), {"j/0": Row()})
    for n in range(20):
        assert registry.write(s, fence, (1, n), (1, n + 1), {f"j/{n}": Row((f"t{n}",))})
    assert stranger.zcard(service_key(s, "assignment:changes")) == 10
    for since in range(21):
        table = registry.table(s, (1, since))
        assert table.full == (since < 10)
        assert len(table.rows) == (20 if table.full else 20 - since)


def test_facts_of_a_wrong_kind_are_left_out_and_the_others_come_back() -> None:
    facts = {
        "incarnation": "many", "slots": "-1", "in_flight": "99999999999999", "t_t_seconds": "x",
        "address": "h:1", "unheard": "of", "instance_key": "secret", "lanes": "no",
        "samples_per_second": "nan",
    }  # fmt: skip
    teacher = teacher_from(Member("t", facts, 1.5))
    assert teacher == pb.Teacher(teacher_id="t", address="h:1", lease_remaining_s=1.5)
    assert Member("t", facts).incarnation == 0
    assert Member("t", {"incarnation": "9" * 5000}).incarnation == 0
    report = pb.StudentReport(
        protocol_version=1, service="s", student_id="j/0", incarnation=2**60, want=3, priority=-2,
        t_s_seconds=1 / 3, volume_bytes=2**40, teachers=["a", "b"], term=2**50, state="steady",
        unreachable=2, data_epoch=7, content_id="c",
    )  # fmt: skip
    facts = report_facts(report)
    assert all(isinstance(value, str) for value in facts.values())
    assert report_from(Member("j/0", facts, 2.0)) == report
