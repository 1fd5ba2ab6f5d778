"""`edl bench checkpoint`: both ways save the same, and the table has the figures it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.benchmarks import checkpoint
from edl.student.checkpoint import Repository, SnapshotOwner, SnapshotWriter, open_checkpoint
from edl.student.checkpoint.capture import capture
from edl.teacher.backends.paddle_runtime import import_paddle


@pytest.fixture(scope="module")
def paddle() -> Any:
    return import_paddle()


def test_both_ways_save_the_same(paddle: Any, tmp_path: Path) -> None:
    contents = capture(checkpoint._trained(paddle, 2, 8), step=1, world=1, state={})
    saved = open_checkpoint(Repository(str(tmp_path)).save(contents).location)
    with SnapshotOwner() as owner, SnapshotWriter(owner.keys) as writer:
        writer.write(contents)
        copied = open_checkpoint(owner.location)
    assert saved.state == copied.state
    assert saved.tensors.keys() == copied.tensors.keys()
    assert sum(name.startswith("optimizer/") for name in saved.tensors) == 4
    for name, array in saved.tensors.items():
        np.testing.assert_array_equal(array, copied.tensors[name])


@pytest.mark.nightly
def test_a_quick_run_fills_the_table(paddle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkpoint.NETWORKS, "small", (2, 64))
    report = checkpoint.run(quick=True)
    (row,) = report.rows
    assert row["network"] == "small"
    assert float(row["blocking_ms"]) > 0
    assert float(row["synchronous_ms"]) > 0
    assert 0 < float(row["low"]) <= float(row["share_percent"]) <= float(row["high"])
    (goal,) = report.goals
    assert (goal.op, goal.limit) == ("<=", 20.0)
    assert goal.value == row["share_percent"]
