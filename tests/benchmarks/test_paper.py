"""The papers' experiments: their cells, how they are judged, the page made of the results."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from edl.benchmarks.cli import experiments
from edl.benchmarks.paper import figure3, page, table2
from edl.benchmarks.paper.experiment import Cell, ExpectedOrder, Experiment, Key, Outcome, Use
from edl.benchmarks.paper.tables import (
    ReproductionReport,
    compare,
    compare_order,
    crossings,
    published,
)
from edl.cli import command_line
from edl.runtime.errors import UsageError
from edl.tests.benchmarks.test_report import shown
from edl.tests.cli_output import run

EDL = command_line("bench")
CELL = Cell("r", "c", 1, "x", "free", "here")


def two_lines(*, use: Use = "free", b_last: float = 10) -> Experiment:
    """Two columns that cross between the second row and the third."""
    figures = {"A": (10.0, 20.0, 30.0), "B": (20.0, 21.0, b_last)}
    cells = [
        Cell(f"r{i}", column, value, "img/s", "free" if i < 2 else use, "here")
        for column, line in figures.items()
        for i, value in enumerate(line)
    ]
    return experiment(*cells, ranked=("A", "B"))


def experiment(*cells: Cell, **more: Any) -> Experiment:
    return Experiment("x", "X", "s", "s", "c", cells, **more)


def values(of: Experiment, **changed: float) -> dict[Key, float]:
    """The paper's own figures, some of them multiplied: `r1_A=1.05`."""
    return {cell.key: cell.value * changed.get(f"{cell.row}_{cell.column}", 1) for cell in of.cells}


def failed(report: ReproductionReport) -> list[str]:
    return [goal.name for goal in report.goals if not goal.holds]


def test_matching_figures_hold_and_each_goal_can_fail() -> None:
    about = two_lines()
    assert failed(compare(about, Outcome(values(about)))) == []
    (worst,) = failed(compare(about, Outcome(values(about, r0_A=1.2))))
    assert worst.startswith("worst error of 6 judged cells, in % (A, r0)")
    swapped = values(about, r1_A=1.04, r1_B=0.98)  # now A leads at r1
    names = failed(compare(about, Outcome(swapped)))
    assert [name.split()[0] for name in names] == ["pairs", "crossings"]
    assert "B at r1 is not more than A at r1" in names[0]


@pytest.mark.parametrize("use", ["calibrates", "contested"])
def test_a_calibrated_or_contested_cell_is_not_judged(use: Use) -> None:
    about = two_lines(use=use)
    report = compare(about, Outcome(values(about, r2_A=1.5)))
    assert failed(report) == []
    assert [row["error_percent"] for row in report.rows][2] == pytest.approx(50)
    few = experiment(*about.cells, min_free_cells=5)
    assert failed(compare(few, Outcome(values(about)))) == ["free cells"]


def test_crossings_name_both_lines_and_the_place_but_ties_may_be_in_any_order() -> None:
    about = two_lines()
    assert crossings(about, published(about)) == [("A", "B", "r1", "r2")]
    about = two_lines(b_last=30.5)
    assert crossings(about, published(about)) == []
    assert compare_order(about, values(about, r2_B=0.95))[0] == []


def test_a_statement_of_order_is_judged() -> None:
    order = ExpectedOrder((("a", "rate"), ("b", "rate"), ("c", "rate")), "here")
    about = experiment(CELL, orders=(order,), min_free_cells=1)
    good = {CELL.key: 1.0, ("a", "rate"): 3.0, ("b", "rate"): 2.0, ("c", "rate"): 1.0}
    assert failed(compare(about, Outcome(good))) == []
    (name,) = failed(compare(about, Outcome({**good, ("c", "rate"): 2.0})))
    assert name.startswith("pairs in another order than the paper's, of 2: ")
    assert name.endswith(": rate at b is not more than rate at c")


def test_figure_3_compares_online_with_5_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure3, "rate_on_mesh", lambda mesh, batches: float(mesh.teachers))
    monkeypatch.setattr(figure3, "rate_alone", lambda *_, **__: 2.0)
    monkeypatch.setattr(figure3, "teachers_wanted", lambda *_, **__: 8)
    values = figure3.simulate(quick=True).values
    assert values["best", "number of teachers"] == 8.0
    for column in ("throughput / Online", "Online's time / its time"):
        assert values["5 teachers", column] == 2.5


