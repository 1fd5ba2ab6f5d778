"""`edl bench teacher` measures a real teacher with a real reader, and sees what is late."""

from __future__ import annotations

import pytest

from edl.benchmarks import teacher
from edl.benchmarks.teaching.watch import Watch
from edl.coordinator.heartbeat import BEATS_PER_TTL

TTL_S = 2.0


@pytest.mark.serial
def test_a_reader_gets_most_of_what_an_emulated_device_gives() -> None:
    part = teacher.paced(batch_s=0.02, window_s=0.1)
    assert 0.5 < part.value < 1.02
    assert part.low <= part.value <= part.high


class Leases:
    """A teacher's deadlines, as one look after another finds them."""

    def __init__(self, *deadlines_ms: float | None) -> None:
        self._deadlines_ms = iter(deadlines_ms)

    def zscore(self, key: str, member: str) -> float | None:
        assert (key, member) == ("leases", "t1")
        return next(self._deadlines_ms)


def test_a_beat_is_as_late_as_the_deadline_moves_too_far() -> None:
    watch = Watch("127.0.0.1:1", "redis://127.0.0.1:1", "leases", "t1", TTL_S)
    beat_ms = 1000 * TTL_S / BEATS_PER_TTL
    looks = [None, 5000.0, 5000.0, 5000 + beat_ms, 5000 + 2 * beat_ms + 70, 5000 + 3 * beat_ms]
    watch._redis = Leases(*looks)
    for _ in looks:
        watch._look_at_beats()
    assert watch.take()["beat"] == pytest.approx([0.0, 0.07, 0.0])
    assert not watch.take()


@pytest.mark.nightly  # it exports and runs a ResNet for half a minute
def test_a_model_alone_and_in_a_teacher_is_timed_by_turns() -> None:
    found = teacher.resnet(18, batches=1)
    assert 0.3 < found.part.value < 1.5
    assert found.bare_per_s > 1
    assert min(map(len, (found.live_s, found.beat_s, found.control_s))) > 0
