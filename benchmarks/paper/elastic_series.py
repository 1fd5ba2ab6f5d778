"""Curves of simulated elastic jobs: figures at given times, as CSV, drawn one below the other."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..elastic_simulation import Moment, Simulation
from .picture import COLOURS, save


def steps(
    simulation: Simulation, times_s: Sequence[float], figure: Callable[[Moment], float]
) -> list[float]:
    """A figure of the moment that holds at each time; 0 after the simulation's end.

    Args:
        simulation: whose moments.
        times_s: rising.
        figure: what of a moment.
    """
    found: list[float] = []
    index = 0
    for at in times_s:
        while index + 1 < len(simulation.moments) and simulation.moments[index + 1].at_s <= at:
            index += 1
        found.append(figure(simulation.moments[index]) if at <= simulation.until_s else 0.0)
    return found


def csv_text(columns: Mapping[str, Sequence[object]]) -> str:
    """Columns of one length as CSV, their names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis of time.

    Attributes:
        title: what is shown.
        label: of the vertical axis.
        times_s: where the curves have figures.
        curves: name -> figures.
        stacked: whether they add up.
    """

    title: str
    label: str
    times_s: Sequence[float]
    curves: Mapping[str, Sequence[float]]
    stacked: bool = False


def draw_panels(panels: Sequence[Panel], document: Mapping[str, Any], path: Path) -> None:
    """Draw panels one below the other as PNG.

    Raises:
        UsageError: it cannot be written.
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
