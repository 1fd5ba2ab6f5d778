"""For which services a manager stands, and for how long."""

from __future__ import annotations

from typing import NoReturn

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.manager.election import Election
from edl.errors import RegistryUnavailable
from edl.tests.ground.programs import wait_for

TTL_S, LEADER_TTL_S = 6.0, 2.0


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> MemoryRegistry:
    return MemoryRegistry(clock=clock)


def stand(registry: MemoryRegistry, clock: Clock) -> Election:
    return Election(registry, "m:1", LEADER_TTL_S, TTL_S, clock)


def test_a_service_is_led_on_after_its_last_member_until_all_is_said(
    registry: MemoryRegistry, clock: Clock
) -> None:
    election = stand(registry, clock)
    registry.register("teachers", "s", "t", {"incarnation": "1"}, TTL_S)
    election.renew()
    assert election.led() == ["s"]
    registry.leave("teachers", "s", "t", 1)  # whoever leads has not read that yet
    for _ in range(4):
        clock.now += 0.5
        election.renew()
        assert election.led() == ["s"]
    assert election.stands("s")
    clock.now += 2 * TTL_S
    election.renew()
    assert election.led() == []
    assert not election.stands("s")
    assert registry.lead("s", "another#1", LEADER_TTL_S).leader == "another#1"


def test_a_mistake_of_ours_does_not_end_the_election(
    registry: MemoryRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = stand(registry, clock)
    registry.register("teachers", "s", "t", {"incarnation": "1"}, TTL_S)
    asked: list[str] = []

    def fails() -> list[str]:
        asked.append("")
        if len(asked) == 1:
            election.stand_for("s")  # so that it looks again at once
            raise ValueError("ours")
        return ["s"]

    monkeypatch.setattr(registry, "services", fails)
    election.start()
    wait_for(lambda: election.led() == ["s"])
    election.stop()


def test_a_stop_does_not_wait_for_each_lease_while_the_registry_hangs(
    registry: MemoryRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = stand(registry, clock)
    for service in ("a", "b", "c"):
        registry.register("teachers", service, "t", {"incarnation": "1"}, TTL_S)
    election.renew()
    tried: list[str] = []

    def hang(service: str, token: str) -> NoReturn:
        tried.append(service)
        raise RegistryUnavailable("it hangs")

    monkeypatch.setattr(registry, "resign", hang)
    election.stop()
    assert len(tried) == 1
