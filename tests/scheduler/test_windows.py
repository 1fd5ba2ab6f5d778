"""Windows grow until a teacher is just busy, and no further."""

from __future__ import annotations

import random
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler import windows
from edl.scheduler.windows import WindowConfig

CONFIG = WindowConfig()
few = settings(max_examples=max(5, settings().max_examples // 8))


class Teacher:
    """`slots` devices, and a travel of `travel_s` there and back; it always has a full window."""

    def __init__(self, device_s: float, travel_s: float, slots: int = 1, noise: float = 0.0):
        self.device_s, self.travel_s, self.slots, self.noise = device_s, travel_s, slots, noise
        self.rng, self.now = random.Random(0), 0.0
        self.window = windows.start(CONFIG, 0.0)
        self.tells = self.full = True
        self.widest = 2

    @property
    def size(self) -> int:
        return windows.size(self.window, CONFIG)

    def rate(self, window: int) -> float:
        return min(self.slots / self.device_s, window / (self.device_s + self.travel_s))

    def run(self, answers: int) -> None:
        for _ in range(answers):
            gap_s = self.rng.lognormvariate(0.0, self.noise) / self.rate(self.size)
            device_s = self.device_s if self.tells else -1.0
            self.now += gap_s
            self.window = windows.answered(
                self.window, 32, gap_s, device_s, self.full, self.now, CONFIG
            )
            self.widest = max(self.widest, self.size)


@pytest.mark.parametrize("travel_s", [0.001, 0.05, 0.1])
def test_two_are_enough_where_the_travel_is_hidden(travel_s: float) -> None:
    teacher = Teacher(0.1, travel_s)
    teacher.run(2000)
    assert teacher.widest == 2, "a busy device needs no trials"


@few
@given(
    device_s=st.sampled_from([0.002, 0.01, 0.1]),
    ratio=st.floats(1.1, 6.5),
    slots=st.sampled_from([1, 2]),
    tells=st.booleans(),
)
def test_it_grows_until_the_travel_is_hidden(
    device_s: float, ratio: float, slots: int, tells: bool
) -> None:
    teacher = Teacher(device_s, ratio * device_s, slots)
    teacher.tells = tells
    teacher.run(3000)
    needed = min(max(ceil(slots * (1 + ratio) - 1e-9), 2), CONFIG.most)
    assert teacher.rate(teacher.window.climb.step + 2) >= 0.95 * teacher.rate(needed)
    assert teacher.window.climb.step + 2 <= needed


def test_several_devices_behind_one_address_are_all_kept_busy() -> None:
    teacher = Teacher(0.1, 0.01, slots=4)
    teacher.run(2000)
    assert teacher.window.climb.step + 2 == 5


def test_it_shrinks_when_the_travel_is_shorter() -> None:
    teacher = Teacher(0.01, 0.05)
    teacher.run(2000)
    assert teacher.window.climb.step + 2 == 6
    teacher.travel_s = 0.001
    teacher.run(20000)
    assert teacher.window.climb.step + 2 == 2


@few
@given(seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.05, 0.2]))
def test_noise_does_not_widen_it_for_nothing(seed: int, noise: float) -> None:
    teacher = Teacher(0.1, 0.01, noise=noise)
    teacher.rng.seed(seed)
    teacher.run(3000)
    assert teacher.window.climb.step + 2 <= 3


def test_a_window_that_is_not_full_says_nothing() -> None:
    teacher = Teacher(0.01, 0.1)
    teacher.full = False
    teacher.run(500)
    assert teacher.widest == 2


def test_pinned_it_stays() -> None:
    pinned = WindowConfig(2, 2)
    window = windows.start(pinned, 0.0)
    for answer in range(1000):
        window = windows.answered(window, 32, 0.1, 0.01, True, answer * 0.1, pinned)
        assert windows.size(window, pinned) == 2
    with pytest.raises(ValueError, match="least"):
        WindowConfig(3, 2)
