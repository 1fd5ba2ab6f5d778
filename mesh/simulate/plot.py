"""Plot of a simulation: throughput, teachers and buffers over virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ...scheduler.simulator.result import MeshSample, SimulatedEvent, SimulationResult
from ..plots import BLUE, GREEN, GREY, ORANGE, RED, save_plot

#: Kinds of events that are marked by lines, with colours; no lines above `MAX_MARKS` events.
MARKED: Final = {"lost": RED, "crash": RED, "hang": RED, "drain": ORANGE}
MAX_MARKS: Final = 40
#: Number of intervals over which throughput is averaged.
MAX_MEANS: Final = 120


def draw(result: SimulationResult, title: str, path: Path) -> None:
    """Write the plot to `path`, in the format of its suffix.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    throughput, teachers, volume = figure.subplots(3, 1, sharex=True)
    _draw_throughput(throughput, result)
    _draw_teachers(teachers, result)
    _draw_volume(volume, result)
    marks = [one for one in result.happenings if one.kind in MARKED]
    for happening in marks if len(marks) <= MAX_MARKS else ():
        _mark(teachers, happening)
    throughput.set_title(f"{title} (simulated)")
    volume.set_xlabel("virtual seconds")
    volume.set_xlim(0, max(result.virtual_s, 1e-9))
    save_plot(figure, path)


def _draw_throughput(axes: Any, result: SimulationResult) -> None:
    times = [point.at_s for point in result.points]
    axes.plot(*_smooth(result.points), color=BLUE, linewidth=1)
    axes.set_ylabel("samples/s, all students")
    axes.set_ylim(bottom=0)
    waiting = axes.twinx()
    starved = [point.starved for point in result.points]
    waiting.fill_between(times, starved, step="post", color=RED, alpha=0.25, linewidth=0)
    waiting.set_ylabel("students that starve (red)")
    waiting.set_ylim(0, max([point.students for point in result.points], default=0) or 1)


def _smooth(points: Sequence[MeshSample]) -> tuple[list[float], list[float]]:
    """Average samples per second over intervals, as a point covers only a few batches."""
    times, rates = [0.0], [0.0]
    begin_s = samples = 0.0
    width = (points[-1].at_s if points else 0.0) / MAX_MEANS
    for before, point in pairwise(points):
        samples += point.samples_per_s * (point.at_s - before.at_s)
        if point.at_s - begin_s >= width > 0:
            times.append(point.at_s)
            rates.append(samples / (point.at_s - begin_s))
            begin_s, samples = point.at_s, 0.0
    return times, rates


def _draw_teachers(axes: Any, result: SimulationResult) -> None:
    times = [point.at_s for point in result.points]
    lines = (
        ("serving", [point.serving for point in result.points], GREEN, "-"),
        ("assigned", [point.assigned for point in result.points], BLUE, "-"),
        ("wanted", [point.wanted for point in result.points], GREY, "--"),
        ("desired", [point.desired for point in result.points], RED, ":"),
    )
    for name, values, colour, style in lines:
        if any(value is not None for value in values):
            axes.step(times, values, style, where="post", color=colour, linewidth=1, label=name)
    axes.set_ylabel("teachers")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", fontsize=8)


def _draw_volume(axes: Any, result: SimulationResult) -> None:
    times = [point.at_s for point in result.points]
    volume = [point.volume for point in result.points]
    axes.fill_between(times, volume, color=BLUE, alpha=0.3, linewidth=0)
    axes.set_ylabel("batches labelled, not taken")
    axes.set_ylim(bottom=0)


def _mark(axes: Any, happening: SimulatedEvent) -> None:
    axes.axvline(happening.at_s, color=MARKED[happening.kind], linewidth=1, alpha=0.6)
