"""Compares our figures with a paper's: errors of cells, their order, crossing lines."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ..report import BenchmarkReport, Goal, Row
from .experiment import Cell, Experiment, Key, Outcome

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: A crossing: the column that leads afterwards, the one that led before, and the two rows.
Crossing = tuple[str, str, str, str]
LEGEND: Final = (
    "In a cell: the paper's figure, ours, the error. * the model is calibrated on it; = follows"
    " from other cells; ! contradicts another statement and is not judged; all others are free:"
    " judged, and nothing was fitted to them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionReport(BenchmarkReport):
    """A report of a simulation, whose rows are the cells of an experiment.

    Attributes:
        experiment: the experiment.
        outcome: our figures.
    """

    experiment: Experiment
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """Return the report and its experiment for JSON, equal on all machines."""
        experiment = self.experiment
        return {
            "name": experiment.name,
            "how": "simulated",
            "title": experiment.title,
            "source": experiment.source,
            "setting": experiment.setting,
            "calibration": experiment.calibration,
            "model": {name: _rounded(value) for name, value in self.outcome.model.items()},
            "rows": [{k: _rounded(v) for k, v in row.items()} for row in self.rows],
            "goals": [{k: _rounded(v) for k, v in goal.to_json().items()} for goal in self.goals],
            "ranked": list(experiment.ranked),
            "crossings": [
                list(crossing) for crossing in crossings(experiment, published(experiment))
            ],
            "contradictions": [
                {"one": c.one, "other": c.other, "because": c.because, "chosen": c.chosen}
                for c in experiment.contradictions
            ],
            "series": {k: [_rounded(v) for v in line] for k, line in self.outcome.series.items()},
            "notes": list(self.outcome.notes),
        }

    def show(self, console: Console) -> None:
        """Print the table, setting, calibration, notes, contradictions and goals."""
        from rich.markup import escape
        from rich.table import Table

        experiment = self.experiment
        console.print(
            f"[bold]{escape(experiment.title)}[/] (simulated; {escape(experiment.source)})"
        )
        console.print(escape(experiment.setting))
        console.print(self._table(console))
        console.print(LEGEND)
        console.print(f"[bold]Calibration:[/] {escape(experiment.calibration)}")
        for name, value in self.outcome.model.items():
            shown = f"{value:.5g}" if isinstance(value, float) else str(value)
            console.print(f"  {escape(name)}: {escape(shown)}")
        for leads, led, before, after in crossings(experiment, published(experiment)):
            console.print(f"In the paper {leads} passes {led} between {before} and {after}.")
        for note in self.outcome.notes:
            console.print(f"[bold]Note:[/] {escape(note)}")
        for contradiction in experiment.contradictions:
            console.print(
                f"[bold]The paper contradicts itself:[/] {escape(contradiction.one)} /"
                f" {escape(contradiction.other)}: {escape(contradiction.because)}"
                f" {escape(contradiction.chosen)}"
            )
        goals = Table("goal", "value", "limit", "holds")
        for goal in self.goals:
            holds = "[green]yes" if goal.holds else "[red]no"
            goals.add_row(goal.name, f"{goal.value:.4g}", f"{goal.op} {goal.limit:g}", holds)
        console.print(goals)

    def _table(self, console: Console) -> Table:
        """Return a table like the paper's; one row per cell if it has many gaps or is too wide."""
        from rich.measure import Measurement
        from rich.table import Table

        experiment = self.experiment
        table = Table("", *(f"{name}{_unit(experiment, name)}" for name in experiment.columns))
        for name in experiment.rows:
            cells = {str(row["column"]): row for row in self.rows if row["row"] == name}
            table.add_row(name, *(_shown(cells.get(column)) for column in experiment.columns))
        unlimited = console.options.update(max_width=sys.maxsize)
        fits = Measurement.get(console, unlimited, table).maximum <= console.width
        if fits and is_dense(self.rows):
            return table
        table = Table("", "", "unit", "paper, ours, error")
        for row in self.rows:
            table.add_row(str(row["row"]), str(row["column"]), str(row["unit"]), _shown(row))
        return table


