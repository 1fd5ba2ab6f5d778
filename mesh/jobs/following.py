"""Goes on reading about a job until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ...coordinator.queue import Progress, QueueBoard, QueuedJob
from ...coordinator.queue.records import PIECES_KEPT
from ...errors import UnavailableError

if TYPE_CHECKING:
    from .backend import JobBackend

_LOOK_S: Final = 0.25


def log_lines(board: QueueBoard, job: QueuedJob, follow: bool) -> Iterator[str]:
    """What nodes of a job printed, as far as it is kept.

    Args:
        board: of its queue.
        job: which.
        follow: go on until it has ended.
    """
    since = ""
    while True:
        over = not follow or ended(board, job) is not None  # first: what follows is the rest
        while pieces := board.lines(job.name, since, PIECES_KEPT):
            since = pieces[-1].entry_id
            for piece in pieces:
                yield from map(str, piece.body.get("lines", ()))
        if over:
            return
        time.sleep(_LOOK_S)


def wait_for_end(backend: JobBackend, job: QueuedJob, timeout_s: float) -> Progress:
    """How a job ended, wherever it runs.

    Raises:
        UnavailableError: it has not within `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    while (end := backend.ended(job)) is None:
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"job {job.name} has not ended in {timeout_s:g} s; 'edl job list' says why"
            )
        time.sleep(_LOOK_S)
    return end


def ended(board: QueueBoard, job: QueuedJob) -> Progress | None:
    """How it ended; None while it has not. One whose name another has by now has ended."""
    found = next((one for one in board.jobs() if one.name == job.name), None)
    if found is None or found.number != job.number:
        return Progress("stopped", reason="the queue does not have it any more")
    return found.progress if found.progress.ended else None
