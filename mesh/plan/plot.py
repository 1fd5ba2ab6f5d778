"""Plot of a sweep: throughput and cost of the mesh and of other methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...scheduler.planner import MeshPlan
from ...scheduler.verdicts import Method
from ..plots import BLUE, GREEN, GREY, ORANGE, save_plot
from .sweep import SweepPoint

COLOURS: dict[Method, str] = {
    "N-training": GREY,
    "Online": ORANGE,
    "offline store": GREEN,
    "mesh": BLUE,
}


def draw(plan: MeshPlan, key: str, points: Sequence[SweepPoint], path: Path) -> None:
    """Write the plot to `path`, in the format of its suffix.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    throughput, money = figure.subplots(2, 1, sharex=True)
    known = [(point.value, point.plan) for point in points if point.plan is not None]
    for method, colour in COLOURS.items():
        ways = [(value, planned.way(method)) for value, planned in known]
        ways = [(value, way) for value, way in ways if not way.why_not]
        if not ways:
            continue
        style = "o-" if method == "mesh" else "--"
        values = [value for value, _ in ways]
        rates = [way.samples_per_s for _, way in ways]
        throughput.plot(values, rates, style, color=colour, markersize=3, label=method)
        money.plot(
            values, [way.cost for _, way in ways], style, color=colour, markersize=3, label=method
        )
    throughput.set_ylabel("samples/s (predicted)")
    throughput.set_ylim(bottom=0)
    throughput.legend(loc="lower right", fontsize=8)
    throughput.set_title(f"{plan.job}: {plan.students} x {plan.student}")
    money.set_ylabel(f"cost of the training, {plan.currency}")
    money.set_ylim(bottom=0)
    money.set_xlabel(key)
    save_plot(figure, path)
