"""Progress of the demo: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

#: Number of equal parts of a stage. Without bars, a line is printed after each part.
PLAIN_PARTS = 4


class ProgressDisplay:
    """Shows the stages of the demo, and messages.

    Args:
        console: console for the messages.
        bars: bars of the stages, below the messages; None: print lines instead.
        check: called by each `ProgressStage.reach`; an exception from it ends the stage.
    """

    def __init__(self, console: Console, bars: Progress | None, check: Callable[[], None]) -> None:
        self._console, self._bars, self.check = console, bars, check

    @contextlib.contextmanager
    def stage(self, title: str, total: int, *, every: int = 1) -> Generator[ProgressStage]:
        """Show a stage of `total` steps while the body runs; update it after each `every` steps."""
        stage = ProgressStage(self, self._bars, title, total, every)
        yield stage
        stage.note("")

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=self._bars is None)


class ProgressStage:
    """A stage of the demo that is in progress: a bar, or a line at its start and each quarter."""

    def __init__(
        self, display: ProgressDisplay, bars: Progress | None, title: str, total: int, every: int
    ) -> None:
        self._display, self._bars, self._title, self._total = display, bars, title, total
        self._every = every
        self._part, self._note = 0, ""
        if bars is None:
            display.say(f"{title} ...")
        else:
            self._task = bars.add_task(title, total=total, note="")

    def reach(self, done: int, total: int | None = None) -> None:
        """Set the number of completed steps; with `total` also the number of all steps."""
        self._display.check()
        self._total = total or self._total
        if done % self._every and done != self._total:
            return
        if self._bars is not None:
            self._bars.update(self._task, completed=done, total=total)
            return
        part = PLAIN_PARTS * done // max(1, self._total)
        if part > self._part:
            self._part = part
            note = f"  {self._note}" if self._note else ""
            self._display.say(f"{self._title}: {done}/{self._total}{note}")

    def note(self, text: str) -> None:
        """Set the text beside the bar, or at the end of the lines."""
        self._note = text
        if self._bars is not None:
            self._bars.update(self._task, note=text)


@contextlib.contextmanager
def open_display(console: Console, check: Callable[[], None]) -> Generator[ProgressDisplay]:
    """Open a display with bars if the console is a terminal, with plain lines otherwise."""
    if not console.is_terminal:
        yield ProgressDisplay(console, None, check)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as bars:
        yield ProgressDisplay(console, bars, check)
