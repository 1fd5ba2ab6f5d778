"""How far the trainings of DistillJobs are, as their ranks tell it on the job board in Redis."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from ....coordinator.jobs import JobBoard, open_board
from ....errors import EdlError
from ....mesh.jobs.job_run import read_progress
from .ledger import Progress

log = logging.getLogger(__name__)

#: A Redis that did not answer is not asked for so long, seconds: others wait meanwhile.
_PAUSE_S: Final = 30.0


class Trainings:
    """Looks; keeps connections. Used by one thread.

    Where Redis cannot be reached nothing is known: jobs are shared as if they were steady.

    Args:
        opening: gives the job board at a Redis URL.
        clock: seconds that do not go back.
    """

    def __init__(
        self,
        opening: Callable[[str], JobBoard] = open_board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._clock = opening, clock
        self._boards: dict[str, JobBoard] = {}
        self._silent: dict[str, float] = {}

    def look(self, url: str, job: str, nodes: int) -> Progress:
        """One training.

        Args:
            url: of the Redis in which its nodes meet.
            job: its name.
            nodes: that it has.
        """
        if self._silent.get(url, float("-inf")) > self._clock():
            return Progress()
        try:
            if url not in self._boards:
                self._boards[url] = self._open(url)
            sight = read_progress(self._boards[url], job, nodes)
        except EdlError as error:
            level = logging.DEBUG if url in self._silent else logging.WARNING  # said once
            log.log(level, "how far trainings are is not known: %s", error)
            self._silent[url] = self._clock() + _PAUSE_S
            return Progress()
        self._silent.pop(url, None)
        return Progress(sight.progress, sight.steady)

    def close(self) -> None:
        """End all connections."""
        for board in self._boards.values():
            with contextlib.suppress(EdlError):
                board.close()
        self._boards.clear()
