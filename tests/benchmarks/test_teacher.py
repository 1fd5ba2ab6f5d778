"""`edl bench teacher` measures a real teacher with a real reader."""

from __future__ import annotations

from edl.benchmarks import teacher


def test_a_reader_gets_most_of_what_an_emulated_device_gives() -> None:
    part = teacher.paced(batch_s=0.02, window_s=0.1)
    assert 0.5 < part.value < 1.02
    assert part.low <= part.value <= part.high