def is_dense(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the cells fill more than 60 % of the table that their rows and columns span."""
    size = len({row["row"] for row in rows}) * len({row["column"] for row in rows})
    return len(rows) > 0.6 * size


def run_simulation(module: ModuleType, *, quick: bool) -> ReproductionReport:
    """Simulate the experiment of a module and compare it with its paper."""
    return compare(module.EXPERIMENT, module.simulate(quick=quick))


def compare(experiment: Experiment, outcome: Outcome) -> ReproductionReport:
    """Compare our figures with the paper's: a row for each cell, and the goals.

    Raises:
        ValueError: a figure of ours is missing or not finite.
    """
    ours = outcome.values
    needed = {cell.key for cell in experiment.cells}
    needed |= {key for order in experiment.orders for key in order.falling}
    if wrong := sorted(key for key in needed if not math.isfinite(ours.get(key, math.nan))):
        raise ValueError(f"{experiment.name}: no figure of ours for {wrong}")
    rows = [_row(cell, ours[cell.key]) for cell in experiment.cells]
    goals = _goals(experiment, ours)
    return ReproductionReport(rows, goals, experiment=experiment, outcome=outcome)


def error(cell: Cell, ours: float) -> float:
    """Return the relative error of our figure: 0.05 is 5 % above the paper's figure."""
    return ours / cell.value - 1


def published(experiment: Experiment) -> dict[Key, float]:
    """Return the paper's figures by key, without contested ones."""
    return {cell.key: cell.value for cell in experiment.cells if cell.use != "contested"}


def compare_order(experiment: Experiment, ours: Mapping[Key, float]) -> tuple[list[str], int]:
    """Compare the order of our figures with the paper's.

    It compares two ranked columns in one row, and two rows in one ranked column, if the paper's
    two figures differ by more than `tie_tolerance`; and neighbours in each stated order.

    Returns:
        A description of each pair whose order differs from the paper's, and the number of compared
        pairs.
    """
    paper = published(experiment)
    ranked = [key for key in paper if key[1] in experiment.ranked]
    pairs = [
        (a, b) if paper[a] > paper[b] else (b, a)
        for a, b in combinations(ranked, 2)
        if (a[0] == b[0] or a[1] == b[1])
        and not _tied(paper[a], paper[b], experiment.tie_tolerance)
    ]
    pairs += [pair for order in experiment.orders for pair in pairwise(order.falling)]
    wrong = [
        f"{more[1]} at {more[0]} is not more than {less[1]} at {less[0]}"
        for more, less in pairs
        if not ours[more] > ours[less]
    ]
    return wrong, len(pairs)


def crossings(experiment: Experiment, values: Mapping[Key, float]) -> list[Crossing]:
    """Find where one ranked column passes another, from row to row.

    For each pair of columns it skips the rows in which the paper's two figures are tied, contested
    or missing.
    """
    paper = published(experiment)
    passed: list[Crossing] = []
    for a, b in combinations(experiment.ranked, 2):
        rows = [
            row
            for row in experiment.rows
            if {(row, a), (row, b)} <= paper.keys()
            and not _tied(paper[row, a], paper[row, b], experiment.tie_tolerance)
        ]
        for before, after in pairwise(rows):
            leads = values[after, a] > values[after, b]
            if leads != (values[before, a] > values[before, b]):
                passed.append((a, b, before, after) if leads else (b, a, before, after))
    return passed


def _goals(experiment: Experiment, ours: Mapping[Key, float]) -> list[Goal]:
    judged = [cell for cell in experiment.cells if cell.use in ("free", "derived")]
    free = sum(cell.use == "free" for cell in judged)
    worst = max(judged, key=lambda cell: abs(error(cell, ours[cell.key])))
    wrong, pairs = compare_order(experiment, ours)
    in_ours, in_paper = (
        set(crossings(experiment, values)) for values in (ours, published(experiment))
    )
    order = f"pairs in another order than the paper's, of {pairs}"
    if wrong:
        order += ": " + "; ".join(wrong)
    goals = [
        Goal.judge(
            f"worst error of {len(judged)} judged cells, in % ({worst.column}, {worst.row})",
            100 * abs(error(worst, ours[worst.key])),
            "<=",
            100 * experiment.max_error,
        ),
        Goal.judge("free cells", free, ">=", experiment.min_free_cells),
        Goal.judge(order, len(wrong), "==", 0),
    ]
    if in_ours or in_paper:
        name = f"crossings in only one of paper and ours, of {len(in_ours | in_paper)}"
        goals.append(Goal.judge(name, len(in_ours ^ in_paper), "==", 0))
    return goals


def _row(cell: Cell, ours: float) -> Row:
    return {
        "row": cell.row,
        "column": cell.column,
        "unit": cell.unit,
        "paper": cell.value,
        "ours": ours,
        "error_percent": round(100 * error(cell, ours), 4) + 0.0,  # no -0.0
        "use": cell.use,
        "source": cell.source,
    }


def _tied(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(a, b)


def _unit(experiment: Experiment, column: str) -> str:
    units = {cell.unit for cell in experiment.cells if cell.column == column}
    return f", {units.pop()}" if len(units) == 1 else ""


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    mark = {"calibrates": " *", "derived": " =", "contested": " !"}.get(str(row["use"]), "")
    return f"{row['paper']:g}  {row['ours']:.4g}  {row['error_percent']:+.1f} %{mark}"


def _rounded(value: Any) -> Any:
    """Round to 6 digits: further digits depend on the processor."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
