"""The command `edl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...runtime.files import FORMATS, check_plot, check_writable
from ...runtime.structured_option import AsJson
from ...scheduler.planner import MeshPlan
from ...scheduler.verdicts import Aim
from ..output import report_console

if TYPE_CHECKING:
    from ...scheduler.cluster import Cluster, Distillation
    from .sweep import SweepPoint

ClusterFile = Annotated[
    Path, typer.Option("--cluster", metavar="FILE.yaml", help="Devices: kinds, counts, prices.")
]
JobFile = Annotated[
    Path, typer.Option("--job", metavar="FILE.yaml", help="The job: rates of its models, sizes.")
]
AimedAt = Annotated[Aim, typer.Option("--aim", help="What the plan optimizes.")]
Teachers = Annotated[
    int | None,
    typer.Option(min=1, show_default="the best number for the aim", help="Number of teachers."),
]
WhatIf = Annotated[
    str | None,
    typer.Option(
        "--what-if",
        metavar="KEY=A..B[/STEP]",
        help="Plan for several values: teachers=40..56, batch=32..256/32, p4.count=8..64, "
        "p4.bandwidth_bytes_per_s=1 Gbit/s..25 Gbit/s, ...",
    ),
]
Scenario = Annotated[
    Path | None,
    typer.Option(metavar="FILE.yaml", help="Write the mesh as a scenario for 'edl simulate'."),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=f"Plot throughput and cost over --what-if or teachers: {FORMATS}."
    ),
]


def plan(
    cluster: ClusterFile,
    job: JobFile,
    aim: AimedAt = "fastest",
    teachers: Teachers = None,
    what_if: WhatIf = None,
    as_json: AsJson = False,
    plot: Plot = None,
    scenario: Scenario = None,
) -> None:
    """Predict how many teachers a job needs, throughput, cost, and whether a mesh is worth it.

    Nothing is run: a model predicts everything from rates that you state or 'edl profile' measured.
    """
    import json

    from ...runtime.errors import UsageError
    from ...scheduler.cluster import Cluster
    from ...scheduler.planner import plan as make_plan
    from ..files import read
    from . import report
    from .job_file import load_job
    from .sweep import parse_sweep, plan_points

    devices, distillation = read(cluster, Cluster), load_job(job)
    if plot is not None:
        check_plot(plot)
    if scenario is not None:
        check_writable(scenario)
    sweep = None if what_if is None else parse_sweep(what_if, devices, distillation)
    try:
        mesh_plan = make_plan(devices, distillation, aim, teachers)
    except ValueError as error:
        raise UsageError(f"{cluster} with {job}: {error}") from error
    rows = [] if sweep is None else list(plan_points(sweep, devices, distillation, aim, teachers))
    key = "" if sweep is None else sweep.key
    if as_json:
        typer.echo(json.dumps(report.as_json(mesh_plan, key, rows), indent=2))
    else:
        _print(mesh_plan, key, rows)
        for note in _notes(devices, distillation):
            typer.echo(note)
    if plot is not None:
        points = rows or _by_teachers(devices, distillation, aim)
        report.draw(mesh_plan, key or "teachers", points, plot)
        typer.echo(f"plot written: {plot}", err=True)
    if scenario is not None:
        _write_scenario(scenario, mesh_plan, devices, distillation)


def _print(mesh_plan: MeshPlan, key: str, rows: list[SweepPoint]) -> None:
    import textwrap

    from . import report

    console = report_console()

    def say(text: str, indent: int) -> None:
        width = console.width if console.is_terminal else 10_000  # a pipe gets unwrapped lines
        lines = textwrap.wrap(text, width, subsequent_indent=" " * indent)
        console.print("\n".join(lines), soft_wrap=True)

    for line in report.plan_lines(mesh_plan):
        say(line, 12)
    console.print()
    console.print(report.comparison_table(mesh_plan))
    for line in report.excluded_lines(mesh_plan):
        say(line, 2)
    console.print()
    for line in report.verdict_lines(mesh_plan):
        say(line, 4)
    if rows:
        console.print()
        console.print(report.sweep_table(key, rows))


def _write_scenario(path: Path, mesh_plan: MeshPlan, cluster: Cluster, job: Distillation) -> None:
    from ...runtime.errors import UsageError
    from ..files import write
    from .scenario import scenario_of

    if mesh_plan.mesh is None or mesh_plan.prediction is None:
        raise UsageError(f"cannot write {path}: {mesh_plan.estimate('mesh').why_not}")
    rate = mesh_plan.prediction.samples_per_s
    heading = f"by `edl plan`, which predicts {rate:.5g} samples/s: `edl simulate {path.name}`"
    write(path, scenario_of(cluster, job, mesh_plan.mesh, mesh_plan.prediction), heading)
    typer.echo(f"scenario written: {path}", err=True)


def _notes(cluster: Cluster, job: Distillation) -> list[str]:
    """Return notes on devices that only the cluster or only the job names, perhaps misspelt."""
    known = {kind.name for kind in cluster.devices}
    rated = {*job.student, *job.teacher}
    notes = []
    if unused := sorted(rated - known):
        notes.append(f"note: the cluster has no devices {', '.join(unused)}, but the job has rates")
    if unrated := sorted(known - rated):
        notes.append(f"note: the job has no rate on {', '.join(unrated)}")
    return notes


def _by_teachers(cluster: Cluster, job: Distillation, aim: Aim) -> list[SweepPoint]:
    """Return points of a plot without --what-if: numbers of teachers that the cluster allows."""
    from .sweep import MAX_POINTS, Sweep, plan_points

    max_teachers = sum(kind.count for kind in cluster.devices if kind.may_be("teacher"))
    stride = max(1, -(-max_teachers // MAX_POINTS))
    values = tuple(float(count) for count in range(stride, max_teachers + 1, stride))
    return [
        point
        for point in plan_points(Sweep("teachers", values), cluster, job, aim)
        if point.plan is not None and point.plan.mesh is not None
    ]
