"""`edl bench elastic`: its service answers, its times are counted, its training has a pace."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from edl.benchmarks import elastic
from edl.benchmarks.children import Child
from edl.benchmarks.report import MIN_ROUNDS
from edl.benchmarks.sharing.load import ask
from edl.supervise import python_command, start


def test_the_service_is_asked_and_each_request_has_its_time() -> None:
    web = start(python_command("web", "edl.benchmarks.sharing.web"))
    try:
        port = int(web.expect(r"port (\d+)", 60)[1])
        times = ask(port, 100.0, 10)
        assert len(times) == 10
        assert all(0 < took < 10_000 for took in times)
        many = 1000  # more than the longest line of an output holds
        with ExitStack() as ending:
            load = Child(ending, "load", "edl.benchmarks.sharing.load", port, 10_000.0, many)
            assert len(load.hear()["times_ms"]) == many
    finally:
        assert web.stop() == 0


def test_p99_is_what_one_of_a_hundred_is_above(rng: random.Random) -> None:
    times = [float(n) for n in range(1, 101)]
    rng.shuffle(times)
    assert elastic.p99(times) == 99.0
    assert elastic.p99([5.0]) == 5.0


def test_a_service_that_became_slower_fails_its_goal(rng: random.Random) -> None:
    alone = [rng.uniform(5.0, 5.5) for _ in range(MIN_ROUNDS * 20)]
    slower = [1.5 * took for took in alone]
    assert elastic.Served(alone, alone, alone, 1.0).ratio.value == 1.0
    ratio = elastic.Served(alone, slower, slower, 1.0).ratio
    assert ratio.low == pytest.approx(1.5)


@pytest.mark.parametrize(("shorter", "holds"), [(0.80, True), (0.90, False)])
def test_the_goals_are_those_that_are_stated(shorter: float, holds: bool) -> None:
    gang = elastic.Ran(100.0, 30.0)
    served = elastic.Served([5.0] * 300, [9.0] * 300, [5.1] * 300, 4.0)
    report = elastic.report(gang, elastic.Ran(100.0 * shorter, 1.0), served)
    assert report.holds == holds
    assert {goal.name: goal.holds for goal in report.goals} == {
        "makespan, elastic / gang": holds,
        "mean pending, elastic / gang": True,
        "s until the slot is back": True,
        "service p99, slot back / alone": True,
    }
