"""`edl bench simulator`, with meshes that take a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.benchmarks import simulator


def test_it_judges_speed_agreement_and_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = replace(simulator.BOTH[1], duration_s=60.0)
    monkeypatch.setattr(simulator, "EXACT", replace(simulator.EXACT, batches=20))
    monkeypatch.setattr(
        simulator,
        "FLUID",
        replace(
            simulator.FLUID,
            duration_s=70.0,
            students=(replace(simulator.FLUID.students[0], count=5),),
            teachers=(replace(simulator.FLUID.teachers[0], count=40),),
        ),
    )
    monkeypatch.setattr(simulator, "BOTH", (plenty,))

    report = simulator.run(quick=False)

    assert report.holds
    assert [row["plane"] for row in report.rows] == ["exact", "fluid", "exact", "fluid"]
    assert report.rows[0]["batches"] == 160
    names = [goal.name for goal in report.goals]
    assert len([name for name in names if name.startswith("CPU seconds")]) == 2
    assert f"error of the fluid, {plenty.name}" in names
    assert report.goals[-1].value == 0
