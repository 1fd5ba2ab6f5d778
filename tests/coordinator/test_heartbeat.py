"""A heartbeat keeps its lease through outages and emptied registries, and never another's."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edl.coordinator import Heartbeat, MemoryRegistry
from edl.coordinator.embedded import start_embedded
from edl.coordinator.registry import Beat
from edl.coordinator.registry.redis_registry import RedisRegistry
from edl.errors import Forbidden, LeaseSuperseded, RegistryUnavailable
from edl.tests.ground.programs import wait_for

TTL_S = 1.5


class Recording(MemoryRegistry):
    """Keeps what each beat sent."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[dict[str, str]] = []

    def beat(self, *args: Any, **options: Any) -> Beat:
        try:
            return super().beat(*args, **options)
        finally:  # whoever sees the beat here sees what it has done, too
            self.beats.append(dict(options["facts"]))


class Clock:
    """Time that passes only while a heart waits; stands in for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Passing(threading.Event):
    """Its first waits move a clock and take no time; later ones last until it is set."""

    def __init__(self, clock: Clock, waits: int) -> None:
        super().__init__()
        self._clock = clock
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        if self._waits == 0 or timeout is None:
            return super().wait()
        self._waits -= 1
        self._clock.now += timeout
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("edl.coordinator.heartbeat.time", clock)
    return clock


@pytest.fixture
def registry() -> Recording:
    return Recording()


@pytest.fixture
def facts() -> dict[str, str]:
    return {"incarnation": "5", "state": "serving"}


@pytest.fixture
def heartbeat(registry: Recording, facts: dict[str, str]) -> Iterator[Heartbeat]:
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: facts, TTL_S)
    yield heart
    heart.stop()


def alive(registry: MemoryRegistry) -> bool:
    return [m.member for m in registry.members("teachers", "s")] == ["t"]


def test_one_that_is_given_up_dies_at_once(registry: Recording, facts: dict[str, str]) -> None:
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: facts, 60.0)
    heart.give_up("it lies")
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: facts, 60.0)
    heart.start()
    cursor = registry.changes("teachers", "s").cursor
    heart.give_up("it lies")
    (member,) = registry.changes("teachers", "s", cursor).members
    assert member.facts["given_up"] == "it lies", "managers are told why"
    wait_for(lambda: not alive(registry), 2.0)
    assert registry.sweep("teachers", "s") == ["t"], "lost, as one that has died"
    assert not registry.changes("teachers", "s", cursor).left
    heart.stop()
    heart.give_up("it lies")


def test_it_registers_at_once_and_leaves_at_the_end(
    registry: Recording, heartbeat: Heartbeat
) -> None:
    heartbeat.start()
    assert alive(registry)
    heartbeat.stop()
    assert registry.names("teachers", "s") == set()
    assert registry.changes("teachers", "s", 1).left == ("t",)


def test_without_leave_the_lease_runs_out(registry: Recording, heartbeat: Heartbeat) -> None:
    heartbeat.start()
    heartbeat.stop(leave=False)
    assert registry.names("teachers", "s") == {"t"}
    wait_for(lambda: not alive(registry))


def test_beats_carry_only_what_changed(
    registry: Recording, heartbeat: Heartbeat, facts: dict[str, str]
) -> None:
    heartbeat.start()
    wait_for(lambda: len(registry.beats) >= 2)
    assert registry.beats[0] == registry.beats[1] == {}
    before = len(registry.beats)
    facts["state"] = "draining"
    heartbeat.update()
    wait_for(lambda: {"state": "draining"} in registry.beats[before:])
    assert registry.members("teachers", "s")[0].facts["state"] == "draining"


def test_a_long_life_has_no_gap(clock: Clock) -> None:
    stood: list[bool] = []

    class Watched(MemoryRegistry):
        def beat(self, *args: Any, **options: Any) -> Beat:
            stood.append(alive(self))
            return super().beat(*args, **options)

    registry = Watched(clock=clock.monotonic)
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "5"}, TTL_S)
    heart._wake = Passing(clock, waits=8)
    heart.start()
    try:
        wait_for(lambda: len(stood) >= 8)
        assert stood == [True] * 8
        assert alive(registry)
        assert clock.now > 2 * TTL_S
    finally:
        heart.stop()


def test_an_unreachable_registry_is_told_at_the_start(
    registry: Recording, heartbeat: Heartbeat
) -> None:
    registry.set_available(False)
    with pytest.raises(RegistryUnavailable):
        heartbeat.start()
    assert not heartbeat._thread.is_alive()


def test_an_outage_is_survived_and_logged_once(
    registry: Recording, heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat.start()
    with caplog.at_level(logging.INFO, "edl.coordinator.heartbeat"):
        registry.set_available(False)
        tried = len(registry.beats)
        wait_for(lambda: len(registry.beats) >= tried + 4)
        assert not heartbeat.answering
        registry.set_available(True)
        wait_for(lambda: heartbeat.answering and alive(registry))
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "does not answer" in warnings[0].getMessage()


def test_a_registry_that_forgot_it_hears_of_it_again(
    registry: Recording, heartbeat: Heartbeat, facts: dict[str, str]
) -> None:
    heartbeat.start()
    registry.clear()
    wait_for(lambda: alive(registry))
    assert dict(registry.members("teachers", "s")[0].facts) == facts


def test_a_newer_incarnation_ends_it_and_keeps_its_lease(registry: Recording) -> None:
    told: list[LeaseSuperseded] = []
    old = Heartbeat(
        registry, "teachers", "s", "t", lambda: {"incarnation": "5"}, TTL_S,
        on_superseded=told.append,
    )  # fmt: skip
    old.start()
    registry.register("teachers", "s", "t", {"incarnation": "6"}, 30.0)
    wait_for(lambda: bool(told))
    old.stop()
    assert registry.members("teachers", "s")[0].incarnation == 6
    with pytest.raises(LeaseSuperseded):
        Heartbeat(registry, "teachers", "s", "t", lambda: {"incarnation": "5"}, TTL_S).start()


def test_stopping_during_an_outage_neither_raises_nor_hangs(
    registry: Recording, heartbeat: Heartbeat
) -> None:
    heartbeat.start()
    registry.set_available(False)
    heartbeat.stop()
    assert not heartbeat._thread.is_alive()


def test_an_owner_that_cannot_describe_itself_is_still_alive(
    registry: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([{"incarnation": "5"}])
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: next(answers), TTL_S)
    heart.start()
    wait_for(lambda: len(registry.beats) >= 2)
    heart.stop(leave=False)
    assert alive(registry)
    assert any("its beats go on" in record.getMessage() for record in caplog.records)


def test_a_drain_that_was_asked_for_is_told_once_and_the_lease_stays(registry: Recording) -> None:
    asked: list[bool] = []

    def drain() -> None:
        asked.append(True)
        raise RuntimeError("its owner is in trouble")

    facts = {"incarnation": "5", "state": "serving"}
    heart = Heartbeat(registry, "teachers", "s", "t", lambda: facts, TTL_S, on_drain=drain)
    heart.start()
    assert registry.request_drain("s", "t")
    wait_for(lambda: bool(asked))
    beats = len(registry.beats)
    wait_for(lambda: len(registry.beats) >= beats + 3)
    assert asked == [True]
    assert alive(registry)
    assert registry.members("teachers", "s")[0].draining
    heart.stop()


def test_a_registry_that_refuses_our_user_is_survived(
    registry: Recording, heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Beat:
        refused.append(True)
        raise Forbidden("the Redis user may not do this")

    refused: list[bool] = []
    heartbeat.start()
    with monkeypatch.context() as patched:
        patched.setattr(registry, "beat", refuse)
        wait_for(lambda: len(refused) >= 2)
        assert not heartbeat.answering
    wait_for(lambda: heartbeat.answering and alive(registry))


def test_small_steps_of_a_measured_time_reach_managers_when_they_add_up(
    registry: Recording, heartbeat: Heartbeat, facts: dict[str, str]
) -> None:
    def tell(t_t: str) -> tuple[str, ...]:
        beats = len(registry.beats)
        facts["t_t_seconds"] = t_t
        heartbeat.update()
        wait_for(lambda: {"t_t_seconds": t_t} in registry.beats[beats:])
        wait_for(lambda: registry.members("teachers", "s")[0].facts["t_t_seconds"] == t_t)
        changes = registry.changes("teachers", "s", cursor)
        return tuple(member.facts["t_t_seconds"] for member in changes.members)

    facts["t_t_seconds"] = "0.100"
    heartbeat.start()
    cursor = registry.changes("teachers", "s").cursor
    assert [tell("0.104"), tell("0.108")] == [(), ()]
    assert tell("0.112") == ("0.112",)


def test_members_that_start_together_do_not_beat_together(clock: Clock) -> None:
    times: list[float] = []

    class Timed(MemoryRegistry):
        def beat(self, *args: Any, **options: Any) -> Beat:
            times.append(clock.now)
            return super().beat(*args, **options)

    shared = Timed()

    def first_beat_s(member: str) -> float:
        times.clear()
        clock.now = 0.0  # all start at one moment, each with the clock to itself
        heart = Heartbeat(shared, "teachers", "s", member, lambda: {"incarnation": "1"}, 3.0)
        heart._wake = Passing(clock, waits=1)
        heart.start()
        wait_for(lambda: bool(times))
        heart.stop(leave=False)
        return times[0]

    first = sorted(first_beat_s(f"t{n}") for n in range(40))
    assert first[-1] - first[0] > 0.4  # of the interval of 1.2 s
    assert max(b - a for a, b in itertools.pairwise(first)) < 0.4


@pytest.mark.serial
def test_of_the_beats_of_a_busy_teacher_five_in_six_are_plain_commands() -> None:
    process, url = start_embedded()
    registry = RedisRegistry(url)
    asked = itertools.count()
    ttl_s = 0.9
    heart = Heartbeat(
        registry, "teachers", "s", "t",
        lambda: {"incarnation": "5", "in_flight": str(next(asked))}, ttl_s,
    )  # fmt: skip

    def told() -> int:
        (member,) = registry.members("teachers", "s")
        return int(member.facts["in_flight"])

    def calls(name: str) -> int:
        return int(registry._redis.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))

    try:
        heart.start()
        wait_for(lambda: told() > 2)  # from here on, facts go with the whole beats
        before = {name: calls(name) for name in ("zadd", "hset", "evalsha")}
        wait_for(lambda: calls("zadd") >= before["zadd"] + 18)  # each sort of beat has one
        beats, whole, scripts = (calls(name) - before[name] for name in before)
    finally:
        heart.stop()
        registry.close()
        process.stop()
    assert scripts == 0
    assert 3 <= whole <= beats / 4, (whole, beats)
