"""Ranks of unequal speed share the rows in proportion; epochs end cleanly whatever their size."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

import pytest

from edl.student.words import Finished
from edl.tests.student.id_log import assert_each_once, lines
from edl.tests.student.rank.world import World, settings

pytestmark = pytest.mark.system

ROWS, BATCH = 896, 28
ROW_S = 0.004
#: With equal shares a step takes 9 x 3 rows' time, in proportion 12.
GAIN = 1.5
#: Between these steps shares are found, and nobody is out of rows.
STEADY = (17, 30)


def rows_per_s(folder: Path, first: int, last: int) -> float:
    """Of all ranks together, from behind step `first` to behind step `last`."""
    steps = {line["step"]: line for line in lines(folder) if line["rank"] == 0}
    rows = sum(steps[step]["total"] for step in range(first + 1, last + 1))
    return float(rows / (steps[last]["at_s"] - steps[first]["at_s"]))


@pytest.mark.serial
def test_a_rank_three_times_slower_does_not_hold_up_the_others(tmp_path: Path) -> None:
    slow = {
        "EDL_TEST_ROWS": str(ROWS),
        "EDL_TEST_BATCH": str(BATCH),
        "EDL_TEST_ROW_S": str(ROW_S),
        "EDL_TEST_SLOW": "2:3",
    }
    rates: dict[str, float] = {}
    for deal in ("static", "dynamic"):
        folder = tmp_path / deal
        job = settings(epochs=1, deal=deal, id_log=str(folder))
        with World(job, 3, environment=slow) as world:
            assert world.ended() == {0: 0, 1: 0, 2: 0}
        rates[deal] = rows_per_s(folder, *STEADY)
        assert_each_once(folder, [ROWS])
    rows = [line["rows"] for line in lines(tmp_path / "dynamic") if line["rank"] == 2]
    assert median(rows[slice(*STEADY)]) == pytest.approx(BATCH / 7, abs=1)
    assert all(line["rows"] <= 10 for line in lines(tmp_path / "static"))
    assert rates["dynamic"] >= GAIN * rates["static"], rates


def test_a_hundred_epochs_of_random_sizes_end_cleanly(tmp_path: Path, rng: random.Random) -> None:
    sizes = [rng.randrange(1, 130) for _ in range(100)]
    job = settings(epochs=len(sizes), total_batch=13, id_log=str(tmp_path), shard_rows=3)
    told = {"EDL_TEST_SIZES": ",".join(map(str, sizes))}
    with World(job, 3, environment=told) as world:
        assert world.ended() == {0: 0, 1: 0, 2: 0}
        assert len(world.said(Finished)) == 3
    assert_each_once(tmp_path, sizes)
