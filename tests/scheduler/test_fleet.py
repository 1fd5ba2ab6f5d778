"""Fleets: which processes are started and drained, and the pauses after some that died young."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.backoff import RetryPause
from edl.scheduler.fleet import (
    CAP_S,
    HEALTHY_S,
    FleetProcess,
    fleet_change,
    fleet_size,
    pause_after_exit,
)

PROCESSES = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8).map(
    lambda processes: [FleetProcess(str(i), *flags) for i, flags in enumerate(processes)]
)


@given(PROCESSES, st.integers(0, 8))
def test_changes_reach_the_count(processes: list[FleetProcess], count: int) -> None:
    staying = [one.name for one in processes if not one.leaves]
    found = fleet_change(processes, count, RetryPause(), 0.0)
    assert len(staying) + found.start - len(found.drain) == count
    assert found.start == 0 or not found.drain
    assert set(found.drain) <= set(staying)


def test_unused_processes_leave_first_and_bounds_hold() -> None:
    processes = [
        FleetProcess("a"),
        FleetProcess("b", serves=True),
        FleetProcess("c", serves=True),
        FleetProcess("d"),
    ]
    assert fleet_change(processes, 3, RetryPause(), 0.0).drain == ("d",)
    assert fleet_change(processes, 1, RetryPause(), 0.0).drain == ("d", "a", "c")
    assert [fleet_size(n, 2, 4) for n in (0, 1, 3, 9)] == [0, 2, 3, 4]
    assert pause_after_exit(RetryPause(), 4.0, 5.0, random.Random(1)).until_s == 5.0


@given(st.integers(0, 1 << 30))
def test_pauses_grow_until_one_stays(seed: int) -> None:
    rng, pause, now = random.Random(seed), RetryPause(), 0.0
    for _ in range(50):
        pause = pause_after_exit(pause, now, now + 0.1, rng)
        assert pause.until_s <= now + 0.1 + CAP_S
        assert pause_after_exit(pause, now, now + 0.2, rng) == pause, "of one incident"
        now = max(now + 0.1, pause.until_s)
    assert now > CAP_S
    assert fleet_change([], 1, RetryPause(1, now + 1.0), now).start == 0
    assert fleet_change([], 1, RetryPause(1, now), now).start == 1
    assert pause_after_exit(pause, now - HEALTHY_S, now, rng) == RetryPause()
