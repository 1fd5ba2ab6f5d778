"""Plays a scenario for people: shows how far it is."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ...errors import UsageError
from ...scheduler.simulator import simulate
from ...scheduler.simulator.scenario import Scenario
from .report import Told, clock

#: Seconds between two lines of progress where there is no terminal.
LINE_EVERY_S: Final = 10.0

Progress = Callable[[float, float | None], None]


def play(scenario: Scenario, name: str, *, keep_batches: bool = False) -> Told:
    """Simulate, and show on stderr how far it is while it lasts.

    Args:
        scenario: what to play.
        name: what the scenario is called in errors.
        keep_batches: keep each step and request, for the timeline.

    Raises:
        UsageError: the scenario never comes to its end.
    """
    began_s = time.perf_counter()
    try:
        with _progress(scenario.duration_s) as on_progress:
            result = simulate(scenario, random.Random, on_progress, keep_batches)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    return Told(scenario, result, time.perf_counter() - began_s)


@contextmanager
def _progress(duration_s: float | None) -> Iterator[Progress]:
    """A bar at a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines(duration_s)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulates", total=None)

        def show(now: float, share: float | None) -> None:
            total = None if share is None else 1.0
            bar.update(task, description=_so_far(now, duration_s), completed=share, total=total)

        yield show


class _Lines:
    """Tells on stderr, every ten seconds."""

    def __init__(self, duration_s: float | None) -> None:
        self._duration_s = duration_s
        self._told_s = time.monotonic()

    def __call__(self, now: float, share: float | None) -> None:
        if time.monotonic() - self._told_s < LINE_EVERY_S:
            return
        self._told_s = time.monotonic()
        part = "" if share is None else f" ({100 * share:.0f} %)"
        print(f"{_so_far(now, self._duration_s)}{part}", file=sys.stderr, flush=True)


def _so_far(now: float, duration_s: float | None) -> str:
    of = "" if duration_s is None else f" of {clock(duration_s)}"
    return f"simulated {clock(now)}{of}"
