"""The emulated accelerator in virtual time: answers, rate, mark."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.runtime.errors import ModelError, UsageError
from edl.teacher.backends.paced import PacedBackend, mark_emulated
from edl.teacher.backends.selection import open_backend
from edl.teacher.config import Device, PredictorConfig, TeacherConfig
from edl.tests.teacher.fakes import SPEC, FakeBackend, array


class Clock:
    """Time that passes by sleeping, by being looked at, and when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now_s += seconds * 1.0005  # as late as sleepers are


def paced(clock: Clock, rate: float, backend: FakeBackend | None = None) -> PacedBackend:
    return PacedBackend(backend or FakeBackend(), rate, clock=clock, sleep=clock.sleep)


def test_waiting_jobs_begin_when_the_device_is_free() -> None:
    clock = Clock()
    device = paced(clock, 1000.0)
    began_s = clock.now_s
    for _ in range(50):
        device.arrive(began_s)
        device.run({"x": array(8, 4)})
        clock.now_s += 0.002  # labels are given out
    assert clock.now_s - began_s == pytest.approx(50 * 8 / 1000 + 0.002, rel=1e-3)
    device.arrive(clock.now_s + 0.1)
    clock.now_s += 0.1
    device.run({"x": array(8, 4)})
    assert clock.now_s - began_s == pytest.approx(51 * 8 / 1000 + 0.102, rel=1e-3)


def test_idle_time_and_longer_runs_are_not_made_up() -> None:
    clock, backend = Clock(), FakeBackend()
    device, quick = paced(clock, 1000.0, backend), backend.function
    began_s = clock.now_s
    for _ in range(10):
        device.run({"x": array(8, 4)})
    clock.now_s += 0.5
    for _ in range(10):
        device.run({"x": array(8, 4)})
    assert clock.now_s - began_s == pytest.approx(20 * 8 / 1000 + 0.5, rel=1e-3)

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        clock.now_s += 1.0
        return quick(inputs)

    backend.function = slow
    device.run({"x": array(8, 4)})
    backend.function = quick
    began_s = clock.now_s
    device.run({"x": array(8, 4)})
    assert clock.now_s - began_s == pytest.approx(0.008, rel=1e-2)


def test_a_model_slower_than_the_rate_is_refused() -> None:
    clock = Clock()

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        clock.now_s += 0.02
        return {"sum": np.zeros(8), "double": np.zeros((8, 4))}

    with pytest.raises(ModelError, match=r"takes 20 ms for 8 samples, .* 1000 samples/s takes 8"):
        paced(clock, 1000.0, FakeBackend(slow))


def test_it_is_marked_as_emulated() -> None:
    spec = mark_emulated(SPEC)
    assert spec.platform == "emulated_fake"
    assert spec.numerics_id.startswith("emulated-paced-")
    assert spec.content_id == SPEC.content_id
    predictor = PredictorConfig("m", backend="paced", rate=1600.0)
    config = TeacherConfig("s", predictor, devices=(Device(), Device()))
    assert config.device_label == "emulated (1600 samples/s),emulated (1600 samples/s)"
    assert TeacherConfig("s", PredictorConfig("m")).device_label == "cpu"


def test_the_stand_in_gives_different_images_different_logits() -> None:
    backend = open_backend("edl.teacher.stand_in:images")
    images = np.random.default_rng(2).integers(0, 256, (8, 3, 224, 224), np.uint8)
    logits = backend.run({"image": images})["logits"]
    assert logits.shape == (8, 1000)
    assert len(np.unique(logits[:, 0])) == 8


@pytest.mark.parametrize(
    ("backend", "rate"),
    [("paced", None), ("auto", 5.0), ("onnx", 5.0), ("paced", 0.0), ("paced", float("inf"))],
)
def test_a_rate_is_for_emulated_devices(backend: str, rate: float | None) -> None:
    with pytest.raises(UsageError, match=r"an emulated device|rate=1600|more than 0 samples"):
        PredictorConfig("m", backend=backend, rate=rate)
