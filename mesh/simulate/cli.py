"""The command `edl simulate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..plots import FORMATS

if TYPE_CHECKING:
    from .report import SimulationReport

ScenarioFile = Annotated[
    Path,
    typer.Argument(metavar="SCENARIO.yaml", help="A mesh: students, teachers, links, faults."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, show_default="the file's", help="Seed of the random numbers."),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"Plot throughput, teachers and buffers: {FORMATS}."),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json",
        help="Write a timeline for https://ui.perfetto.dev: events, counters, each step and "
        "request.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def simulate(
    scenario: ScenarioFile,
    seed: Seed = None,
    plot: Plot = None,
    trace: Trace = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a mesh in virtual time: its throughput, its cost, and the effect of faults.

    Its decisions are made by the code of a live mesh: which teacher labels which
    batch, when to pull, assignments, the number of teachers. Devices and networks
    are models with the parameters of the file.

    The same file and seed give the same run, event by event, and the same hash.

    docs/how-to/plan.md describes scenarios; examples/scenarios/ has some.
    """
    import json

    from ...scheduler.simulator.scenario import Scenario
    from ..files import read
    from ..output_files import check_writable
    from .progress import simulate_with_progress

    if plot is not None:
        from ..plots import check_plot

        check_plot(plot)
    if trace is not None:
        check_writable(trace)
    described = read(scenario, Scenario)
    if seed is not None:
        described = replace(described, seed=seed)
    if not described.name:
        described = replace(described, name=scenario.stem)
    report = simulate_with_progress(described, str(scenario), keep_batches=trace is not None)
    if as_json:
        from .report import as_json as fields

        typer.echo(json.dumps(fields(report), indent=2))
    else:
        _print(report)
    _draw(report, plot, trace)


def _print(report: SimulationReport) -> None:
    import sys

    from rich.console import Console

    from .report import print_report

    # In a pipe, rich assumes 80 columns and would wrap the table.
    print_report(report, Console(width=None if sys.stdout.isatty() else 132, markup=False))


def _draw(report: SimulationReport, plot: Path | None, trace: Path | None) -> None:
    if plot is not None:
        from .plot import draw

        draw(report.result, report.scenario.name, plot)
        typer.echo(f"plot written: {plot}", err=True)
    if trace is not None:
        from .timeline import write_timeline

        write_timeline(report.result, trace)
        typer.echo(f"timeline written: {trace}; https://ui.perfetto.dev opens it", err=True)
