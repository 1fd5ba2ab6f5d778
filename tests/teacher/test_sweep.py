"""Batch sizes are timed by turns, in time that the test makes, and the best is marked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edl.errors import ModelError, RetryableError
from edl.proto.arena import Array
from edl.teacher.sweep import sweep
from edl.tests.teacher.fakes import FakeBackend, double_and_sum


class Device:
    """A run of n samples takes `seconds[n]`, and 10 times that in every tenth run of any size."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.now = 0.0
        self.backend = FakeBackend(self._run)
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        slow = 10 if len(self.backend.runs) % 10 == 0 else 1
        self.now += self._seconds[len(inputs["x"])] * slow
        return double_and_sum(inputs)


def test_the_size_of_the_least_time_per_sample_is_the_best() -> None:
    device = Device({1: 0.1, 4: 0.2, 16: 1.6})
    timings = sweep(device.backend, [1, 4, 16], 40, 1e9, device.clock)
    assert [timing.best for timing in timings] == [False, True, False]
    assert [timing.p50_s for timing in timings] == pytest.approx([0.1, 0.2, 1.6])
    assert [timing.samples_per_s for timing in timings] == pytest.approx([10, 20, 10])
    assert max(timing.p99_s / timing.p50_s for timing in timings) == pytest.approx(10, rel=0.1)
    assert device.backend.runs[:6] == [1, 4, 16, 1, 4, 16]  # by turns


def test_the_first_runs_do_not_count_and_the_budget_ends_the_last() -> None:
    device = Device({1: 1.0, 2: 1.0})
    timings = sweep(device.backend, [1, 2], 1000, 50.0, device.clock)
    assert {len(timing.seconds) for timing in timings} <= set(range(10, 25))
    slow = Device({1: 1000.0})
    (timing,) = sweep(slow.backend, [1], 1000, 0.0, slow.clock)
    assert len(timing.seconds) == 3
    assert len(slow.backend.runs) == 5


def test_a_model_that_fails_at_a_size_says_which() -> None:
    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs["x"]) == 8:
            raise RetryableError("out of memory")
        return double_and_sum(inputs)

    with pytest.raises(ModelError, match="the model fails on a batch of 8: out of memory"):
        sweep(FakeBackend(fail), [1, 8], 5, 1.0)
