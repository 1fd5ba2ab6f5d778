"""Plot of a simulation: throughput, teachers and buffers over virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ...runtime.errors import UsageError
from ...runtime.extras import install_command
from ...scheduler.simulator.result import MeshSample, SimulatedEvent, SimulationResult

#: Kinds of events that are marked by lines, with colours; no lines above `MAX_MARKS` events.
MARKED: Final = {"lost": "#c0392b", "crash": "#c0392b", "hang": "#c0392b", "drain": "#d98c3f"}
MAX_MARKS: Final = 40
#: Number of intervals over which throughput is averaged.
MAX_MEANS: Final = 120
FORMATS: Final = ("png", "svg", "pdf")
BLUE, GREEN, GREY, RED = "#2f6fb0", "#2e8b57", "#8c8c8c", "#c0392b"


def check_plot(path: Path) -> None:
    """Check that the plot can be drawn, before a long run.

    Raises:
        UsageError: matplotlib is not installed, or the format is not supported.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib: {install_command('plot')}") from error
    if _format(path) not in FORMATS:
        endings = ", ".join(f".{one}" for one in FORMATS)
        raise UsageError(f"--plot {path}: the name must end in one of {endings}")


def draw(result: SimulationResult, title: str, path: Path) -> None:
    """Write the plot to `path`, in the format of its suffix.

    Raises:
        UsageError: see `check_plot`; or the file cannot be written.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasAgg(figure)
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
    try:
        figure.savefig(path, format=_format(path), dpi=120)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _format(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


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
