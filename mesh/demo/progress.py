"""What the demo says while it works: a bar at a terminal, plain lines elsewhere."""

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

#: Plain output says how far a stage is at each of so many parts of it.
PLAIN_PARTS = 4


class Stage(Protocol):
    """One piece of work under way."""

    def reach(self, done: int, total: int | None = None) -> None:
        """So much of it is done; of a new total, if one is given."""

    def note(self, text: str) -> None:
        """What is special just now, beside the bar."""


class Display(Protocol):
    """Where the demo says what it does."""

    def stage(self, title: str, total: int) -> contextlib.AbstractContextManager[Stage]:
        """A piece of work of `total` steps."""

    def say(self, text: str) -> None:
        """One line that stays."""


@contextlib.contextmanager
def open_display(console: Console) -> Generator[Display]:
    """The display that suits `console`."""
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
    """One bar per stage, below the lines that were said."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Generator[Stage]:
        """Begin a bar; it stays when its work is done."""
        task = self._progress.add_task(title, total=total, note="")
        yield _Bar(self._progress, task)
        self._progress.update(task, note="")

    def say(self, text: str) -> None:
        self._progress.console.print(text)


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reach(self, done: int, total: int | None = None) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        self._progress.update(self._task, note=text)


class PlainDisplay:
    """A line when a stage begins and at each quarter of it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def stage(self, title: str, total: int) -> Generator[Stage]:
        """Begin a stage."""
        self.say(f"{title} ...")
        yield _Lines(self, title, total)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


class _Lines:
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
