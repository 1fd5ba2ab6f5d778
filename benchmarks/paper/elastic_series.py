"""Curves of simulated elastic jobs: sampled, written as CSV, and drawn in panels."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..elastic_simulation import PoolState, Simulation
from .picture import COLOURS, save


def steps(
    simulation: Simulation, times_s: Sequence[float], figure: Callable[[PoolState], float]
) -> list[float]:
    """Sample a figure of a simulation at given times; 0 after its end.

    Args:
        simulation: the simulation.
        times_s: rising virtual times.
        figure: returns the figure of a moment.
    """
    found: list[float] = []
    index = 0
    for at in times_s:
        while index + 1 < len(simulation.moments) and simulation.moments[index + 1].at_s <= at:
            index += 1
        found.append(figure(simulation.moments[index]) if at <= simulation.until_s else 0.0)
    return found


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
