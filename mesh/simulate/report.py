"""Report of a simulation, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from ...scheduler.simulator.result import SimulationResult, StudentResult
from ...scheduler.simulator.scenario import Scenario

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Most students that have their own rows; more are summarized by group.
MAX_STUDENT_ROWS: Final = 12
MILLION: Final = 1e6
#: Columns with shares of a student's time, and the fields of the result.
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


def print_report(report: SimulationReport, console: Console) -> None:
    """Print the report to the console."""
    for line in heading_lines(report):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_students(report.result))
    if report.result.teachers:
        console.print(_teachers(report.result))
    for line in summary_lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def as_json(report: SimulationReport) -> dict[str, Any]:
    """Return scenario, result and totals as JSON values."""
    result = report.result
    # Requests and steps are only in the timeline, as there may be millions.
    whole = {
        name: getattr(result, name)
        for name in result.__dataclass_fields__
        if name not in ("students", "teachers", "points", "happenings", "labelled", "stepped")
    }
    return {
        "scenario": asdict(report.scenario),
        "wall_s": report.wall_s,
        **whole,
        "samples_per_s": result.samples_per_s,
        "cost": result.cost,
        "cost_per_million_samples": cost_per_million(result),
        "students": [asdict(student) for student in result.students],
        "teachers": [asdict(group) for group in result.teachers],
        "points": [asdict(point) for point in result.points],
        "happenings": [asdict(happening) for happening in result.happenings],
    }


def heading_lines(report: SimulationReport) -> Iterator[str]:
    """Yield the lines before the tables."""
    scenario, result = report.scenario, report.result
    students = sum(group.count for group in scenario.students)
    teachers = sum(group.started for group in result.teachers)
    name = scenario.name or "a scenario"
    yield (
        f"{name}: {_count(students, 'student')}, {_count(teachers, 'teacher')},"
        f" {format_time(result.virtual_s)} of virtual time, seed {scenario.seed}"
    )
    yield "simulated, not measured"


def summary_lines(report: SimulationReport) -> Iterator[str]:
    """Yield the lines after the tables: throughput, cost, trace hash."""
    result = report.result
    price = cost_per_million(result)
    cost = f", cost {result.cost:.4g}" if result.cost else ""
    cost += f" ({price:.4g} per million samples)" if result.cost and price is not None else ""
    yield f"all students together: {result.samples_per_s:,.1f} samples/s{cost}"
    yield (
        f"{result.events:,} events in {report.wall_s:.1f} s;"
        f" trace hash {result.trace_hash} (equal for equal scenarios and seeds)"
    )


def cost_per_million(result: SimulationResult) -> float | None:
    """Return the cost of the teachers per million samples; None: no samples were trained."""
    samples = sum(student.samples for student in result.students)
    return result.cost * MILLION / samples if samples else None


def format_time(seconds: float) -> str:
    """Format a duration: `90.0 s`, `10 min 0 s`, `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _students(result: SimulationResult) -> Table:
    from rich.table import Table

    table = Table(title="students", title_justify="left")
    table.add_column("student")
    for column in ("batches", "samples/s", *SHARES, "wanted", "resent"):
        table.add_column(column, justify="right")
    single = len(result.students) <= MAX_STUDENT_ROWS
    names = dict.fromkeys(student.group for student in result.students)
    for name in names:
        group = result.group(name)
        if single or len(group) == 1:
            for student in group:
                table.add_row(student.name, *_cells([student]))
            continue
        slowest = min(group, key=lambda student: student.samples_per_s)
        table.add_row(f"{name} ({len(group)}): mean", *_cells(group))
        table.add_row(f"  slowest: {slowest.name}", *_cells([slowest]))
    table.caption = f"{', '.join(SHARES)}: shares of the time; resent: with hedges"
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


def _teachers(result: SimulationResult) -> Table:
    from rich.table import Table

    table = Table(title="teachers", title_justify="left")
    table.add_column("group")
    for column in ("started", "lost", "uptime, h", "busy", "batches", "cost"):
        table.add_column(column, justify="right")
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


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
