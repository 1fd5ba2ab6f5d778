"""Processes of teachers, with emulated devices of stated rates or with other options."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from ...mesh.local import TEACHER_READY
from ...runtime.supervise import Process, python_command, start
from . import ROWS, SERVICE

#: Factory of a model that takes 64 numbers per sample.
CHEAP: Final = "edl.benchmarks.teachers.models:cheap"
#: Factory of a model that takes images of 3 x 224 x 224.
PICTURES: Final = "edl.benchmarks.teachers.models:pictures"
_READY_S: Final = 120.0


def paced(batch_s: float, rows: int = ROWS) -> tuple[str, ...]:
    """Return the options of a teacher that takes `batch_s` seconds for each batch of `rows`."""
    return ("--backend", f"paced,rate={rows / batch_s:.10g}")


def start_teachers(
    stack: ExitStack, options: Sequence[tuple[str, ...]], model: str = CHEAP
) -> list[tuple[str, Process]]:
    """Start teachers at the same time, without a coordinator, and wait until they are ready.

    Args:
        stack: stops the teachers when it is closed.
        options: further options of `edl teacher serve`, for each teacher.
        model: factory or path of the model.

    Returns:
        The address and the process of each teacher.

    Raises:
        ProcessFailed: a teacher does not start.
    """
    serve = ("teacher", "serve", "--service", SERVICE, "--model", model, "--micro-batch", ROWS)
    started = []
    for number, teacher_options in enumerate(options):
        words = (*serve, *teacher_options)
        process = start(python_command(f"teacher {number}", "edl", *words, isolated=True))
        stack.callback(process.stop)
        started.append(process)
    return [(process.expect(TEACHER_READY, _READY_S)[3], process) for process in started]
