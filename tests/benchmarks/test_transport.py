"""`edl bench transport`: every lane carries batches between two processes."""

from __future__ import annotations

from edl.benchmarks import transport
from edl.benchmarks.lanes import REPLY_SHAPE


def test_every_lane_is_measured_by_turns() -> None:
    turns = transport.measure(size=4 * REPLY_SHAPE[0] * 64, requests=4)
    assert set(turns) == set(transport.LANES)
    for taken in turns.values():
        assert len(taken.wall_s) == len(taken.client_cpu_s) == len(taken.server_cpu_s) > 15
        assert min(taken.wall_s) > 0
        assert sum(taken.client_cpu_s) > 0
        assert sum(taken.server_cpu_s) > 0
