"""A training as plain lines: for logs, and wherever there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..messages import Progress
from .picture import Picture, parts, place

#: A line of progress each so many seconds.
EVERY_S: Final = 10.0
#: What ranks wait for is said when no step was taken for so many seconds.
WAITS_S: Final = 5.0


class Plain:
    """One line now and then, and one for whatever changes.

    Args:
        write: called with each line.
        every_s: seconds between two lines of progress.
        clock: seconds that do not go back.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._clock = write, every_s, clock
        self._picture = Picture()
        self._written_at: float | None = None
        self._written_step = 0
        self._waits_since: float | None = None
        self._said = False

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        self._picture.begin(generation, world, step, steps)
        of = f" of {steps}" if steps else ""
        ranks = "1 rank goes" if world == 1 else f"{world} ranks go"
        self._write(f"generation {generation}: {ranks} on behind step {step}{of}")
        self._written_at, self._written_step = None, step

    def progress(self, rank: int, progress: Progress) -> None:
        now = self._clock()
        before = self._picture.step
        self._picture.progress(rank, progress, now)
        self._wait(now, moved=self._picture.step > before)
        due = self._written_at is None or now - self._written_at >= self._every_s
        if due and self._picture.step > self._written_step:
            self._written_at = now
            self._tell()

    def waiting(self, what: str) -> None:
        self._picture.waits = what
        if what:
            self._write(f"waiting for {what}")

    def line(self, text: str) -> None:
        self._write(text)

    def close(self) -> None:
        if self._picture.step > self._written_step:
            self._tell()

    def _tell(self) -> None:
        self._written_step = self._picture.step
        self._write("  ".join([place(self._picture), *parts(self._picture)]))

    def _wait(self, now: float, moved: bool) -> None:
        """Say it once when ranks wait for long; for a moment they do all the time."""
        waits = self._picture.waiting
        if moved or not waits:
            self._waits_since, self._said = None, False
        elif self._waits_since is None:
            self._waits_since = now
        elif not self._said and now - self._waits_since >= WAITS_S:
            self._said = True
            self._write(f"waiting for {waits}")
