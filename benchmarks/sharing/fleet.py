"""Fleets of elastic jobs: `edl agent jobs` as a process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from ...runtime.supervise import python_command, start

log = logging.getLogger(__name__)

Mode = Literal["elastic", "gang"]
_START_S: Final = 90.0
_END_S: Final = 30.0


@contextmanager
def fleet(redis: str, folder: Path, *, mode: Mode, slots: int, freeze_s: float) -> Iterator[None]:
    """Run a fleet while the body runs; stopping it stops its nodes.

    Args:
        redis: URL of its Redis.
        folder: folder for its log, and for the files of its jobs.
        mode: how it shares its slots.
        slots: number of slots.
        freeze_s: seconds after a change for which a job keeps its nodes, unless it must make room.

    Raises:
        ProcessFailed: it does not start.
    """
    command = python_command(
        "fleet", "edl", "agent", "jobs", "--slots", slots,
        "--share", f"mode={mode},freeze={freeze_s}", "--folder", folder / mode,
        "--redis", redis, log=folder / "fleet.log",
    )  # fmt: skip
    process = start(command, echo=lambda line: log.debug("fleet: %s", line))
    try:
        process.expect("runs jobs on", _START_S)
        yield
    finally:
        process.stop(grace_s=_END_S)
