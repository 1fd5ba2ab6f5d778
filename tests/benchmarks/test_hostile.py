"""The hostile run: each attack is made, and the good client is answered meanwhile."""

from __future__ import annotations

import shutil

import pytest

from edl.benchmarks.hostile import run

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]


def test_a_few_seconds() -> None:
    report = run(quick=True, seconds=3.0)
    assert [row["phase"] for row in report.rows] == ["alone", "attacked"]
    assert [row["failures"] for row in report.rows] == [0, 0]
    exact = {goal.name: goal.value for goal in report.goals if goal.op == "=="}
    assert exact == {"requests without an answer": 0, "kinds of attack that were not made": 0}
