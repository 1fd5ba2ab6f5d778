"""Picture of the demo: throughput and accuracy of each mode, and the buffer over time."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from ..output import BLUE, GREEN, GREY, ORANGE, RED
from .edl_dist import EdlDistResult
from .modes import TITLES
from .report import DemoReport
from .teacher_churn import TeacherEvent

COLOURS = {
    "n_training": GREY,
    "online": ORANGE,
    "online_all_cores": "#e8bd8e",
    "edl_dist": BLUE,
}
EVENT_COLOURS = {"kill": RED, "join": GREEN}
EVENT_LABELS = {"kill": "killed (SIGKILL)", "join": "joins"}
TEACHERS_COLOUR = GREEN
MIB = 1 << 20


def draw(report: DemoReport, path: Path) -> None:
    """Write the picture (16:9) to `path` as PNG. Raises OSError."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=(13.33, 7.5), layout="constrained")
        figure.suptitle(_headline(report), fontsize=18, fontweight="bold")
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
        _draw_throughput(figure.add_subplot(grid[0, 0]), report)
        _draw_accuracy(figure.add_subplot(grid[0, 1]), report)
        _draw_buffer(figure.add_subplot(grid[1, :]), report.edl_dist)
        figure.savefig(path, format="png", dpi=120)


def _headline(report: DemoReport) -> str:
    stream = report.modes["edl_dist"].stream
    complete = stream.batches == report.settings.batches and report.same_bytes
    killed = f"{report.edl_dist.killed} teacher killed" if report.edl_dist.killed else ""
    lost = "no batch lost or repeated" if complete else "BATCHES LOST, REPEATED OR MISLABELLED"
    ratio = "" if report.disturbed else f"{report.ratio_to_online:.1f} times the speed of Online"
    return ", ".join(part for part in (ratio, killed, lost) if part)


def _draw_throughput(axes: Any, report: DemoReport) -> None:
    modes = list(report.modes)
    rates = [report.modes[mode].samples_per_s for mode in modes]
    bars = axes.bar(
        [TITLES[mode] for mode in modes],
        rates,
        color=[COLOURS[mode] for mode in modes],
    )
    online = report.modes["online"].samples_per_s
    axes.bar_label(bars, [f"{rate:,.0f}\n({rate / online:.2f} x)" for rate in rates])
    expected = report.expected_ratio * online
    if not report.shared_device:
        axes.axhline(expected, color="#444444", linestyle=":", linewidth=1)
        axes.set_xlabel(
            "dotted: the most that the mesh can reach here,"
            f" {report.expected_ratio:.2f} times the speed of Online",
            fontsize=10,
        )
    axes.set_ylim(0, 1.3 * max(*rates, expected))
    axes.set_title("Throughput, images/s (ratio to Online)")


def _draw_accuracy(axes: Any, report: DemoReport) -> None:
    modes = [mode for mode in report.modes if mode != "online_all_cores"]
    for x, mode in enumerate(modes):
        values = [100 * value for value in report.modes[mode].accuracy]
        mean = statistics.mean(values)
        axes.plot([x] * len(values), values, "o", color=COLOURS[mode], alpha=0.6, markersize=8)
        axes.plot([x - 0.25, x + 0.25], [mean, mean], color=COLOURS[mode], linewidth=3)
        axes.annotate(f"{mean:.1f}", (x + 0.28, mean), va="center")
    axes.axhline(100 * report.teacher.accuracy, color="#444444", linestyle=":", linewidth=1)
    axes.annotate("teacher", (-0.45, 100 * report.teacher.accuracy), va="bottom", fontsize=10)
    axes.set_xlim(-0.5, len(modes) - 0.2)
    axes.set_xticks(range(len(modes)), [TITLES[mode] for mode in modes])
    axes.set_title("Accuracy on held-out digits, % (a dot per seed, the mean)")


def _draw_buffer(axes: Any, edl: EdlDistResult) -> None:
    times = [moment.at_s for moment in edl.timeline]
    volume = [moment.volume_bytes / MIB for moment in edl.timeline]
    axes.fill_between(times, volume, color=COLOURS["edl_dist"], alpha=0.3, linewidth=0)
    axes.plot(times, volume, color=COLOURS["edl_dist"], linewidth=1)
    limits = (
        ("upper threshold", edl.reader.upper_bytes),
        ("lower threshold", edl.reader.lower_bytes),
    )
    for name, limit in limits:
        axes.axhline(limit / MIB, color="#444444", linestyle="--", linewidth=1)
        axes.text(0.004, limit / MIB, name, va="bottom", fontsize=10,
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_ylim(0, 1.4 * max(edl.reader.upper_bytes / MIB, *volume, 0.01))
    for event in edl.events:
        if event.kind in EVENT_LABELS:
            _mark_event(axes, event, times[-1] if times else 0.0)
    teachers = axes.twinx()
    counts = [moment.teachers for moment in edl.timeline]
    teachers.step(times, counts, where="post", color=TEACHERS_COLOUR, linewidth=2)
    teachers.set_ylim(0, 2 * max([*counts, 1]))
    teachers.set_yticks(range(max([*counts, 1]) + 1))
    teachers.set_ylabel("teachers", color=TEACHERS_COLOUR)
    axes.set_ylabel("buffer, MiB", color=COLOURS["edl_dist"])
    axes.set_xlabel("seconds of the EDL-Dist run")
    axes.set_title("Labelled batches in the reader's buffer while teachers come and go")
    axes.set_xlim(left=0)


def _mark_event(axes: Any, event: TeacherEvent, end_s: float) -> None:
    colour = EVENT_COLOURS[event.kind]
    axes.axvline(event.at_s, color=colour, linewidth=1.5)
    # The text must stay inside the picture.
    side = "right" if event.at_s > 0.8 * end_s else "left"
    text = f" {event.teacher} {EVENT_LABELS[event.kind]} "
    axes.annotate(text, (event.at_s, axes.get_ylim()[1]), va="top", ha=side, color=colour)
