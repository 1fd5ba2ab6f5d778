"""`edl bench students`: both worlds train the same job, and the table has the figures it names."""

from __future__ import annotations

import pytest

from edl.benchmarks import students


@pytest.mark.nightly
@pytest.mark.serial
def test_a_quick_run_fills_the_table() -> None:
    report = students.run(quick=True)
    by_speed, equal = report.rows
    assert equal["rows_of_ranks"] == "19 19 18"
    of_ranks = [int(rows) for rows in str(by_speed["rows_of_ranks"]).split()]
    assert sum(of_ranks) == 56
    assert of_ranks[2] < min(of_ranks[:2])
    for row in report.rows:
        assert 0 < float(row["low"]) <= float(row["samples_per_s"]) <= float(row["high"])
    (goal,) = report.goals
    assert (goal.op, goal.limit) == (">=", 1.5)
    assert goal.value > 1
