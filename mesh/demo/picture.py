"""The demo's picture: accuracy and throughput of each mode, and the buffer over time."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .churn import Event
from .edl_dist import EdlDistResult
from .modes import MODES, TITLES
from .report import DemoReport

COLOURS = {"n_training": "#8c8c8c", "online": "#d98c3f", "edl_dist": "#2f6fb0"}
EVENT_COLOURS = {"kill": "#c0392b", "start": "#7fb98a", "join": "#2e8b57"}
EVENT_WORDS = {"kill": "SIGKILL", "start": "new one starts", "join": "it joins"}
KIB = 1024


def draw(report: DemoReport, path: Path) -> None:
    """Write the picture to `path` as PNG; raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2)
    _draw_accuracy(figure.add_subplot(grid[0, 0]), report)
    _draw_throughput(figure.add_subplot(grid[0, 1]), report)
    _draw_buffer(figure.add_subplot(grid[1, :]), report.edl_dist)
    figure.savefig(path, format="png", dpi=120)


def _draw_accuracy(axes: Any, report: DemoReport) -> None:
    for at, mode in enumerate(MODES):
        values = [100 * value for value in report.modes[mode].accuracy]
        mean = statistics.mean(values)
        axes.plot([at] * len(values), values, "o", color=COLOURS[mode], alpha=0.5)
        axes.plot([at - 0.25, at + 0.25], [mean, mean], color=COLOURS[mode], linewidth=3)
        axes.annotate(f"{mean:.1f}", (at + 0.28, mean), va="center")
    axes.axhline(100 * report.teacher.accuracy, color="#444444", linestyle=":", linewidth=1)
    axes.annotate("teacher", (-0.45, 100 * report.teacher.accuracy), va="bottom", fontsize=8)
    axes.set_xlim(-0.5, len(MODES) - 0.3)
    axes.set_xticks(range(len(MODES)), [TITLES[mode] for mode in MODES])
    axes.set_title("Accuracy on held-out digits, % (a dot per seed, the mean)")


def _draw_throughput(axes: Any, report: DemoReport) -> None:
    rates = [report.modes[mode].samples_per_s for mode in MODES]
    bars = axes.bar([TITLES[mode] for mode in MODES], rates, color=[COLOURS[m] for m in MODES])
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates])
    axes.margins(y=0.12)
    axes.set_title("Throughput of the student, samples/s")


def _draw_buffer(axes: Any, edl: EdlDistResult) -> None:
    times = [moment.at_s for moment in edl.timeline]
    volume = [moment.volume_bytes / KIB for moment in edl.timeline]
    axes.fill_between(times, volume, color=COLOURS["edl_dist"], alpha=0.3, linewidth=0)
    axes.plot(times, volume, color=COLOURS["edl_dist"], linewidth=1, label="volume")
    for name, limit in (("ut", edl.reader.upper_bytes), ("lt", edl.reader.lower_bytes)):
        axes.axhline(limit / KIB, color="#444444", linestyle="--", linewidth=1)
        axes.text(0.004, limit / KIB, name, va="bottom", transform=axes.get_yaxis_transform())
    axes.set_ylim(0, 1.25 * max(edl.reader.upper_bytes / KIB, *volume, 1))
    for event in edl.events:
        if event.kind in EVENT_WORDS:
            _mark(axes, event, times[-1] if times else 0.0)
    teachers = axes.twinx()
    held = [moment.teachers for moment in edl.timeline]
    teachers.step(times, held, where="post", color="#2e8b57", linewidth=1.5)
    teachers.set_ylim(0, 2 * max([*held, 1]))
    teachers.set_yticks(range(max([*held, 1]) + 1))
    teachers.set_ylabel("teachers (green)")
    axes.set_ylabel("labelled, not yet used, KiB")
    axes.set_xlabel("seconds of the EDL-Dist run")
    axes.set_title("The reader's buffer while teachers come and go, and its thresholds ut and lt")
    axes.set_xlim(left=0)


def _mark(axes: Any, event: Event, end_s: float) -> None:
    colour = EVENT_COLOURS[event.kind]
    axes.axvline(event.at_s, color=colour, linewidth=1.5)
    top = axes.get_ylim()[1]
    text = f" {event.teacher}: {EVENT_WORDS[event.kind]}"
    height = top * (0.98 if event.kind != "join" else 0.92)
    side = "right" if event.at_s > 0.8 * end_s else "left"  # or it would leave the picture
    axes.annotate(f"{text} ", (event.at_s, height), va="top", ha=side, color=colour, fontsize=9)