def test_what_is_no_experiment_or_no_agreement_is_refused() -> None:
    about = two_lines()
    for ours in ({}, {**values(about), ("r0", "A"): float("nan")}):
        with pytest.raises(ValueError, match=r"no figure of ours for .*'r0', 'A'"):
            compare(about, Outcome(ours))
    with pytest.raises(ValueError, match="same row and column"):
        experiment(CELL, CELL)
    with pytest.raises(ValueError, match="without a cell"):
        experiment(CELL, ranked=("d",))
    with pytest.raises(ValueError, match="above 0"):
        Cell("r", "c", -1, "x", "free", "here")


@pytest.mark.parametrize("name", experiments())
def test_kept_results_are_of_the_current_experiment(name: str) -> None:
    kept = json.loads((page.RESULTS / f"paper-{name}.json").read_text())
    about = importlib.import_module(f"edl.benchmarks.paper.{name}").EXPERIMENT
    ours = {(row["row"], row["column"]): row["ours"] for row in kept["rows"]}
    cells = compare(Experiment(name, "t", "s", "s", "c", about.cells), Outcome(ours)).to_json()
    for row, now in zip(kept["rows"], cells["rows"], strict=True):
        assert {**row, "error_percent": 0} == {**now, "error_percent": 0}
    reasons = [one.because for one in about.contradictions]
    assert [one["because"] for one in kept["contradictions"]] == reasons
    assert (kept["title"], kept["calibration"]) == (about.title, about.calibration)
    assert all(goal["holds"] for goal in kept["goals"])
    assert (page.RESULTS / f"paper-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_made_of_the_kept_results() -> None:
    assert page.PAGE.read_text("utf-8") == page.markdown(page.documents())


@pytest.mark.parametrize("width", [150, 45])
def test_a_report_and_its_page_show_the_papers_figures_beside_ours(width: int) -> None:
    about = two_lines(use="calibrates")
    report = compare(about, Outcome(values(about, r0_A=1.2), {"speed": 2.0}, notes=("N",)))
    for words in ("10  12  +20.0 %", "30  30  +0.0 % *", "speed: 2", "A passes B", "Note: N"):
        assert words in shown(report, width)
    text = page.markdown([{**report.to_json(), "path": "paper-x"}])
    assert "| [X](#x) | 6 | 4 | 20.0 % | 0 | **no** |" in text
    assert "| r0 | 10, 12, +20.0 % | 20, 20, +0.0 % |" in text
    assert "(<= 10): **does not hold**." in text


def test_a_table_with_many_gaps_has_a_line_for_each_cell() -> None:
    about = experiment(*(Cell(f"r{i}", f"c{i}", 1, "x", "free", "here") for i in range(3)))
    report = compare(about, Outcome(values(about)))
    assert "│ r2 │ c2 │ x    │ 1  1  +0.0 %" in shown(report)
    assert "| r2 | c2, times | 1, 1, +0.0 % |" in page.markdown([{**report.to_json(), "path": "p"}])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper.table2"], "--simulate .* or with --measure"),
        (["paper.table2", "--simulate", "--measure"], "choose one of the two"),
        (["paper.table2", "--measure"], "run it with --simulate"),
        (["paper.nope", "--simulate"], r"no benchmark 'paper.nope'; .*paper\.table1"),
        (["ledger", "--simulate"], "'ledger' has no --simulate"),
        (
            ["paper.table2", "--simulate", "--set", "teachers=12"],
            "has no --set teachers=; it has: --device, --measure, --simulate",
        ),
    ],
)
def test_options_that_cannot_be_combined_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(EDL, "bench", *arguments)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1)])
def test_a_check_fails_when_a_cell_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float, code: int
) -> None:
    ours = {key: value * factor for key, value in values(table2.EXPERIMENT).items()}
    monkeypatch.setattr(table2, "simulate", lambda quick: Outcome(ours))
    file = tmp_path / "figures.json"
    asked = ("paper.table2", "--simulate", "--check", "--json", file)
    assert run(EDL, "bench", *asked).exit_code == code
    written = json.loads(file.read_text())
    assert (written["name"], written["how"]) == ("table2", "simulated")
    assert "machine" not in written
