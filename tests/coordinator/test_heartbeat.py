"""A heartbeat keeps its lease through outages and emptied registries, and never another's."""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from edl.coordinator import Heartbeat, Registry
from edl.coordinator.beat_relay import BeatRelay, RelayedRegistry
from edl.coordinator.registry import Kind
from edl.coordinator.store.records import BeatAnswer, LeaseSet, MemberBeat
from edl.coordinator.store.redis_leases import RedisLeases
from edl.coordinator.store.redis_store import RedisStore
from edl.runtime.errors import Forbidden, LeaseSuperseded, RedisUnavailable
from edl.scheduler.leadership import BEATS_PER_TTL
from edl.tests.stores import FaultyStore, memory, renew
from edl.tests.waiting import DEADLINE_S, wait_until

TTL_S = 3.0
BEAT_S = TTL_S / BEATS_PER_TTL


class VirtualTime:
    """Stands in for the modules `time` and `threading`: time passes in waits, as a test lets it."""

    current_thread = staticmethod(threading.current_thread)

    def __init__(self) -> None:
        self.now = self.until = 0.0
        self.threads: list[threading.Thread] = []
        self.waits: dict[VirtualEvent, float] = {}
        self.changed = threading.Condition()

    def monotonic(self) -> float:
        return self.now

    def Event(self) -> VirtualEvent:
        return VirtualEvent(self)

    def Thread(self, **options: Any) -> threading.Thread:
        self.threads.append(threading.Thread(**options))
        return self.threads[-1]

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass, until the heartbeats have nothing more to do."""
        with self.changed:
            self.until += seconds
            self.changed.notify_all()
            assert self.changed.wait_for(self._idle, DEADLINE_S)
            self.now = self.until

    def _idle(self) -> bool:
        return self._all_wait() and all(due > self.until for due in self.waits.values())

    def _all_wait(self) -> bool:
        waiting = sum(not event.is_set() for event in self.waits)
        return waiting >= sum(thread.is_alive() for thread in self.threads)

    def has_come(self, due: float) -> bool:
        """Whether it is so late, or it can be, as nobody has anything to do before."""
        if self.now < due <= min(self.until, *self.waits.values()) and self._all_wait():
            self.now = due
            self.changed.notify_all()
        return self.now >= due


class VirtualEvent(threading.Event):
    """An event whose waits last for virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def set(self) -> None:
        with self._time.changed:
            super().set()
            self._time.changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        time = self._time
        with time.changed:
            due = round(time.now + (timeout or 0.0), 9)  # equal times stay equal
            time.waits[self] = due
            time.changed.notify_all()
            while not (self.is_set() or time.has_come(due)):
                time.changed.wait()
            del time.waits[self]
            return self.is_set()


