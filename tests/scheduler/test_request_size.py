"""The size of requests is the least that gives the teacher's rate, within bounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler import request_size
from edl.scheduler.request_size import SizeConfig

few = settings(max_examples=max(5, settings().max_examples // 8))


class Teacher:
    """A device that takes `overhead_s` for a request and `row_s` for each row of it."""

    def __init__(
        self, config: SizeConfig, first: int, overhead_s: float, row_s: float, seed: int = 0
    ) -> None:
        self.config, self.overhead_s, self.row_s = config, overhead_s, row_s
        self.rng, self.now = random.Random(seed), 0.0
        self.size = request_size.start(first, config, 0.0)
        self.most_waiting = 10**6
        self.noise = 0.0
        self.largest = 0

    @property
    def rows(self) -> int:
        return request_size.rows(self.size, self.config)

    def cost(self, rows: int) -> float:
        return self.row_s + self.overhead_s / rows

    def run(self, requests: int) -> None:
        for _ in range(requests):
            asked = self.rows
            self.largest = max(self.largest, asked)
            used = min(asked, self.most_waiting)
            device_s = self.cost(used) * used * self.rng.lognormvariate(0.0, self.noise)
            self.now += device_s
            self.size = request_size.answered(
                self.size, asked, used, device_s, self.now, self.config
            )

    @property
    def taken(self) -> int:
        return self.config.rule.ladder[self.size.climb.step]


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(1, 300),
    overhead_s=st.sampled_from([0.0, 0.002, 0.02]),
    noise=st.sampled_from([0.0, 0.05]),
)
def test_the_rate_comes_near_the_best(
    seed: int, first: int, overhead_s: float, noise: float
) -> None:
    teacher = Teacher(SizeConfig(most_rows=500), first, overhead_s, 0.0005, seed)
    teacher.noise = noise
    teacher.run(4000)
    best = min(teacher.cost(rows) for rows in teacher.config.rule.ladder)
    assert teacher.cost(teacher.taken) <= 1.25 * best


def test_the_model_says_what_is_the_most() -> None:
    teacher = Teacher(SizeConfig(most_rows=48), 32, overhead_s=0.1, row_s=0.0001)
    assert teacher.config.rule.ladder == (1, 2, 4, 8, 16, 32, 48)
    teacher.run(2000)
    assert teacher.taken == teacher.largest == 48
    assert Teacher(SizeConfig(most_rows=1), 32, 0.1, 0.001).rows == 1
    assert SizeConfig().rule.ladder[-1] == 1024


def test_no_request_keeps_a_device_for_long() -> None:
    teacher = Teacher(SizeConfig(longest_s=0.5), 8, overhead_s=0.05, row_s=0.01)
    teacher.run(2000)
    assert teacher.taken * teacher.cost(teacher.taken) <= 0.5
    assert teacher.taken >= 16


def test_one_that_becomes_slow_gets_smaller_requests() -> None:
    teacher = Teacher(SizeConfig(), 64, overhead_s=0.1, row_s=0.0001)
    teacher.run(1000)
    assert teacher.taken >= 256
    teacher.row_s = 0.02
    teacher.run(400)
    assert teacher.taken <= 32


def test_a_size_that_is_never_filled_is_given_up() -> None:
    teacher = Teacher(SizeConfig(), 32, overhead_s=0.1, row_s=0.0001)
    teacher.most_waiting = 32
    teacher.run(2000)
    assert teacher.taken == 32
    assert teacher.largest == 64


@pytest.mark.parametrize(("most_rows", "longest_s"), [(0, 1.0), (8, 0.0)])
def test_bounds_are_checked(most_rows: int, longest_s: float) -> None:
    with pytest.raises(ValueError, match="row"):
        SizeConfig(most_rows, longest_s)
