"""Finding the cheapest setting by trying neighbours, whatever the noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler import climbing
from edl.scheduler.climbing import Climb, ClimbRule

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RULE = ClimbRule(LADDER)
few = settings(max_examples=max(5, settings().max_examples // 8))


class Machine:
    """Something whose cost depends on a setting, measured once each 0.1 s."""

    def __init__(
        self, cost: Callable[[int], float], first: int, noise: float = 0.0, seed: int = 0
    ) -> None:
        self.cost, self.noise, self.rng = cost, noise, random.Random(seed)
        self.now, self.most = 0.0, LADDER[-1]
        self.climb = climbing.start(first, RULE, self.now)
        self.taken = [self.at]

    @property
    def at(self) -> int:
        """The setting that is taken, whatever is tried now."""
        return LADDER[self.climb.step]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            used = climbing.setting(self.climb, RULE)
            cost = self.cost(used) * self.rng.lognormvariate(0.0, self.noise)
            self.climb = climbing.measured(self.climb, used, cost, self.now, RULE, self.most)
            if self.at != self.taken[-1]:
                self.taken.append(self.at)


def device(overhead_s: float, row_s: float = 0.001) -> Callable[[int], float]:
    """Seconds per row of a device that spends `overhead_s` on each request besides."""
    return lambda rows: row_s + overhead_s / rows


def best(cost: Callable[[int], float]) -> float:
    return min(cost(setting) for setting in LADDER)


@pytest.mark.parametrize("first", [1, 16, 256])
@pytest.mark.parametrize("overhead_s", [0.0, 0.001, 0.01, 0.1])
def test_it_comes_near_the_best_from_anywhere(first: int, overhead_s: float) -> None:
    cost = device(overhead_s)
    machine = Machine(cost, first)
    machine.run(300.0)
    assert cost(machine.at) <= 1.12 * best(cost)


def test_of_equal_settings_it_goes_down_to_the_least() -> None:
    machine = Machine(device(0.0), 256)
    machine.run(120.0)
    assert machine.at == 1


def test_it_stops_at_a_cliff() -> None:
    """More than 32 rows do not fit into the device's memory at once."""
    machine = Machine(lambda rows: 0.001 + 0.01 / rows + (0.01 if rows > 32 else 0.0), 4)
    machine.run(300.0)
    assert machine.at == 32


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    noise=st.sampled_from([0.05, 0.1, 0.3]),
    first=st.sampled_from(LADDER),
    overhead_s=st.sampled_from([0.0, 0.003, 0.03]),
)
def test_it_is_stable_under_noise(seed: int, noise: float, first: int, overhead_s: float) -> None:
    cost = device(overhead_s)
    machine = Machine(cost, first, noise, seed)
    machine.run(300.0)
    assert cost(machine.at) <= (1.25 + 2 * noise) * best(cost)
    settled = len(machine.taken)
    machine.run(400.0)
    assert cost(machine.at) <= (1.25 + 2 * noise) * best(cost)
    assert len(machine.taken) - settled <= 12, "it wanders"


def test_what_changes_by_itself_is_looked_at_again() -> None:
    machine = Machine(device(0.0), 8)
    machine.run(2000.0)
    assert machine.climb.rest_s > 100
    assert machine.at == 1
    machine.cost = device(0.03)
    machine.run(100.0)
    assert machine.at >= 64


def test_a_machine_that_is_slowed_down_in_a_trial_is_not_taken_in() -> None:
    """Everything is twice as slow for a while: no setting is to blame."""
    machine = Machine(lambda rows: 0.001 * (2.0 if 3.0 < machine.now < 6.0 else 1.0), 1)
    machine.run(60.0)
    assert machine.at == 1


def test_a_trial_that_cannot_be_measured_is_given_up() -> None:
    climb = climbing.start(8, RULE, 0.0)
    for tick in range(RULE.samples):
        climb = climbing.measured(climb, 8, 1.0, tick * 0.1, RULE, 256)
    assert climbing.setting(climb, RULE) == 16
    climb = climbing.look(climb, 10.0, RULE)
    assert climbing.setting(climb, RULE) == 16
    climb = climbing.look(climb, 30.0, RULE)
    assert climbing.setting(climb, RULE) == 8


def test_nothing_above_the_most_is_tried_and_what_is_above_it_is_left() -> None:
    machine = Machine(device(1.0), 8)
    machine.most = 16
    machine.run(100.0)
    assert machine.at == 16
    machine.most = 3
    machine.run(100.0)
    assert machine.at == 2


def test_measurements_of_another_setting_say_nothing() -> None:
    climb = climbing.start(8, RULE, 0.0)
    for _ in range(100):
        climb = climbing.measured(climb, 4, 1.0, 1.0, RULE, 256)
    assert climb == Climb(step=LADDER.index(8))


@pytest.mark.parametrize("ladder", [(), (2, 1), (1, 1)])
def test_a_ladder_ascends(ladder: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ladder"):
        ClimbRule(ladder)


def test_with_a_single_step_there_is_nothing_to_try() -> None:
    rule = ClimbRule((2,))
    climb = climbing.start(2, rule, 0.0)
    for tick in range(1000):
        climb = climbing.measured(climb, 2, 1.0, tick * 1.0, rule, 2)
        assert climbing.setting(climb, rule) == 2
