"""The command line of the simulator: `edl simulate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .report import Told

ScenarioFile = Annotated[
    Path,
    typer.Argument(metavar="SCENARIO.yaml", help="Students, teachers, links, faults: a mesh."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, show_default="the file's", help="Of all that is drawn."),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw throughput, teachers, buffers: .png, .svg, .pdf."),
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
    """Play a mesh in virtual time: how it would fare, what it would cost, what would break.

    The rules are the ones that a live mesh runs: who labels what, when to pull,
    who is assigned to whom, how many teachers there should be. Devices and
    networks are those of the file.

    The same file and seed give the same run, to the last event: its hash says so.

    docs/simulator.md says what stands in a scenario; examples/scenarios/ has some.
    """
    import json

    from ...errors import UsageError
    from ...scheduler.simulator.scenario import Scenario
    from ..files import read
    from .running import play

    for path in (plot, trace):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"there is no directory {path.parent} to write {path.name} to")
    if plot is not None:
        from .picture import check

        check(plot)
    described = read(scenario, Scenario)
    if seed is not None:
        described = replace(described, seed=seed)
    if not described.name:
        described = replace(described, name=scenario.stem)
    told = play(described, str(scenario), keep_batches=trace is not None)
    if as_json:
        from .report import as_json as fields

        typer.echo(json.dumps(fields(told), indent=2))
    else:
        _print(told)
    _draw(told, plot, trace)


def _print(told: Told) -> None:
    import sys

    from rich.console import Console

    from .report import show

    # A table that is wrapped into a pipe of 80 columns cannot be read by anyone.
    show(told, Console(width=None if sys.stdout.isatty() else 132, markup=False))


def _draw(told: Told, plot: Path | None, trace: Path | None) -> None:
    if plot is not None:
        from .picture import draw

        draw(told.result, told.scenario.name, plot)
        typer.echo(f"plot written: {plot}", err=True)
    if trace is not None:
        from .timeline import write

        write(told.result, trace)
        typer.echo(f"timeline written: {trace}; https://ui.perfetto.dev opens it", err=True)
