"""A scenario from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .chance import Seeding
from .clock import Clock
from .control import Control
from .data_plane import DataPlane
from .result import Result
from .scenario import Scenario
from .summary import summary
from .trace import Trace

#: Events between two calls of `on_progress`.
PROGRESS_EVERY = 5_000


def simulate(
    scenario: Scenario,
    seeding: Seeding,
    on_progress: Callable[[float, float | None], None] | None = None,
    keep_batches: bool = False,
) -> Result:
    """Run a scenario.

    Args:
        scenario: what to run.
        seeding: makes a generator from a text that alone determines what it draws: pass the class
            `random.Random` (decisions have no randomness of their own, so it is given to them).
        on_progress: called now and then with the virtual seconds that have passed, and the share
            of the run that is done (0 to 1; None: not known).
        keep_batches: keep every request and step in the result.

    Returns:
        The same for the same scenario and seed, to the last bit.
    """
    clock = Clock()
    trace = Trace(clock, keep_batches)
    data = DataPlane()
    control = Control(scenario, seeding, clock, trace, data)
    control.begin()
    end_s = inf if scenario.duration_s is None else scenario.duration_s
    while clock.next_at <= end_s and not (control.is_over and end_s == inf):
        clock.step()
        if on_progress is not None and clock.events % PROGRESS_EVERY == 0:
            on_progress(clock.now, control.progress)
    if end_s < inf:
        clock.now = end_s
    return summary(control, data)
