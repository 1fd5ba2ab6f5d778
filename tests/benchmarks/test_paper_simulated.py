"""The simulated experiments of the papers: their figures, curves and pictures."""

from __future__ import annotations

import csv
import importlib
import io
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edl.benchmarks.cli import experiments
from edl.benchmarks.paper import __main__ as tables_command
from edl.benchmarks.paper import (
    controller_replay,
    edl_controller,
    elasticdl,
    fault_tolerance,
    page,
    picture,
    simulations,
    table2,
)
from edl.benchmarks.paper.experiment import Outcome
from edl.benchmarks.paper.picture import Panel, draw_panels
from edl.benchmarks.paper.tables import ReproductionReport, compare, run_simulation
from edl.runtime.errors import UsageError
from edl.tests.waiting import DEADLINE_S

pytestmark = pytest.mark.system

PUBLISHED = {cell.key: cell.value for cell in table2.EXPERIMENT.cells}


@cache
def simulated(module: ModuleType) -> ReproductionReport:
    return run_simulation(module, quick=True)


def kept(name: str) -> Any:
    return json.loads((page.RESULTS / f"paper-{name}.json").read_text())


@pytest.mark.parametrize("name", sorted({*experiments()} - {"fault_tolerance"}))
def test_the_simulations_agree_with_the_paper_and_with_what_is_kept(name: str) -> None:
    report = simulated(importlib.import_module(f"edl.benchmarks.paper.{name}"))
    assert [goal.name for goal in report.goals if not goal.holds] == []
    for row, before in zip(report.rows, kept(name)["rows"], strict=True):
        assert row["ours"] == pytest.approx(before["ours"], rel=0.05), row


@pytest.mark.parametrize("failures", [1e-4, 0.2, 1.0, 5.0])
@pytest.mark.parametrize("lower", [0.1, fault_tolerance.REDUCTION, 0.9])
def test_the_recoverable_share_gives_the_reduction_back(failures: float, lower: float) -> None:
    share = fault_tolerance.recoverable(failures, lower)
    assert 0 < share < 1
    assert fault_tolerance.reduction(failures, share) == pytest.approx(lower)
    assert fault_tolerance.reduction(failures, 0.0) == 0
    assert fault_tolerance.reduction(failures, 1.0) == pytest.approx(1)
    if failures < 0.01:
        assert share == pytest.approx(lower, abs=1e-4)


def test_fewer_jobs_fail_with_fail_over() -> None:
    report = run_simulation(fault_tolerance, quick=True)
    assert report.holds
    model = kept("fault_tolerance")["model"]
    expected = 100 * fault_tolerance.reduction(
        fault_tolerance.FAILURES, model["share of them that must be recoverable, %"] / 100
    )
    assert expected == pytest.approx(34.49, abs=0.01)
    assert model["failed without fail-over, %"] == pytest.approx(18.1, abs=1.5)


@pytest.mark.parametrize("module", [edl_controller, elasticdl])
def test_curves_are_kept_and_drawn(module: ModuleType, tmp_path: Path) -> None:
    document = simulated(module).to_json()
    assert json.loads(json.dumps(document)) == kept(document["name"])
    for ending, text in module.files(document).items():
        assert (page.RESULTS / f"paper-{document['name']}-{ending}").read_text() == text
        rows = list(csv.DictReader(io.StringIO(text)))
        assert len(rows) > 100
        assert all(value is not None for row in rows for value in map(float, row.values()))
    module.draw(document, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_more_jobs_than_the_slots_hold_all_get_a_node_on_a_live_fleet() -> None:
    """Six fill its slots; the seventh and eighth start as others give one of their nodes."""
    found = controller_replay.replay("elastic", 8, 0.05, DEADLINE_S, until_trained=True)
    assert found.trained == 8
    assert 0 < found.load <= 1


def test_as_many_teachers_as_students_can_share() -> None:
    with pytest.raises(ValueError, match="cannot be shared equally"):
        simulations.rate_on_mesh(simulations.Mesh(0.01, 0.02, 5, batch=32, students=2), batches=10)


def test_all_tables_are_made_into_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table2, "simulate", lambda quick: Outcome(PUBLISHED))
    file = tmp_path / "page.md"
    tables_command.main(["table2"], tmp_path, file, page_only=False)
    assert (tmp_path / "paper-table2.png").read_bytes().startswith(b"\x89PNG")
    assert "Table 2" in file.read_text()
    (tmp_path / "paper-table2.json").unlink()
    tables_command.main(None, tmp_path, file, page_only=True)
    assert "Table 2" not in file.read_text()
    with pytest.raises(UsageError, match="no experiment 'nope'"):
        tables_command.main(["nope"], tmp_path, file, page_only=False)


def test_a_picture_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "no" / "x.png"
    report = compare(table2.EXPERIMENT, Outcome(PUBLISHED))
    with pytest.raises(UsageError, match="cannot write"):
        picture.draw(report.to_json(), file)
    panel = Panel("t", "l", [0.0, 1.0], {"one": [1.0, 2.0]})
    with pytest.raises(UsageError, match="cannot write"):
        draw_panels([panel], simulated(edl_controller).to_json(), file)
