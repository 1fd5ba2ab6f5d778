"""Displays of a training: live at a terminal, plain lines elsewhere, event files.

`open_display` selects one; the supervisor calls the same methods of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..messages import Progress

if TYPE_CHECKING:
    from rich.console import Console


class Display(Protocol):
    """Shows a training. Any thread may call `line`; only one thread calls the other methods."""

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        """Show that the ranks of a generation are ready.

        Args:
            generation: number of the generation.
            world: number of ranks on all nodes.
            step: number of steps taken.
            steps: steps of the whole training; 0: unknown.
        """

    def progress(self, rank: int, progress: Progress) -> None:
        """Show a report of a rank of this node."""

    def waiting(self, what: str) -> None:
        """Show what the node waits for; empty: nothing."""

    def line(self, text: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """End the display."""


class Several:
    """Passes every call to several displays."""

    def __init__(self, *displays: Display) -> None:
        self._displays = displays

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        for one in self._displays:
            one.begin(generation, world, step, steps)

    def progress(self, rank: int, progress: Progress) -> None:
        for one in self._displays:
            one.progress(rank, progress)

    def waiting(self, what: str) -> None:
        for one in self._displays:
            one.waiting(what)

    def line(self, text: str) -> None:
        for one in self._displays:
            one.line(text)

    def close(self) -> None:
        for one in self._displays:
            one.close()


def open_display(console: Console, job: str, events: str | None = None) -> Display:
    """Return the display for a console; the caller closes it.

    Args:
        console: the console.
        job: name of the training.
        events: folder of event files of TensorBoard; None: write none.

    Raises:
        UsageError: event files cannot be written.
    """
    files: list[Display] = []
    if events is not None:
        from .events import EventFiles

        files.append(EventFiles(events))
    from .displays import Plain, Terminal

    if console.is_terminal:
        return Several(Terminal(console, job), *files)
    return Several(Plain(lambda text: print_plainly(console, text)), *files)


def print_plainly(console: Console, text: str) -> None:
    """Print a line unchanged, without interpreting brackets as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
