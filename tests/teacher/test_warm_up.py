"""A model is run, held against what it declares, and timed, before it may serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from edl.errors import ModelError, RequestRefused
from edl.proto.arena import Array
from edl.teacher.backends.checked import Checked
from edl.teacher.backends.example import example_batch, example_shape
from edl.teacher.model import TensorSpec
from edl.teacher.warm_up import warm_up
from edl.tests.teacher.fakes import SPEC, FakeBackend, double_and_sum


class Clock:
    """Time that only passes while the model runs: each run takes the next of `durations`."""

    def __init__(self, *durations: float) -> None:
        self.now = 0.0
        self._durations = list(durations)

    def __call__(self) -> float:
        return self.now

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.now += self._durations.pop(0) if len(self._durations) > 1 else self._durations[0]
        return double_and_sum(inputs)


def test_t_t_is_the_median_per_sample_of_at_least_five_warm_runs() -> None:
    clock = Clock(9.0, 8.0, 0.5, 0.4, 0.8, 0.3, 0.4)
    backend = FakeBackend(clock.run)
    assert warm_up(backend, 8, clock) == pytest.approx(0.4 / 8)
    assert set(backend.runs) == {8}
    assert len(backend.runs) >= 2 + 5


def test_a_slow_model_is_measured_by_fewer_runs() -> None:
    clock = Clock(60.0)
    backend = FakeBackend(clock.run)
    assert warm_up(backend, 4, clock) == pytest.approx(60.0 / 4)
    assert len(backend.runs) == 3


def test_a_fixed_batch_is_measured_by_its_own_size() -> None:
    clock = Clock(0.3)
    spec = replace(
        SPEC,
        inputs=(TensorSpec("x", "FP32", (3, 4)),),
        outputs=(TensorSpec("sum", "FP32", (3,)), TensorSpec("double", "FP32", (3, 4))),
    )
    assert warm_up(FakeBackend(clock.run, spec), 8, clock) == pytest.approx(0.1)


def refuse(inputs: Mapping[str, Array]) -> dict[str, Array]:
    raise RequestRefused("no such operator")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (refuse, r"fails on an example batch \(x \[8, 4\]\): no such operator"),
        (lambda inputs: {"sum": np.zeros(8, "f4")}, "declares an output 'double'"),
        (
            lambda inputs: {**double_and_sum(inputs), "sum": np.zeros(8, "f8")},
            r"output 'sum' is float64 \[8\], but the model declares FP32 \[-1\]",
        ),
        (
            lambda inputs: {**double_and_sum(inputs), "double": np.zeros((8, 5), "f4")},
            r"output 'double' is float32 \[8, 5\], but the model declares FP32 \[-1, 4\]",
        ),
        (lambda inputs: {**double_and_sum(inputs), "sum": np.zeros(1, "f4")}, "must be the batch"),
        (
            lambda inputs: {**double_and_sum(inputs), "sum": np.array([object()] * 8)},
            r"output 'sum' is object \[8\], but the model declares FP32 \[-1\]",
        ),
    ],
)
def test_a_model_that_is_not_what_it_says_may_not_serve(
    function: Callable[[Mapping[str, Array]], dict[str, Array]], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        warm_up(Checked(FakeBackend(function)), 8)


def test_an_example_holds_usual_sizes_and_values_that_any_model_takes() -> None:
    image = TensorSpec("image", "FP32", (-1, 3, -1, -1))
    ids = TensorSpec("ids", "INT64", (-1, -1))
    assert example_shape(image, 8) == (8, 3, 224, 224)
    assert example_shape(ids, 8) == (8, 32)
    assert example_shape(TensorSpec("x", "BF16", (5, 4)), 8) == (5, 4)
    batch = example_batch((image, ids), 2)
    assert not batch["ids"].any()
    assert batch["image"].std() == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(batch["image"], example_batch((image, ids), 2)["image"])
