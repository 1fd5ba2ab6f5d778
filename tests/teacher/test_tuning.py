"""The micro-batch that is measured, against devices whose time for each size is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.errors import RetryableError
from edl.proto.arena import Array
from edl.supervise import start
from edl.teacher.backends.paddle_runtime import import_paddle
from edl.teacher.model import TensorSpec
from edl.teacher.tuning import SIZES, fastest_micro_batch
from edl.tests.ground.programs import python
from edl.tests.teacher.fakes import SPEC, FakeBackend, double_and_sum


class Device:
    """Time passes only while the model runs, `seconds_of` the size."""

    def __init__(self, seconds_of: Callable[[int], float]) -> None:
        self.now = 0.0
        self._seconds_of = seconds_of

    def __call__(self) -> float:
        return self.now

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.now += self._seconds_of(len(inputs["x"]))
        return double_and_sum(inputs)


@pytest.mark.parametrize(
    ("seconds_of", "best"),
    [
        (lambda size: 0.004 + 0.001 * size, 64),  # a GPU: a start that many share
        (lambda size: size * (0.010 + 0.001 * abs(size - 4)), 4),  # a cache that 4 fit into
        (lambda size: size * 0.02, 1),  # nothing to be gained
    ],
)
def test_it_chooses_within_5_percent_of_the_best(
    seconds_of: Callable[[int], float], best: int
) -> None:
    device = Device(seconds_of)
    chosen, per_sample_s = fastest_micro_batch(FakeBackend(device.run), device)
    least = min(seconds_of(size) / size for size in SIZES)
    assert chosen == best
    assert per_sample_s[chosen] <= 1.05 * least


def test_a_model_of_seconds_ends_its_measuring_soon() -> None:
    device = Device(lambda size: 1.5 * size)
    chosen, per_sample_s = fastest_micro_batch(FakeBackend(device.run), device)
    assert (chosen, list(per_sample_s)) == (1, [1])
    assert device.now <= 30


def test_sizes_that_memory_does_not_hold_are_left_out() -> None:
    device = Device(lambda size: 0.01 + size * 0.001)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs["x"]) > 8:
            raise RetryableError("out of device memory")
        return device.run(inputs)

    chosen, per_sample_s = fastest_micro_batch(FakeBackend(run), device)
    assert chosen == 8
    assert list(per_sample_s) == [1, 2, 4, 8]


def test_one_that_runs_nothing_says_so() -> None:
    def fail(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise RetryableError("out of device memory")

    with pytest.raises(RetryableError, match="out of device memory"):
        fastest_micro_batch(FakeBackend(fail))


def test_memory_that_runs_out_at_a_second_look_is_said_too() -> None:
    runs = iter([None] * 4)

    def once(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if next(runs, 0) is not None:
            raise RetryableError("out of device memory")
        return double_and_sum(inputs)

    with pytest.raises(RetryableError, match="out of device memory"):
        fastest_micro_batch(FakeBackend(once))


def test_a_fixed_batch_is_its_own_answer() -> None:
    spec = replace(SPEC, inputs=(TensorSpec("x", "FP32", (3, 4)),))
    backend = FakeBackend(spec=spec)
    assert fastest_micro_batch(backend) == (3, {})
    assert backend.runs == []


#: Where the 95 % interval of the median of so many rounds begins (binomial).
ROUNDS, LOWER = 41, 13
#: In a process of its own, tuned as a predictor's is.
SWEEP = """
import json, sys, time
from edl.proto.allocator import tune_allocator
from edl.teacher.backends.example import example_batch
from edl.teacher.backends.open import open_backend
from edl.teacher.tuning import SIZES, fastest_micro_batch
tune_allocator()
backend = open_backend(sys.argv[1])
chosen, _ = fastest_micro_batch(backend)
batches = {size: example_batch(backend.spec.inputs, size) for size in SIZES}
rounds = []
for _ in range(int(sys.argv[2])):
    costs = {}
    for size, batch in batches.items():
        start = time.perf_counter()
        backend.run(batch)
        costs[size] = round((time.perf_counter() - start) / size * 1e6, 2)
    rounds.append(costs)
print("sweep", json.dumps([chosen, rounds]))
"""


@pytest.mark.nightly  # a comparison of times: quiet machines only
@pytest.mark.serial
def test_a_real_model_lands_within_5_percent_of_a_hand_sweep(tmp_path: Path) -> None:
    """Fails where, with 95 % of confidence, another size is more than 5 % faster."""
    process = start(python(SWEEP, export_images(tmp_path), ROUNDS))
    try:
        chosen, rounds = json.loads(process.expect(r"^sweep (.*)$", 60)[1])
    finally:
        process.stop()
    for size in map(str, SIZES):
        ratios = sorted(costs[str(chosen)] / costs[size] for costs in rounds)
        assert ratios[LOWER] <= 1.05, f"{size} is faster than {chosen}: {ratios}"


def export_images(folder: Path) -> Path:
    """A small convolutional network for 32 x 32 images, written as a Paddle model."""
    paddle: Any = import_paddle()
    paddle.seed(5)
    network = paddle.nn.Sequential(
        paddle.nn.Conv2D(3, 16, 3, padding=1),
        paddle.nn.ReLU(),
        paddle.nn.Conv2D(16, 32, 3, stride=2),
        paddle.nn.ReLU(),
        paddle.nn.Flatten(),
        paddle.nn.Linear(32 * 15 * 15, 10),
    )
    network.eval()
    spec = paddle.static.InputSpec([None, 3, 32, 32], "float32", "image")
    paddle.jit.save(network, str(folder / "images"), input_spec=[spec])
    return folder / "images"
