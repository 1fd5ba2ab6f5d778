"""Displays of a training: live at a terminal, plain lines elsewhere; and event files."""

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


def open_display(console: Console, job: str) -> Display:
    """Return the display for a console; the caller closes it.

    Args:
        console: the console.
        job: name of the training.
    """
    from .displays import Plain, Terminal

    if console.is_terminal:
        return Terminal(console, job)
    return Plain(lambda text: print_plainly(console, text))


def print_plainly(console: Console, text: str) -> None:
    """Print a line unchanged, without interpreting brackets as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
