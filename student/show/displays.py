"""Displays of a training: a live one for terminals, and plain lines for everything else.

Any thread may call `line`; only one thread may call the other methods. A training goes on if its
output cannot be written: the disk is full, the terminal is closed, or no program reads the pipe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from rich.console import Console, Group
from rich.control import strip_control_codes
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...runtime.standard_streams import print_plainly
from ..messages import Progress
from .status import (
    TrainingStatus,
    figure_texts,
    format_bytes,
    format_count,
    format_duration,
    position_text,
    progress_texts,
    teachers_text,
)

_REFRESHES_PER_S: Final = 4
#: Width of a bar in characters.
_BAR_WIDTH: Final = 30


class Terminal:
    """A few live lines, below permanent lines.

    Args:
        console: a terminal.
        job: name of the training.
    """

    def __init__(self, console: Console, job: str) -> None:
        self._console, self._job = console, job
        self._status = TrainingStatus()
        self._lock = threading.Lock()
        # Output of ranks arrives through `line`; nothing else writes to this terminal.
        self._live = Live(
            get_renderable=self._render,
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        """Show that the ranks of a generation are ready.

        Args:
            generation: number of the generation.
            world: number of ranks on all nodes.
            step: number of steps taken.
            steps: steps of the whole training; 0: unknown.
        """
        with self._lock:
            self._status.begin(generation, world, step, steps)

    def progress(self, rank: int, progress: Progress) -> None:
        """Show a report of a rank of this node."""
        with self._lock:
            self._status.progress(rank, progress, time.monotonic())

    def waiting(self, what: str) -> None:
        """Show what the node waits for; empty: nothing."""
        with self._lock:
            self._status.node_waits_for = what

    def line(self, text: str) -> None:
        """Print a permanent line."""
        try:
            print_plainly(self._console, text)
        except OSError:
            self._console.quiet = True  # else the console keeps all text that it cannot print

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()

    def _render(self) -> Any:
        with self._lock:
            return render(self._status, self._job)


def render(status: TrainingStatus, job: str) -> Any:
    """Return a status as lines for rich: progress, losses, labels, and what the node waits for."""
    lines: list[Any] = [_progress(status, job)]
    if texts := [*figure_texts(status)]:
        lines.append(Text("  " + "   ".join(texts)))
    if (labels := _labels(status)) is not None:
        lines.append(labels)
    if status.waiting:
        lines.append(Text(f"  waiting for {status.waiting}", style="yellow"))
    return Group(*lines)


def _progress(status: TrainingStatus, job: str) -> Any:
    row = Table.grid(padding=(0, 2))
    cells: list[Any] = [Text(job, style="bold")]
    cells.append(
        ProgressBar(status.steps or None, status.step, width=_BAR_WIDTH, pulse=not status.steps)
    )
    total = f"/{status.steps}" if status.steps else ""
    cells.append(Text(f"step {status.step}{total}"))
    cells.append(Text(f"epoch {status.epoch}"))
    if status.samples_per_s:
        cells.append(Text(f"{format_count(status.samples_per_s)} samples/s"))
    if status.world > 1:
        cells.append(Text(f"{status.world} ranks"))
    if remaining := status.remaining_s:
        cells.append(Text(f"ETA {format_duration(remaining)}", style="cyan"))
    row.add_row(*cells)
    return row


def _labels(status: TrainingStatus) -> Any:
    row = Table.grid(padding=(0, 2))
    cells: list[Any] = []
    if (buffer := status.buffer) is not None:
        filled, limit = buffer
        cells += [Text("  buffer"), ProgressBar(limit, min(filled, limit), width=_BAR_WIDTH)]
        cells.append(Text(f"{format_bytes(filled)} of {format_bytes(limit)}"))
    if (text := teachers_text(status)) is not None:
        has_none = status.teachers is not None and not status.teachers[0]
        cells.append(Text(text, style="red" if has_none else ""))
    if not cells:
        return None
    row.add_row(*cells)
    return row


#: Seconds between lines of progress.
EVERY_S: Final = 10.0
#: Seconds without a step after which a line says what a rank waits for.
WAITS_S: Final = 5.0


class Plain:
    """Writes a line of progress at intervals, and a line for each other event.

    The methods are those of `Terminal`.

    Args:
        write: called with each line.
        every_s: seconds between lines of progress.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._clock = write, every_s, clock
        self._status = TrainingStatus()
        self._written_at: float | None = None
        self._written_step = 0
        self._waits_since: float | None = None
        self._wait_written = False

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        self._status.begin(generation, world, step, steps)
        total = f" of {steps}" if steps else ""
        ranks = "1 rank continues" if world == 1 else f"{world} ranks continue"
        self._write(f"generation {generation}: {ranks} after step {step}{total}")
        self._written_at, self._written_step = None, step
        self._waits_since, self._wait_written = None, False

    def progress(self, rank: int, progress: Progress) -> None:
        now = self._clock()
        before = self._status.step
        self._status.progress(rank, progress, now)
        self._note_wait(now, moved=self._status.step > before)
        due = self._written_at is None or now - self._written_at >= self._every_s
        if due and self._status.step > self._written_step:
            self._written_at = now
            self._write_progress()

    def waiting(self, what: str) -> None:
        self._status.node_waits_for = what
        if what:
            self._write(f"waiting for {what}")

    def line(self, text: str) -> None:
        self._write(text)

    def close(self) -> None:
        if self._status.step > self._written_step:
            self._write_progress()

    def _write_progress(self) -> None:
        self._written_step = self._status.step
        self._write("  ".join([position_text(self._status), *progress_texts(self._status)]))

    def _note_wait(self, now: float, moved: bool) -> None:
        """Write once what a rank waits for, if it waits for `WAITS_S`: short waits are normal."""
        waiting_for = self._status.waiting
        # `waiting` has written what the node waits for.
        if moved or not waiting_for or self._status.node_waits_for:
            self._waits_since, self._wait_written = None, False
        elif self._waits_since is None:
            self._waits_since = now
        elif not self._wait_written and now - self._waits_since >= WAITS_S:
            self._wait_written = True
            self._write(f"waiting for {waiting_for}")


Display: TypeAlias = Terminal | Plain


def open_display(console: Console, job: str) -> Display:
    """Return the display for a console; the caller closes it.

    Args:
        console: the console.
        job: name of the training.
    """
    if console.is_terminal and not console.is_dumb_terminal:  # a dumb terminal cannot redraw lines
        return Terminal(console, job)
    return Plain(lambda text: _write_line(console, text))


def _write_line(console: Console, text: str) -> None:
    """Write a line, or drop it if that fails.

    `Console.print` would keep the text for its next call, and end this thread if the output is a
    pipe that no program reads.
    """
    with suppress(OSError):
        console.file.write(f"{strip_control_codes(text)}\n")
        console.file.flush()
