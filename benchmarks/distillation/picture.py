"""A chart of accuracies: a panel for each task, a dot for each seed, a line through its ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.errors import UsageError
from .training_ways import WAYS, DistillationOutcome, Way

COLOURS: dict[Way, str] = {
    "n_training": "#8c8c8c",
    "online": "#d98c3f",
    "steady": "#2f6fb0",
    "churn": "#c0392b",
    "offline": "#2e8b57",
}
LABELS: dict[Way, str] = {
    "n_training": "N-training",
    "online": "Online",
    "steady": "EDL-Dist,\nsteady",
    "churn": "EDL-Dist,\nchurn",
    "offline": "offline\nstore",
}


@dataclass(frozen=True, slots=True)
class AccuracyPanel:
    """The panel of one task.

    Attributes:
        title: title above the panel.
        teacher: accuracy of the teacher, 0 to 1.
        outcomes: outcome of each way.
    """

    title: str
    teacher: float
    outcomes: Mapping[Way, DistillationOutcome]


def draw(panels: Sequence[AccuracyPanel], path: Path) -> None:
    """Write the chart to `path` as PNG; raise UsageError if the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _draw(axes: Any, panel: AccuracyPanel) -> None:
    ways = [way for way in WAYS if way in panel.outcomes]
    by_way = [[100 * value for value in panel.outcomes[way].accuracy] for way in ways]
    for seed in zip(*by_way, strict=True):
        axes.plot(range(len(ways)), seed, color="#cccccc", linewidth=0.8, zorder=1)
    for at, (way, values) in enumerate(zip(ways, by_way, strict=True)):
        mean = sum(values) / len(values)
        axes.plot([at] * len(values), values, "o", color=COLOURS[way], alpha=0.6)
        axes.plot([at - 0.25, at + 0.25], [mean, mean], color=COLOURS[way], linewidth=3)
        axes.annotate(f"{mean:.2f}", (at + 0.28, mean), va="center", fontsize=8)
    axes.axhline(100 * panel.teacher, color="#444444", linestyle=":", linewidth=1)
    axes.annotate("teacher", (-0.45, 100 * panel.teacher), va="bottom", fontsize=8)
    axes.set_xlim(-0.5, len(ways) - 0.3)
    axes.set_xticks(range(len(ways)), [LABELS[way] for way in ways], fontsize=8)
    axes.set_ylabel("% of held-out rows right")
    axes.set_title(panel.title, fontsize=9)
