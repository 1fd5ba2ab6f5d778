"""The command `edl simulate`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from ...runtime.errors import UsageError
from ...runtime.files import FORMATS, check_plot, check_writable
from ...runtime.structured_option import AsJson
from ...scheduler.simulator import Scenario
from ...scheduler.simulator import simulate as run_simulation
from ..output import format_duration
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


def simulate(
    scenario: ScenarioFile,
    seed: Seed = None,
    plot: Plot = None,
    trace: Trace = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a mesh in virtual time: its throughput, its cost, and the effect of faults.

    The code of a live mesh makes all decisions: which teacher labels which batch,
    when to pull, assignments, the number of teachers. Devices and networks are
    models with the parameters of the file.

    The same file and seed give the same run, event by event, and the same hash.

    docs/how-to/plan.md describes scenarios; examples/scenarios/ has some.
    """
    import json

    from ..files import read
    from .report import as_json as report_json
    from .report import draw, print_report

    if plot is not None:
        check_plot(plot)
    if trace is not None:
        check_writable(trace)
    loaded = read(scenario, Scenario)
    if seed is not None:
        loaded = replace(loaded, seed=seed)
    if not loaded.name:
        loaded = replace(loaded, name=scenario.stem)
    report = _simulate(loaded, str(scenario), keep_batches=trace is not None)
    if as_json:
        typer.echo(json.dumps(report_json(report), indent=2))
    else:
        print_report(report)
    if plot is not None:
        draw(report.result, report.scenario.name, plot)
        typer.echo(f"plot written: {plot}", err=True)
    if trace is not None:
        from .timeline import write_timeline

        write_timeline(report.result, trace)
        typer.echo(f"timeline written: {trace}; https://ui.perfetto.dev opens it", err=True)


#: Seconds between lines of progress without a terminal.
LINE_INTERVAL_S: Final = 10.0

#: Called with the virtual seconds so far, and the finished share of the run (None: unknown).
OnProgress = Callable[[float, float | None], None]


def _simulate(scenario: Scenario, name: str, *, keep_batches: bool = False) -> SimulationReport:
    """Simulate a scenario, and show the progress on stderr.

    Args:
        scenario: the scenario.
        name: path of the scenario file, for errors.
        keep_batches: keep all steps and requests, for the timeline.

    Raises:
        UsageError: the scenario never ends.
    """
    began_s = time.perf_counter()
    try:
        with _progress(scenario.duration_s) as on_progress:
            result = run_simulation(scenario, random.Random, on_progress, keep_batches)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    return SimulationReport(scenario, result, time.perf_counter() - began_s)


@contextmanager
def _progress(duration_s: float | None) -> Iterator[OnProgress]:
    """Show a progress bar if stderr is a terminal, otherwise a line every `LINE_INTERVAL_S`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    terminal = sys.stderr.isatty()
    total_text = "" if duration_s is None else f" of {format_duration(duration_s)}"
    last_line_s = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    console = Console(stderr=True, quiet=not terminal)
    with Progress(*columns, console=console, transient=True, disable=not terminal) as bar:
        task = bar.add_task("simulating", total=None)

        def show(now: float, share: float | None) -> None:
            nonlocal last_line_s
            text = f"simulated {format_duration(now)}{total_text}"
            if terminal:
                total = None if share is None else 1.0
                bar.update(task, description=text, completed=share, total=total)
            elif time.monotonic() - last_line_s >= LINE_INTERVAL_S:
                last_line_s = time.monotonic()
                part = "" if share is None else f" ({100 * share:.0f} %)"
                print(f"{text}{part}", file=sys.stderr, flush=True)

        yield show
