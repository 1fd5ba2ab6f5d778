"""The emulated accelerator in virtual time: answers, rate, label."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import ModelError, UsageError
from edl.proto.arena import Array
from edl.teacher.backends.paced import Paced, Schedule, labelled
from edl.teacher.config import PredictorConfig, TeacherConfig
from edl.teacher.devices import Device
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


def paced(clock: Clock, rate: float, backend: FakeBackend | None = None) -> Paced:
    return Paced(backend or FakeBackend(), rate, clock=clock, sleep=clock.sleep)


def test_runs_take_the_time_of_the_rate() -> None:
    clock = Clock()
    device = paced(clock, 1000.0)
    began_s = clock.now_s
    for _ in range(50):
        device.run({"x": array(8, 4)})
    assert clock.now_s - began_s == pytest.approx(50 * 8 / 1000, rel=1e-3)


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


def test_idle_time_is_not_made_up() -> None:
    clock = Clock()
    device = paced(clock, 1000.0)
    began_s = clock.now_s
    for _ in range(10):
        device.run({"x": array(8, 4)})
    clock.now_s += 0.5
    for _ in range(10):
        device.run({"x": array(8, 4)})
    assert clock.now_s - began_s == pytest.approx(20 * 8 / 1000 + 0.5, rel=1e-3)


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 4096)), min_size=1, max_size=30),
)
def test_a_device_does_one_run_at_a_time(rate: float, runs: list[tuple[float, int]]) -> None:
    schedule, now_s, free_at_s = Schedule(rate), 0.0, 0.0
    for pause_s, rows in runs:
        now_s += pause_s
        end_s = schedule.end_s(now_s, rows)
        assert end_s == max(now_s, free_at_s) + rows / rate
        free_at_s = end_s


@given(st.floats(10, 1e5), st.integers(1, 200), st.integers(1, 512))
def test_waiting_jobs_follow_without_a_pause(rate: float, runs: int, rows: int) -> None:
    schedule = Schedule(rate)
    ends = [schedule.end_s(5.0, rows) for _ in range(runs)]
    assert ends[-1] == pytest.approx(5.0 + runs * rows / rate)


def test_a_longer_run_is_not_made_up() -> None:
    clock = Clock()
    backend = FakeBackend()
    device = paced(clock, 1000.0, backend)
    quick = backend.function

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        clock.now_s += 1.0
        return quick(inputs)

    backend.function = slow
    device.run({"x": array(8, 4)})
    backend.function = quick
    began_s = clock.now_s
    device.run({"x": array(8, 4)})
    assert clock.now_s - began_s == pytest.approx(0.008, rel=1e-2)


def test_the_answers_are_those_of_the_model() -> None:
    x = array(8, 4)
    answer = paced(Clock(), 1000.0).run({"x": x})
    np.testing.assert_array_equal(answer["double"], x * 2)


def test_a_model_slower_than_the_rate_is_refused() -> None:
    clock = Clock()

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        clock.now_s += 0.02
        return {"sum": np.zeros(8), "double": np.zeros((8, 4))}

    with pytest.raises(ModelError, match=r"takes 20 ms for 8 samples, .* 1000 samples/s takes 8"):
        paced(clock, 1000.0, FakeBackend(slow))


def test_it_is_labelled_as_emulated() -> None:
    spec = labelled(SPEC)
    assert spec.platform == "emulated_fake"
    assert spec.numerics_id.startswith("emulated-paced-")
    assert spec.content_id == SPEC.content_id
    predictor = PredictorConfig("m", backend="paced", rate=1600.0)
    config = TeacherConfig("s", predictor, devices=(Device(), Device()))
    assert config.device_label == "emulated (1600 samples/s),emulated (1600 samples/s)"
    assert TeacherConfig("s", PredictorConfig("m")).device_label == "cpu"


@pytest.mark.parametrize(
    ("backend", "rate"),
    [("paced", None), ("auto", 5.0), ("onnx", 5.0), ("paced", 0.0), ("paced", float("inf"))],
)
def test_a_rate_is_for_emulated_devices(backend: str, rate: float | None) -> None:
    with pytest.raises(UsageError, match=r"an emulated device|by --rate|more than 0 samples"):
        PredictorConfig("m", backend=backend, rate=rate)
