"""`edl bench coordinator` measures a real mesh: here one that is small enough for any machine."""

from __future__ import annotations

import math

import pytest

from edl.benchmarks import coordinator
from edl.coordinator.heartbeat import BEATS_PER_TTL

TTL_S = 2.0


@pytest.mark.nightly
def test_whoever_joins_or_dies_is_timed() -> None:
    found = coordinator.measure(teachers=30, students=3, seconds=2.0, ttl_s=TTL_S)
    assert len(found.join_s) == 5
    assert 0 < len(found.death_s) <= 5
    assert all(0 < late_s < math.inf for late_s in (*found.join_s, *found.death_s))
    expected = 30 * BEATS_PER_TTL / TTL_S
    assert 0.7 * expected < found.beats_per_s < 1.2 * expected
    assert all(0 < cores < 1 for cores in found.quiet.values())
