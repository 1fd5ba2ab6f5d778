"""What a simulated run gave, in tables for people and as JSON for programs."""

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

#: Up to so many students have a row each; more are told by group.
ROWS_OF_STUDENTS: Final = 12
MILLION: Final = 1e6
#: Columns that are shares of a student's time, and the fields that they are made of.
SHARES: Final = {
    "trains": "training_s",
    "starves": "starved_s",
    "blocked": "blocked_s",
    "source": "source_wait_s",
}


@dataclass(frozen=True, slots=True)
class Told:
    """A run, and what it was a run of.

    Attributes:
        scenario: as it was simulated, its seed included.
        result: what came of it.
        wall_s: seconds that the simulation took.
    """

    scenario: Scenario
    result: SimulationResult
    wall_s: float


def show(told: Told, console: Console) -> None:
    """Print the tables."""
    for line in heading(told):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_students(told.result))
    if told.result.teachers:
        console.print(_teachers(told.result))
    for line in sums(told):
        console.print(line, highlight=False, soft_wrap=True)


def as_json(told: Told) -> dict[str, Any]:
    """The same for programs: the scenario and the result by their fields, and the sums."""
    result = told.result
    # Requests and steps are the timeline's: there may be millions.
    whole = {
        name: getattr(result, name)
        for name in result.__dataclass_fields__
        if name not in ("students", "teachers", "points", "happenings", "labelled", "stepped")
    }
    return {
        "scenario": asdict(told.scenario),
        "wall_s": told.wall_s,
        **whole,
        "samples_per_s": result.samples_per_s,
        "cost": result.cost,
        "cost_per_million_samples": cost_per_million(result),
        "students": [asdict(student) for student in result.students],
        "teachers": [asdict(group) for group in result.teachers],
        "points": [asdict(point) for point in result.points],
        "happenings": [asdict(happening) for happening in result.happenings],
    }


def heading(told: Told) -> Iterator[str]:
    """What was simulated, and how."""
    scenario, result = told.scenario, told.result
    students = sum(group.count for group in scenario.students)
    teachers = sum(group.started for group in result.teachers)
    name = scenario.name or "a scenario"
    yield (
        f"{name}: {_many(students, 'student')}, {_many(teachers, 'teacher')},"
        f" {clock(result.virtual_s)} of virtual time, seed {scenario.seed}"
    )
    yield "simulated: nothing of it was measured"


def sums(told: Told) -> Iterator[str]:
    """The last lines: throughput, money, and what tells two runs apart."""
    result = told.result
    price = cost_per_million(result)
    cost = f", cost {result.cost:.4g}" if result.cost else ""
    cost += f" ({price:.4g} per million samples)" if result.cost and price is not None else ""
    yield f"all students together: {result.samples_per_s:,.1f} samples/s{cost}"
    yield (
        f"{result.events:,} events in {told.wall_s:.1f} s;"
        f" trace hash {result.trace_hash} (the same again for the same scenario and seed)"
    )


def cost_per_million(result: SimulationResult) -> float | None:
    """What a million trained samples cost, of the teachers' time; None: nothing was trained."""
    samples = sum(student.samples for student in result.students)
    return result.cost * MILLION / samples if samples else None


def clock(seconds: float) -> str:
    """A time for people: `90.0 s`, `10 min 0 s`, `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _students(result: SimulationResult) -> Table:
    from rich.table import Table

    table = Table(title="students", title_justify="left")
    table.add_column("student")
    for column in ("batches", "samples/s", *SHARES, "want", "again"):
        table.add_column(column, justify="right")
    single = len(result.students) <= ROWS_OF_STUDENTS
    names = dict.fromkeys(student.group for student in result.students)
    for name in names:
        group = result.group(name)
        if single or len(group) == 1:
            for student in group:
                table.add_row(student.name, *_figures([student]))
            continue
        slowest = min(group, key=lambda student: student.samples_per_s)
        table.add_row(f"{name} ({len(group)}): mean", *_figures(group))
        table.add_row(f"  slowest: {slowest.name}", *_figures([slowest]))
    table.caption = f"{', '.join(SHARES)}: shares of the time; again: resent and hedged"
    return table


def _figures(students: Sequence[StudentResult]) -> Iterator[str]:
    there_s = sum(student.ended_s - student.began_s for student in students)
    yield f"{fmean(student.batches for student in students):,.0f}"
    yield f"{fmean(student.samples_per_s for student in students):,.1f}"
    for field in SHARES.values():
        spent_s = sum(getattr(student, field) for student in students)
        yield f"{100 * spent_s / there_s:.1f} %" if there_s > 0 else "-"
    yield f"{fmean(student.want for student in students):.3g}"
    yield f"{sum(student.resends + student.hedges for student in students):,}"


def _teachers(result: SimulationResult) -> Table:
    from rich.table import Table

    table = Table(title="teachers", title_justify="left")
    table.add_column("group")
    for column in ("started", "lost", "there, h", "busy", "batches", "cost"):
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


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
