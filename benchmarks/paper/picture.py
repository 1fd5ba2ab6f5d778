"""Pictures of experiments: curves, the paper's and ours, and the error of each cell."""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...runtime.errors import UsageError
from ..elastic_simulation import PoolState, Simulation

COLOURS: Final = ("#2f6fb0", "#d98c3f", "#c0392b", "#2e8b57", "#7b5ea7", "#8c8c8c")
#: Colour of a cell in the panel of errors, by its `Use`.
COLOUR_OF_USE: Final = {
    "free": "#2e8b57",
    "derived": "#8fc9a5",
    "calibrates": "#bbbbbb",
    "contested": "#d98c3f",
}


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw an experiment as PNG.

    If the ranked columns have several rows, the first panel shows these columns over the rows, with
    the paper's figures as circles. Otherwise, series are named "name, unit". Each unit then has a
    panel, which plots the series of that unit against the first series. The last panel shows the
    error of each cell.

    Args:
        document: a result of `ReproductionReport.to_json`.
        path: path of the PNG file.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, series = document["rows"], document["series"]
    ranked = len({row["row"] for row in rows if row["column"] in document["ranked"]}) > 1
    lines = list(series)[1:]
    units = list(dict.fromkeys(_unit(name) for name in lines)) if not ranked else [""]
    figure = Figure(
        figsize=(5.5 * (len(units) + 1), max(3.8, 0.24 * len(rows) + 1.2)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    *panels, errors = figure.subplots(1, len(units) + 1, squeeze=False)[0]
    for axes, unit in zip(panels, units, strict=True):
        if ranked:
            _ranked(axes, document)
        else:
            _series(axes, series, unit)
    figure.suptitle(f"{document['title']} ({document['how']})", fontsize=9)
    _errors(errors, rows)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG; raise UsageError if the file cannot be written."""
    try:
        figure.savefig(path, format="png", dpi=100, metadata={"Software": None})
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _ranked(axes: Any, document: Mapping[str, Any]) -> None:
    names = list(dict.fromkeys(row["row"] for row in document["rows"]))
    for column, colour in zip(document["ranked"], COLOURS, strict=False):
        cells = [row for row in document["rows"] if row["column"] == column]
        positions = [names.index(row["row"]) for row in cells]
        ours, paper = ([row[side] for row in cells] for side in ("ours", "paper"))
        if len(document["ranked"]) > 1:
            axes.plot(positions, ours, "-", color=colour, label=f"{column}, ours")
        else:
            axes.bar(positions, ours, color=colour, alpha=0.5, width=0.6, label=f"{column}, ours")
        label = f"{column}, the paper's"
        axes.plot(positions, paper, "o", color=colour, fillstyle="none", label=label)
        axes.set_ylabel(cells[0]["unit"])
    axes.set_xticks(range(len(names)), names, fontsize=8, rotation=20 if len(names) < 9 else 60)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _unit(name: str) -> str:
    return name.rpartition(", ")[2]


def _series(axes: Any, series: Mapping[str, Sequence[Any]], unit: str) -> None:
    (x_name, x), *others = series.items()
    chosen = [(name, line) for name, line in others if _unit(name) == unit]
    for (name, line), colour in zip(chosen, COLOURS, strict=False):
        if x and isinstance(x[0], str):
            axes.bar(x, line, color=colour, width=0.6)
            axes.tick_params(axis="x", labelsize=8, rotation=20)
        else:
            axes.plot(x, line, ".-", color=colour, label=name.rpartition(", ")[0])
            axes.set_xlabel(x_name)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def _errors(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    labels = [f"{row['column']}, {row['row']}" for row in rows]
    positions = range(len(rows))
    axes.axvspan(-10, 10, color="#eeeeee", zorder=0)
    axes.axvline(0, color="#888888", linewidth=0.8)
    for use, colour in COLOUR_OF_USE.items():
        chosen = [i for i in positions if rows[i]["use"] == use]
        if chosen:
            errors = [rows[i]["error_percent"] for i in chosen]
            axes.plot(errors, chosen, "o", color=colour, label=use)
    axes.set_yticks(list(positions), labels, fontsize=7)
    axes.invert_yaxis()
    widest = max([12.0, *(abs(row["error_percent"]) * 1.1 for row in rows)])
    axes.set_xlim(-widest, widest)
    axes.set_xlabel("error of ours, % of the paper's figure")
    axes.legend(fontsize=7)


# --- curves of simulated elastic jobs


def steps(
    simulation: Simulation, times_s: Sequence[float], figure: Callable[[PoolState], float]
) -> list[float]:
    """Sample a figure of a simulation at given times; 0 after its end.

    Args:
        simulation: the simulation.
        times_s: rising virtual times.
        figure: returns the figure of a state of the pool.
    """
    states = simulation.moments
    following = [bisect_right(states, at_s, 1, key=lambda state: state.at_s) for at_s in times_s]
    return [
        figure(states[index - 1]) if at_s <= simulation.until_s else 0.0
        for at_s, index in zip(times_s, following, strict=True)
    ]


def csv_text(columns: Mapping[str, Sequence[object]]) -> str:
    """Format columns of equal length as CSV, with a header of their names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves with a common time axis.

    Attributes:
        title: title of the panel.
        label: label of the vertical axis.
        times_s: times of the figures.
        curves: name -> figures.
        stacked: whether the curves are stacked.
    """

    title: str
    label: str
    times_s: Sequence[float]
    curves: Mapping[str, Sequence[float]]
    stacked: bool = False


def draw_panels(panels: Sequence[Panel], document: Mapping[str, Any], path: Path) -> None:
    """Draw panels one below the other as PNG.

    Args:
        panels: the panels, from top to bottom.
        document: result of the experiment, for the title.
        path: path of the PNG file.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.3 * len(panels) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{document['title']} ({document['how']})", fontsize=9)
    for axes, panel in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        if panel.stacked:
            axes.stackplot(
                panel.times_s, *panel.curves.values(), labels=panel.curves, colors=COLOURS
            )
        else:
            for (name, curve), colour in zip(panel.curves.items(), COLOURS, strict=False):
                axes.plot(panel.times_s, curve, color=colour, label=name, drawstyle="steps-post")
        axes.set_title(panel.title, fontsize=8)
        axes.set_ylabel(panel.label)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, loc="upper right")
    axes.set_xlabel("seconds")
    save(figure, path)
