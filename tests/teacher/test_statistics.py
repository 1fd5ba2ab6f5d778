"""Counts and nanoseconds of a model's requests, on a clock that the test moves."""

from __future__ import annotations

import pytest

from edl.errors import BadAnswer
from edl.teacher.statistics import Statistics


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def answer(
    statistics: Statistics, clock: Clock, samples: int, device_seconds: float = 4e-9
) -> None:
    """A request: 1 ns to read, 10 ns until it is labelled, 2 ns to put together."""
    with statistics.request() as stages:
        clock.ns += 1
        stages.read()
        clock.ns += 10
        stages.labelled(samples, device_seconds)
        clock.ns += 2


def test_the_time_of_a_request_is_that_of_its_parts() -> None:
    clock = Clock()
    statistics = Statistics(clock, unix_ms=lambda: 1234)
    for samples in (3, 8, 3):
        answer(statistics, clock, samples)
    model = statistics.message("net", "1")
    assert (model.name, model.version, model.last_inference) == ("net", "1", 1234)
    assert (model.inference_count, model.execution_count) == (14, 3)
    stats = model.inference_stats
    spent = {
        name: (getattr(stats, name).count, getattr(stats, name).ns)
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output", "fail")
    }
    assert spent == {
        "success": (3, 39),
        "queue": (3, 18),
        "compute_input": (3, 3),
        "compute_infer": (3, 12),
        "compute_output": (3, 6),
        "fail": (0, 0),
    }
    assert [(size.batch_size, size.compute_infer.count) for size in model.batch_stats] == [
        (3, 2),
        (8, 1),
    ]


def test_one_that_fails_counts_as_that_only() -> None:
    clock = Clock()
    statistics = Statistics(clock)

    def fail() -> None:
        with statistics.request():
            clock.ns += 5
            raise BadAnswer("NaN")

    with pytest.raises(BadAnswer):
        fail()
    model = statistics.message("net", "1")
    assert (model.inference_stats.fail.count, model.inference_stats.fail.ns) == (1, 5)
    assert model.inference_stats.success.count == model.execution_count == 0
    assert model.last_inference == 0


def test_the_model_never_takes_longer_than_there_was() -> None:
    clock = Clock()
    statistics = Statistics(clock)
    answer(statistics, clock, 1, device_seconds=1.0)
    stats = statistics.message("net", "1").inference_stats
    assert (stats.compute_infer.ns, stats.queue.ns) == (10, 0)


def test_sizes_without_end_fill_no_memory() -> None:
    clock = Clock()
    statistics = Statistics(clock)
    for samples in range(1, 1000):
        answer(statistics, clock, samples)
    model = statistics.message("net", "1")
    assert len(model.batch_stats) == 256
    assert model.execution_count == 999
