"""Report of a simulation, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from ...runtime.files import save_plot
from ...scheduler.simulator.result import MeshSample, SimulationResult, StudentResult
from ...scheduler.simulator.scenario import Scenario
from ..output import BLUE, GREEN, GREY, ORANGE, RED, format_duration, report_console

if TYPE_CHECKING:
    from rich.table import Table


#: Maximum number of students with one row each; if there are more, groups are summarized.
MAX_STUDENT_ROWS: Final = 12
MILLION: Final = 1e6
#: Columns with shares of a student's time; the field of `StudentResult` for each.
SHARES: Final = {
    "training": "training_s",
    "starved": "starved_s",
    "blocked": "blocked_s",
    "source": "source_wait_s",
}


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """A simulated scenario and its result.

    Attributes:
        scenario: the scenario, including the seed.
        result: result of the simulation.
        wall_s: duration of the simulation in seconds.
    """

    scenario: Scenario
    result: SimulationResult
    wall_s: float


def print_report(report: SimulationReport) -> None:
    """Print the report to stdout."""
    scenario, result, console = report.scenario, report.result, report_console()
    say = partial(console.print, soft_wrap=True)
    students = _counted(sum(group.count for group in scenario.students), "student")
    teachers = _counted(sum(group.started for group in result.teachers), "teacher")
    virtual = format_duration(result.virtual_s)
    say(f"{scenario.name}: {students}, {teachers}, {virtual} of virtual time, seed {scenario.seed}")
    say("simulated, not measured")
    console.print(_student_table(result))
    if result.teachers:
        console.print(_teacher_table(result))
    price = cost_per_million(result)
    cost = f", cost {result.cost:.4g}" if result.cost else ""
    cost += f" ({price:.4g} per million samples)" if result.cost and price is not None else ""
    say(f"all students together: {result.samples_per_s:,.1f} samples/s{cost}")
    say(
        f"{result.events:,} events in {report.wall_s:.1f} s;"
        f" trace hash {result.trace_hash} (equal for equal scenarios and seeds)"
    )


def as_json(report: SimulationReport) -> dict[str, Any]:
    """Return scenario, result and totals as JSON values."""
    result = report.result
    lists: dict[str, Sequence[Any]] = {
        "students": result.students,
        "teachers": result.teachers,
        "points": result.points,
        "happenings": result.mesh_events,
    }
    # Requests and steps are only in the timeline, as there may be millions.
    totals = {
        name: getattr(result, name)
        for name in result.__dataclass_fields__
        if name not in (*lists, "mesh_events", "requests", "steps")
    }
    return {
        "scenario": asdict(report.scenario),
        "wall_s": report.wall_s,
        **totals,
        "cost": result.cost,
        "cost_per_million_samples": cost_per_million(result),
        **{key: [asdict(one) for one in values] for key, values in lists.items()},
    }


def cost_per_million(result: SimulationResult) -> float | None:
    """Return the cost of the teachers per million samples; None: no samples were trained."""
    samples = sum(student.samples for student in result.students)
    return result.cost * MILLION / samples if samples else None


def _student_table(result: SimulationResult) -> Table:
    table = _table("student", "batches", "samples/s", *SHARES, "wanted", "resent")
    table.title = "students"
    all_rows = len(result.students) <= MAX_STUDENT_ROWS
    names = dict.fromkeys(student.group for student in result.students)
    for name in names:
        group = result.group(name)
        if all_rows or len(group) == 1:
            for student in group:
                table.add_row(student.name, *_cells([student]))
            continue
        slowest = min(group, key=lambda student: student.samples_per_s)
        table.add_row(f"{name} ({len(group)}): mean", *_cells(group))
        table.add_row(f"  slowest: {slowest.name}", *_cells([slowest]))
    table.caption = f"{', '.join(SHARES)}: shares of the time; resent: with hedges, in total"
    return table


def _cells(students: Sequence[StudentResult]) -> Iterator[str]:
    present_s = sum(student.ended_s - student.began_s for student in students)
    yield f"{fmean(student.batches for student in students):,.0f}"
    yield f"{fmean(student.samples_per_s for student in students):,.1f}"
    for field in SHARES.values():
        spent_s = sum(getattr(student, field) for student in students)
        yield f"{100 * spent_s / present_s:.1f} %" if present_s > 0 else "-"
    yield f"{fmean(student.want for student in students):.3g}"
    yield f"{sum(student.resends + student.hedges for student in students):,}"


def _teacher_table(result: SimulationResult) -> Table:
    table = _table("group", "started", "lost", "uptime, h", "busy", "batches", "cost")
    table.title = "teachers"
    for group in result.teachers:
        table.add_row(
            group.group,
            f"{group.started:,}",
            f"{group.lost:,}",
            f"{group.there_s / 3600:,.2f}",
            f"{100 * group.utilization:.1f} %",
            f"{group.batches:,.0f}",
            f"{group.cost:,.2f}",
        )
    return table


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(first, title_justify="left")
    for column in others:
        table.add_column(column, justify="right")
    return table


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


#: Colours of the lines that mark events, by kind. If more than `MAX_MARKS` lines were needed, there
#: are none.
MARKED: Final = {"lost": RED, "crash": RED, "hang": RED, "drain": ORANGE}
MAX_MARKS: Final = 40
#: Maximum number of intervals over which throughput is averaged.
MAX_INTERVALS: Final = 120


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
    marks = [one for one in result.mesh_events if one.kind in MARKED]
    for event in marks if len(marks) <= MAX_MARKS else ():
        colour = MARKED[event.kind]
        teachers.axvline(event.at_s, color=colour, linewidth=1, alpha=0.6)
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
    width = (points[-1].at_s if points else 0.0) / MAX_INTERVALS
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
