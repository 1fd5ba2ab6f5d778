"""Teachers whose devices are emulated, each with the rate that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from ...mesh.local import TEACHER_READY
from ...runtime.supervise import Process, python_command, start
from . import ROWS, SERVICE

#: Takes 64 numbers of a sample.
CHEAP: Final = "edl.benchmarks.teachers.models:cheap"
#: Takes pictures of 3 x 224 x 224.
PICTURES: Final = "edl.benchmarks.teachers.models:pictures"
_READY_S: Final = 120.0


def paced(batch_s: float, rows: int = ROWS) -> tuple[str, ...]:
    """Options of a teacher that takes `batch_s` seconds for each batch of `rows`."""
    return ("--backend", "paced", "--rate", f"{rows / batch_s:.10g}")


def start_teachers(
    ending: ExitStack, options: Sequence[tuple[str, ...]], model: str = CHEAP
) -> list[tuple[str, Process]]:
    """One for each of `options`, all at once, no coordinator.

    Args:
        ending: stops them.
        options: of `edl teacher serve`.
        model: a factory.

    Returns:
        The address and the process of each.

    Raises:
        ProcessFailed: one does not start.
    """
    words = ("teacher", "serve", "--service", SERVICE, "--model", model, "--micro-batch", ROWS)
    started = []
    for number, of_this_one in enumerate(options):
        process = start(python_command(f"teacher {number}", "edl", *words, *of_this_one))
        ending.callback(process.stop)
        started.append(process)
    return [(process.expect(TEACHER_READY, _READY_S)[3], process) for process in started]
