"""`edl bench store`: its rows can be read, and its goal can fail."""

from __future__ import annotations

import pytest

from edl.benchmarks import store


def test_a_row_for_each_way_and_a_goal_for_each_form() -> None:
    report = store.run(quick=True)
    assert [row["by"] for row in report.rows[:3]] == [
        "keys_of (xxh3_128)",
        "hashlib.sha256",
        "hashlib.blake2b",
    ]
    kept = report.rows[3:]
    assert [row["by"] for row in kept] == ["Store", "SQLite alone", "LMDB"] * len(store.FORMS)
    assert all(float(row["read_us"]) > 0 for row in report.rows)
    for row, nbytes in zip(kept[::3], (4000, 2000, 84), strict=True):
        assert nbytes < float(row["disk_bytes"]) < 2.5 * nbytes
    assert len(report.goals) == len(store.FORMS)


def test_the_goal_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_US", 1e-3)
    monkeypatch.setattr(store, "FORMS", ("topk:20",))
    assert not store.run(quick=True).holds