class Recording(Registry):
    """Keeps when each beat came, what it sent, and whether the lease stood."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__(FaultyStore(clock.monotonic))
        self.clock = clock
        self.beats: list[dict[str, str]] = []
        self.times: list[float] = []
        self.stood: list[bool] = []

    def beat(self, kind: Kind, service: str, beat: MemberBeat, ttl_s: float) -> BeatAnswer:
        self.beats.append(dict(beat.facts))
        self.times.append(self.clock.now)
        self.stood.append(beat.member in self.alive)
        return super().beat(kind, service, beat, ttl_s)

    @property
    def alive(self) -> list[str]:
        try:
            return [member.member for member in self.members("teachers", "s")]
        except RedisUnavailable:
            return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    clock = VirtualTime()
    monkeypatch.setattr("edl.coordinator.heartbeat.time", clock)
    monkeypatch.setattr("edl.coordinator.heartbeat.threading", clock)
    return clock


@pytest.fixture
def registry(clock: VirtualTime) -> Recording:
    return Recording(clock)


@pytest.fixture
def facts() -> dict[str, str]:
    return {"incarnation": "5", "state": "serving"}


Make = Callable[..., Heartbeat]


@pytest.fixture
def make(registry: Recording, facts: dict[str, str]) -> Iterator[Make]:
    made: list[Heartbeat] = []

    def heartbeat(
        member: str = "t", told: Callable[[], dict[str, str]] = lambda: facts, **options: Any
    ) -> Heartbeat:
        made.append(Heartbeat(registry, "teachers", "s", member, told, TTL_S, **options))
        return made[-1]

    yield heartbeat
    for one in made:
        one.stop()


def test_it_registers_and_leaves(registry: Recording, make: Make) -> None:
    heartbeat = make()
    heartbeat.start()
    assert registry.alive == ["t"]
    heartbeat.stop()
    assert registry.changes("teachers", "s", 1).left == ("t",)
    heartbeat = make()
    heartbeat.start()
    heartbeat.stop(leave=False)
    assert registry.alive == ["t"]
    registry.clock.now += TTL_S + 0.1
    assert registry.alive == []
    make().start()
    memory(registry).set_available(False)  # a start fails now, and the stops that follow do not
    with pytest.raises(RedisUnavailable):
        make().start()


def test_giving_up_ends_the_lease(registry: Recording, make: Make) -> None:
    make().give_up("it has not begun")
    heartbeat = make()
    heartbeat.start()
    cursor = registry.changes("teachers", "s").cursor
    heartbeat.give_up("it lies")
    (member,) = registry.changes("teachers", "s", cursor).members
    assert member.facts["given_up"] == "it lies"
    registry.clock.now += TTL_S / 10
    assert registry.sweep("teachers", "s") == ["t"], "lost, as one that has died"
    assert not registry.changes("teachers", "s", cursor).left
    heartbeat.give_up("it lies")


def test_beats_carry_only_what_changed_and_the_lease_has_no_gap(
    registry: Recording, make: Make, facts: dict[str, str]
) -> None:
    facts["t_t_seconds"] = "0.100"
    heartbeat = make()
    heartbeat.start()
    registry.clock.advance(8 * TTL_S)
    assert registry.beats == [{}] * len(registry.beats)
    assert len(registry.beats) >= 8 * BEATS_PER_TTL - 1
    facts["state"] = "draining"
    heartbeat.update()
    registry.clock.advance()
    assert registry.beats[-1] == {"state": "draining"}
    assert registry.members("teachers", "s")[0].facts["state"] == "draining"
    cursor = registry.changes("teachers", "s").cursor
    for t_t, told in (("0.104", []), ("0.108", []), ("0.112", ["0.112"])):
        facts["t_t_seconds"] = t_t  # managers hear of small changes when they add up
        heartbeat.update()
        registry.clock.advance()
        assert registry.members("teachers", "s")[0].facts["t_t_seconds"] == t_t
        changed = registry.changes("teachers", "s", cursor).members
        assert [member.facts["t_t_seconds"] for member in changed] == told
    assert all(registry.stood)


@pytest.mark.parametrize("refused", [False, True])
def test_an_outage_and_a_refusal_are_survived_and_logged_once(
    registry: Recording, make: Make, facts: dict[str, str],
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, refused: bool,
) -> None:  # fmt: skip
    def refuse(*_: Any, **__: Any) -> BeatAnswer:
        raise Forbidden("the Redis user may not do this")

    heartbeat = make()
    heartbeat.start()
    with caplog.at_level(logging.INFO, "edl.coordinator.heartbeat"):
        with monkeypatch.context() as patch:
            memory(registry).set_available(refused)
            if refused:
                patch.setattr(registry, "beat", refuse)
            registry.clock.advance(2 * TTL_S)
            assert not heartbeat.answering
        memory(registry).set_available(True)
        memory(registry).clear()  # it hears of it again
        registry.clock.advance(BEAT_S)
        registry.clock.now += TTL_S + 0.1  # as if it had been stopped
        assert registry.sweep("teachers", "s") == ["t"]
        registry.clock.advance(2 * TTL_S)
    assert heartbeat.answering
    assert dict(registry.members("teachers", "s")[0].facts) == facts
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "tries again" in warnings.pop(0)
    said = "the lease of teacher t had run out, or Redis had lost it; registered again"
    assert warnings == [said] * 2


def test_a_newer_incarnation_ends_it(registry: Recording, make: Make) -> None:
    superseded: list[LeaseSuperseded] = []
    old = make(on_superseded=superseded.append)
    old.start()
    registry.register("teachers", "s", "t", {"incarnation": "6"}, 30.0)
    old.update()
    wait_until(lambda: superseded)
    old.stop()
    assert registry.members("teachers", "s")[0].incarnation == 6
    with pytest.raises(LeaseSuperseded):
        make().start()


def test_a_failing_owner_keeps_its_lease(registry: Recording, make: Make) -> None:
    asked: list[bool] = []

    def drain() -> None:
        asked.append(True)
        raise RuntimeError("its owner is in trouble")

    answers = iter([{"incarnation": "5"}])  # then it cannot describe itself
    make(told=lambda: next(answers), on_drain=drain).start()
    assert registry.request_drain("s", "t")
    registry.clock.advance(2 * TTL_S)
    assert asked == [True]
    assert registry.alive == ["t"]
    assert registry.members("teachers", "s")[0].draining


def test_members_beat_at_different_times(registry: Recording, make: Make) -> None:
    first = []
    for number in range(40):
        began, beats = registry.clock.now, len(registry.beats)
        heartbeat = make(f"t{number}")
        heartbeat.start()
        registry.clock.advance(BEAT_S)
        heartbeat.stop(leave=False)
        first.append(registry.times[beats] - began)
    first.sort()
    assert first[-1] - first[0] > BEAT_S / 3
    assert max(b - a for a, b in pairwise(first)) < BEAT_S / 3


def test_the_teachers_of_a_host_beat_in_one_message(
    clock: VirtualTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[list[str]] = []
    drained: list[str] = []
    names, path = [f"t{number}" for number in range(8)], tmp_path / "beats"
    registry = Registry(FaultyStore(clock.monotonic))
    send = registry.beat_many

    def sent(kind: Kind, beats: Sequence[tuple[str, MemberBeat]], ttl_s: float) -> list[BeatAnswer]:
        messages.append(sorted(beat.member for _, beat in beats))
        return send(kind, beats, ttl_s)

    def gather(_: float) -> None:
        wait_until(lambda: relay.waiting == len(names) - 1)

    monkeypatch.setattr(registry, "beat_many", sent)
    relay = BeatRelay(registry, path, gather)
    relay.start()
    wait_until(path.exists)
    hearts = [
        Heartbeat(
            RelayedRegistry(registry.store, path, wait_s=DEADLINE_S),
            "teachers", f"s{name[-1]}", name, lambda: {"incarnation": "5"}, TTL_S,
            on_drain=partial(drained.append, name),
        )
        for name in names
    ]  # fmt: skip
    for heart in hearts:
        heart.start()
        clock.advance(BEAT_S / 10)  # all begin at moments of their own
    clock.advance(10 * BEAT_S)
    assert messages == [names] * 10
    assert registry.request_drain("s3", "t3")
    clock.advance(BEAT_S)
    assert drained == ["t3"]
    relay.stop()
    clock.advance(10 * BEAT_S)
    assert len(messages) == 11
    for name, heart in zip(names, hearts, strict=True):
        assert [one.member for one in registry.members("teachers", f"s{name[-1]}")] == [name]
        heart.stop()


def test_a_relay_that_hangs_costs_no_beat(registry: Recording, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "beats"))
        hung.listen()
        own = RelayedRegistry(registry.store, tmp_path / "beats", wait_s=0.01)
        with closing(own):
            own.register("teachers", "s", "t", {"incarnation": "5"}, TTL_S)
            for incarnation, answer in ((5, BeatAnswer.KEPT), (4, BeatAnswer.UNKNOWN)):
                beat = renew(own, "teachers", "s", "t", TTL_S, incarnation=incarnation)
                assert beat is answer


def test_most_beats_of_a_busy_teacher_are_plain(clock: VirtualTime, valkey_url: str) -> None:
    asked, ttl_s = count(), 600.0

    def facts() -> dict[str, str]:
        return {"incarnation": "5", "in_flight": str(next(asked))}

    with (
        closing(Registry(RedisStore(valkey_url, timeout_s=DEADLINE_S))) as registry,
        redis.Redis.from_url(valkey_url) as client,
    ):
        heart = Heartbeat(registry, "teachers", "plain-beats", "t", facts, ttl_s)
        heart.start()
        clock.advance(2 * ttl_s)  # from here on, facts go with the whole beats
        client.config_resetstat()
        for _ in range(20):
            beat_ms = registry.time_ms()  # a deadline has to rise, in whole milliseconds
            wait_until(lambda beat_ms=beat_ms: registry.time_ms() > beat_ms + 1)  # type: ignore[misc]
            clock.advance(ttl_s / BEATS_PER_TTL)
        sent: Any = client.info("commandstats")
        heart.stop()
    assert not {"cmdstat_evalsha", "cmdstat_eval"} & set(sent)
    beats = sent["cmdstat_zadd"]["calls"]
    assert beats >= 19
    assert 3 <= sent["cmdstat_hset"]["calls"] <= beats / 4


def test_beats_that_are_sent_together_are_plain_too(valkey_url: str) -> None:
    ttl_s, names = 600.0, [f"t{number}" for number in range(8)]
    beats = [("plain-together", MemberBeat(name, 5)) for name in names]
    with (
        closing(Registry(RedisStore(valkey_url, timeout_s=DEADLINE_S))) as registry,
        redis.Redis.from_url(valkey_url) as client,
    ):
        for name in names:
            registry.register("teachers", "plain-together", name, {"incarnation": "5"}, ttl_s)
        registry.beat_many("teachers", beats, ttl_s)  # whole ones
        client.config_resetstat()
        for _ in range(3):
            beat_ms = registry.time_ms()  # a deadline has to rise, in whole milliseconds
            wait_until(lambda beat_ms=beat_ms: registry.time_ms() > beat_ms + 1)  # type: ignore[misc]
            assert registry.beat_many("teachers", beats, ttl_s) == [BeatAnswer.KEPT] * 8
        sent: Any = client.info("commandstats")
        for name in names:
            registry.leave("teachers", "plain-together", name)
    assert not {"cmdstat_evalsha", "cmdstat_eval"} & set(sent)
    assert sent["cmdstat_zadd"]["calls"] == 3 * 8


def test_beats_are_sent_together_while_others_are_sent_alone() -> None:
    connection = Mock()
    connection.run_many.side_effect = lambda _, calls: [(BeatAnswer.KEPT, 0)] * len(calls)
    leases, teachers = RedisLeases(connection), LeaseSet("deadlines", "facts:", "changes")

    def send(prefix: str) -> None:
        for number in range(1000):
            leases.beat(teachers, MemberBeat(f"{prefix}{number}", 1), TTL_S)

    send("former")
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        sending = threading.Thread(target=send, args=("t",))
        sending.start()
        while sending.is_alive():
            leases.beat_many([], TTL_S)
    finally:
        sys.setswitchinterval(interval_s)
        sending.join()


def test_an_invalid_beat_gets_an_answer_and_is_not_sent_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(FaultyStore())
    monkeypatch.setattr(registry, "beat_many", send := Mock())
    relay = BeatRelay(registry, tmp_path / "beats")
    relay.start()
    wait_until((tmp_path / "beats").exists)
    valid = {"member": "t", "incarnation": 1}
    facts: list[Any] = [5, ["x"], {"in_flight": 1}, {"in_flight": None}, {"in_flight": ["1"]}]
    cases = [(ttl_s, valid) for ttl_s in (-1.0, math.nan, math.inf)]
    cases += [(TTL_S, valid | {"facts": one}) for one in facts]
    cases += [(TTL_S, valid | {"incarnation": "one"}), (TTL_S, valid | {"noted": "x"})]
    for ttl_s, beat in cases:
        message = {"service": "s", "ttl_s": ttl_s, "until_s": math.inf, "beat": beat}
        with socket.socket(socket.AF_UNIX) as teacher:
            teacher.settimeout(DEADLINE_S)
            teacher.connect(str(tmp_path / "beats"))
            teacher.sendall(json.dumps(message).encode() + b"\n")
            assert teacher.recv(1) == b"-"
    relay.stop()
    send.assert_not_called()


def test_without_a_socket_there_is_no_relay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "beats.lock").mkdir()
    relay = BeatRelay(Registry(FaultyStore()), tmp_path / "beats")
    relay.start()
    wait_until(lambda: "cannot start the relay of heartbeats" in caplog.text)
    relay.stop()
