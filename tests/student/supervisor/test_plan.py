"""`--dry-run`: what would be done, and with how many nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.student.supervisor.plan import plan
from edl.tests.student.rank.world import settings

pytestmark = pytest.mark.system


def test_the_plan_names_the_rows_of_a_rank_at_both_limits(tmp_path: Path) -> None:
    several = {"coordinator": "redis://127.0.0.1:1", "checkpoint": str(tmp_path)}
    told = "\n".join(
        plan(settings(epochs=2, nodes=(1, 8), ranks_per_node=2, total_batch=7, **several))
    )
    assert "96 samples an epoch in 14 steps of 7 rows" in told
    assert "28 steps in all" in told
    assert "with 1 node: 2 ranks of about 4 rows" in told
    assert "with 3 nodes: 6 ranks of about 2 rows" in told
    assert "more than 3 nodes: in reserve, as a step has 7 rows" in told
    assert "training begins from the beginning" in told
    assert not list(tmp_path.iterdir())
