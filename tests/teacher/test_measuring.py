"""Measurements of a model in virtual time: its warm-up, its micro-batch, a sweep of sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.proto.datatypes import TensorSpec
from edl.runtime.errors import ModelError, RequestRefused, RetryableError
from edl.teacher.backends import ModelSpec
from edl.teacher.backends.selection import OutputCheckedBackend
from edl.teacher.backends.tensor_specs import example_batch, example_shape
from edl.teacher.microbatch import SIZES, fastest_micro_batch, warm_up
from edl.teacher.offline import sweep
from edl.tests.teacher.fakes import SPEC, FakeBackend, double_and_sum


class Device:
    """Time passes only while the model runs: `seconds_of` the rows and the number of the run."""

    def __init__(self, seconds_of: Callable[[int, int], float], spec: ModelSpec = SPEC) -> None:
        self.now = 0.0
        self.backend = FakeBackend(self._run, spec)
        self._seconds_of = seconds_of

    def clock(self) -> float:
        return self.now

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.now += self._seconds_of(len(inputs["x"]), len(self.backend.runs))
        return double_and_sum(inputs)


#: Of a model that takes three rows, no more and no fewer.
FIXED = replace(
    SPEC,
    inputs=(TensorSpec("x", "FP32", (3, 4)),),
    outputs=(TensorSpec("sum", "FP32", (3,)), TensorSpec("double", "FP32", (3, 4))),
)


def test_t_t_is_the_median_of_five_warm_runs() -> None:
    seconds = [9.0, 8.0, 0.5, 0.4, 0.8, 0.3, 0.4]
    device = Device(lambda _, run: seconds[min(run, len(seconds)) - 1])
    assert warm_up(device.backend, 8, device.clock) == pytest.approx(0.4 / 8)
    assert set(device.backend.runs) == {8}
    assert len(device.backend.runs) >= 2 + 5
    slow = Device(lambda *_: 60.0)
    assert warm_up(slow.backend, 4, slow.clock) == pytest.approx(60.0 / 4)
    assert len(slow.backend.runs) == 3, "a slow model is warmed up by fewer runs"
    fixed = Device(lambda *_: 0.3, FIXED)
    assert warm_up(fixed.backend, 8, fixed.clock) == pytest.approx(0.1)


def refuse(inputs: Mapping[str, Array]) -> dict[str, Array]:
    raise RequestRefused("no such operator")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (refuse, r"fails on an example batch \(x \[8, 4\]\): no such operator"),
        (lambda inputs: {"sum": np.zeros(8, "f4")}, "declares an output 'double'"),
        (lambda inputs: {**double_and_sum(inputs), "sum": np.zeros(8)}, "'sum' is float64 .* FP32"),
        (lambda inputs: {**double_and_sum(inputs), "sum": np.zeros(1, "f4")}, "must be the batch"),
    ],
)
def test_a_broken_declaration_is_refused(
    function: Callable[[Mapping[str, Array]], dict[str, Array]], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        warm_up(OutputCheckedBackend(FakeBackend(function)), 8)


def test_examples_have_usual_sizes_and_values() -> None:
    image = TensorSpec("image", "FP32", (-1, 3, -1, -1))
    ids = TensorSpec("ids", "INT64", (-1, -1))
    assert example_shape(image, 8) == (8, 3, 224, 224)
    assert example_shape(ids, 8) == (8, 32)
    assert example_shape(TensorSpec("x", "BF16", (5, 4)), 8) == (5, 4)
    batch = example_batch((image, ids), 2)
    assert not batch["ids"].any()
    assert batch["image"].std() == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(batch["image"], example_batch((image, ids), 2)["image"])


@pytest.mark.parametrize(
    ("seconds_of", "best"),
    [
        (lambda size: 0.004 + 0.001 * size, 64),  # a GPU: a start that many share
        (lambda size: size * (0.010 + 0.001 * abs(size - 4)), 4),  # a cache that 4 fit into
        (lambda size: size * 0.02, 1),  # nothing to be gained
        (lambda size: 1.5 * size, 1),  # slow: only the smallest is measured
    ],
)
def test_the_micro_batch_is_nearly_the_best(seconds_of: Callable[[int], float], best: int) -> None:
    device = Device(lambda size, _: seconds_of(size))
    chosen, per_sample_s = fastest_micro_batch(device.backend, device.clock)
    least = min(seconds_of(size) / size for size in SIZES)
    assert chosen == best
    assert per_sample_s[chosen] <= 1.05 * least
    assert device.now <= 30


def test_sizes_that_do_not_fit_into_memory_are_left_out() -> None:
    def seconds_of(size: int, _: int) -> float:
        if size > 8:
            raise RetryableError("out of device memory")
        return 0.01 + size * 0.001

    device = Device(seconds_of)
    chosen, per_sample_s = fastest_micro_batch(device.backend, device.clock)
    assert chosen == 8
    assert list(per_sample_s) == [1, 2, 4, 8]


def test_a_size_that_stops_fitting_excludes_larger_ones() -> None:
    """Another process may take memory between two runs."""
    runs = Counter[int]()

    def seconds_of(size: int, _: int) -> float:
        runs[size] += 1
        if size == 4 and runs[size] > 9:
            raise RetryableError("out of device memory")
        return size * {1: 0.02, 2: 0.011}.get(size, 0.01)

    device = Device(seconds_of)
    chosen, per_sample_s = fastest_micro_batch(device.backend, device.clock)
    assert runs[8] > 0
    assert chosen == 2
    assert list(per_sample_s) == [1, 2]


@pytest.mark.parametrize("runs", [0, 4])
def test_memory_that_runs_out_for_the_smallest_size_is_an_error(runs: int) -> None:
    """Also at the second look at it."""
    left = iter(range(runs))

    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if next(left, None) is None:
            raise RetryableError("out of device memory")
        return double_and_sum(inputs)

    with pytest.raises(RetryableError, match="out of device memory"):
        fastest_micro_batch(FakeBackend(fail))


def test_a_fixed_batch_is_not_measured() -> None:
    backend = FakeBackend(spec=FIXED)
    assert fastest_micro_batch(backend) == (3, {})
    assert backend.runs == []


def swept(seconds: Mapping[int, float]) -> Device:
    """Of n samples a run takes `seconds[n]`, and 10 times that in every tenth run of any size."""
    return Device(lambda rows, run: seconds[rows] * (10 if run % 10 == 0 else 1))


def test_the_size_with_the_least_time_per_sample_is_the_best() -> None:
    device = swept({1: 0.1, 4: 0.2, 16: 1.6})
    timings = sweep(device.backend, [1, 4, 16], 40, 1e9, device.clock)
    assert [timing["best"] for timing in timings] == [False, True, False]
    assert [timing["p50_s"] for timing in timings] == pytest.approx([0.1, 0.2, 1.6])
    assert [timing["samples_per_s"] for timing in timings] == pytest.approx([10, 20, 10])
    assert max(timing["p99_s"] / timing["p50_s"] for timing in timings) == pytest.approx(
        10, rel=0.1
    )
    assert device.backend.runs[:6] == [1, 4, 16, 1, 4, 16]  # by turns


def test_first_runs_do_not_count_and_a_budget_ends_the_sweep() -> None:
    device = swept({1: 1.0, 2: 1.0})
    timings = sweep(device.backend, [1, 2], 1000, 50.0, device.clock)
    assert {timing["runs"] for timing in timings} <= set(range(10, 25))
    slow = swept({1: 1000.0})
    (timing,) = sweep(slow.backend, [1], 1000, 0.0, slow.clock)
    assert timing["runs"] == 3
    assert len(slow.backend.runs) == 5


def test_a_size_that_fails_is_named() -> None:
    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs["x"]) == 8:
            raise RetryableError("out of memory")
        return double_and_sum(inputs)

    with pytest.raises(ModelError, match="the model fails on a batch of 8: out of memory"):
        sweep(FakeBackend(fail), [1, 8], 5, 1.0)
