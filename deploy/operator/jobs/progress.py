"""Reads the progress of the trainings of DistillJobs, which their ranks report in Redis."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from ....coordinator.jobs import JobBoard, open_board
from ....mesh.jobs.job_run import read_progress
from ....runtime.errors import EdlError
from .ledger import ObservedProgress

log = logging.getLogger(__name__)

#: Seconds before a Redis that did not answer is asked again, as other jobs wait meanwhile.
_PAUSE_S: Final = 30.0


class ProgressReader:
    """Reads progress; keeps connections. Use it from one thread.

    Without Redis the progress is unknown, and a job counts as steady.

    Args:
        opening: opens the job board at a Redis URL.
        clock: returns seconds that do not go back.
    """

    def __init__(
        self,
        opening: Callable[[str], JobBoard] = open_board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._clock = opening, clock
        self._boards: dict[str, JobBoard] = {}
        self._silent: dict[str, float] = {}

    def read(self, url: str, job: str, nodes: int) -> ObservedProgress:
        """Return the progress of one training.

        Args:
            url: URL of its Redis.
            job: its name.
            nodes: number of its nodes.
        """
        if self._silent.get(url, float("-inf")) > self._clock():
            return ObservedProgress()
        try:
            if url not in self._boards:
                self._boards[url] = self._open(url)
            found = read_progress(self._boards[url], job, nodes)
        except EdlError as error:
            level = logging.DEBUG if url in self._silent else logging.WARNING  # said once
            log.log(level, "cannot read the progress of trainings: %s", error)
            self._silent[url] = self._clock() + _PAUSE_S
            return ObservedProgress()
        self._silent.pop(url, None)
        return ObservedProgress(found.progress, found.steady)

    def close(self) -> None:
        """Close all connections."""
        for board in self._boards.values():
            with contextlib.suppress(EdlError):
                board.close()
        self._boards.clear()
