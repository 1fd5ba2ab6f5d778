"""Plays a scenario for people: chooses the data plane, shows how far it is."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from ...errors import UsageError
from ...scheduler.simulator import simulate
from ...scheduler.simulator.result import PlaneName
from ...scheduler.simulator.scenario import Scenario
from .report import Told, clock

#: Up to so many batches each of them is followed, where nobody says how: that takes a minute.
EXACT_BATCHES: Final = 50_000
#: Seconds between two lines of progress where there is no terminal.
LINE_EVERY_S: Final = 10.0

Progress = Callable[[float, float | None], None]


def choose_plane(scenario: Scenario, fluid: bool | None) -> tuple[PlaneName, str]:
    """How batches are followed, and why; `fluid` is what the user says (None: nothing)."""
    if fluid is not None:
        return ("fluid", "as asked") if fluid else ("exact", "as asked")
    batches = most_batches(scenario)
    if batches <= EXACT_BATCHES:
        return "exact", "every batch is followed"
    return "fluid", f"as there may be {batches:,.0f} batches; --exact follows each"


def most_batches(scenario: Scenario) -> float:
    """Batches that all students train at most."""
    total = 0.0
    for group in scenario.students:
        limit = scenario.batches_of(group)
        end_s = min(
            inf if scenario.duration_s is None else scenario.duration_s,
            inf if group.leave_s is None else group.leave_s,
        )
        fastest_s = min([group.t_s_s, *(change.to_s for change in group.changes)])
        step_s = group.overhead_s + group.batch * fastest_s
        there_s = max(end_s - group.join_s, 0.0)
        total += group.count * min(inf if limit is None else limit, there_s / step_s)
    return total


def play(
    scenario: Scenario, plane: PlaneName, why: str, name: str, *, keep_batches: bool = False
) -> Told:
    """Simulate, and show on stderr how far it is while it lasts.

    Args:
        scenario: what to play.
        plane: how batches are followed.
        why: of that, in words.
        name: what the scenario is called in errors.
        keep_batches: keep each step and request, for the timeline.

    Raises:
        UsageError: the scenario never comes to its end.
    """
    began_s = time.perf_counter()
    try:
        with _progress(scenario.duration_s) as on_progress:
            result = simulate(scenario, random.Random, plane, on_progress, keep_batches)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    return Told(scenario, result, time.perf_counter() - began_s, why)


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
