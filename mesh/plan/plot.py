"""Plot of a sweep: throughput and cost of the mesh and of other methods."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...runtime.errors import UsageError
from ...scheduler.planner import MeshPlan
from ...scheduler.verdicts import Method
from .sweep import SweepPoint

COLOURS: dict[Method, str] = {
    "N-training": "#8c8c8c",
    "Online": "#d98c3f",
    "offline store": "#2e8b57",
    "mesh": "#2f6fb0",
}


def draw(plan: MeshPlan, key: str, points: Sequence[SweepPoint], path: Path) -> None:
    """Write the plot to `path`, in the format of its suffix (png, svg, pdf).

    Raises:
        UsageError: matplotlib does not support the format, or the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    throughput, money = figure.subplots(2, 1, sharex=True)
    known = [(point.value, point.plan) for point in points if point.plan is not None]
    for method, colour in COLOURS.items():
        ways = [(value, made.way(method)) for value, made in known]
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
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        figure.savefig(temporary, dpi=120)
        temporary.replace(path)
    except (OSError, ValueError) as error:  # ValueError: unknown format
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot write {path}: {why}") from error
    finally:
        temporary.unlink(missing_ok=True)
