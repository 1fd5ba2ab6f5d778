"""Progress of the demo: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

#: Number of parts of a stage after each of which a plain display prints a line.
PLAIN_PARTS = 4


class ProgressStage(Protocol):
    """A stage of the demo that is in progress."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the number of completed steps; with `total` also the number of all steps."""

    def note(self, text: str) -> None:
        """Set the text beside the bar."""


class ProgressDisplay(Protocol):
    """Shows the stages of the demo, and messages."""

    def stage(self, title: str, total: int) -> contextlib.AbstractContextManager[ProgressStage]:
        """Begin a stage of `total` steps; the context manager ends it."""

    def say(self, text: str) -> None:
        """Print a message."""


@contextlib.contextmanager
def open_display(console: Console) -> Generator[ProgressDisplay]:
    """Open a display with bars if the console is a terminal, with plain lines otherwise."""
    if not console.is_terminal:
        yield PlainDisplay(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield BarDisplay(progress)


class BarDisplay:
    """Shows a bar for each stage, below the messages."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Generator[ProgressStage]:
        task = self._progress.add_task(title, total=total, note="")
        yield _BarStage(self._progress, task)
        self._progress.update(task, note="")

    def say(self, text: str) -> None:
        self._progress.console.print(text)


class _BarStage:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reach(self, done: int, total: int | None = None) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        self._progress.update(self._task, note=text)


class PlainDisplay:
    """Prints a line when a stage begins, and after each of its quarters."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Generator[ProgressStage]:
        self.say(f"{title} ...")
        yield _PlainStage(self, title, total)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


class _PlainStage:
    def __init__(self, display: PlainDisplay, title: str, total: int) -> None:
        self._display = display
        self._title = title
        self._total = total
        self._part = 0
        self._note = ""

    def reach(self, done: int, total: int | None = None) -> None:
        self._total = total or self._total
        part = PLAIN_PARTS * done // max(1, self._total)
        if part > self._part:
            self._part = part
            note = f"  {self._note}" if self._note else ""
            self._display.say(f"{self._title}: {done}/{self._total}{note}")

    def note(self, text: str) -> None:
        self._note = text
