"""Simulation with a display of its progress on stderr."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ...runtime.errors import UsageError
from ...scheduler.simulator import simulate
from ...scheduler.simulator.scenario import Scenario
from .report import SimulationReport, format_time

#: Seconds between lines of progress without a terminal.
LINE_INTERVAL_S: Final = 10.0

Progress = Callable[[float, float | None], None]


def simulate_with_progress(
    scenario: Scenario, name: str, *, keep_batches: bool = False
) -> SimulationReport:
    """Simulate a scenario, and show the progress on stderr.

    Args:
        scenario: the scenario.
        name: name of the scenario for errors.
        keep_batches: keep all steps and requests, for the timeline.

    Raises:
        UsageError: the scenario never ends.
    """
    began_s = time.perf_counter()
    try:
        with _progress(scenario.duration_s) as on_progress:
            result = simulate(scenario, random.Random, on_progress, keep_batches)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    return SimulationReport(scenario, result, time.perf_counter() - began_s)


@contextmanager
def _progress(duration_s: float | None) -> Iterator[Progress]:
    """Show a bar in a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _ProgressLines(duration_s)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)

        def show(now: float, share: float | None) -> None:
            total = None if share is None else 1.0
            bar.update(
                task, description=_progress_text(now, duration_s), completed=share, total=total
            )

        yield show


class _ProgressLines:
    """Prints a line to stderr every `LINE_INTERVAL_S`."""

    def __init__(self, duration_s: float | None) -> None:
        self._duration_s = duration_s
        self._printed_s = time.monotonic()

    def __call__(self, now: float, share: float | None) -> None:
        if time.monotonic() - self._printed_s < LINE_INTERVAL_S:
            return
        self._printed_s = time.monotonic()
        part = "" if share is None else f" ({100 * share:.0f} %)"
        print(f"{_progress_text(now, self._duration_s)}{part}", file=sys.stderr, flush=True)


def _progress_text(now: float, duration_s: float | None) -> str:
    of = "" if duration_s is None else f" of {format_time(duration_s)}"
    return f"simulated {format_time(now)}{of}"
