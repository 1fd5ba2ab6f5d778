"""What a user sees of a training: a picture at a terminal, plain lines elsewhere, event files.

`open_display` gives what suits; each display hears the same few things from the supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..messages import Progress

if TYPE_CHECKING:
    from rich.console import Console


class Display(Protocol):
    """Hears what happens to the training; `line` is called by any thread, all else by one."""

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        """The ranks of a generation are ready to go on behind `step`.

        Args:
            generation: its number.
            world: ranks of all nodes together.
            step: steps that are taken.
            steps: of the whole training; 0: not known.
        """

    def progress(self, rank: int, progress: Progress) -> None:
        """A rank of this node told of a step."""

    def waiting(self, what: str) -> None:
        """The node waits for this; empty: for nothing."""

    def line(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Nothing follows."""


class Several:
    """Displays that hear the same."""

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
    """The display that suits a console; it is to be closed.

    Args:
        console: where it shows.
        job: name of the training.
        events: folder for event files of TensorBoard; None: none are written.

    Raises:
        UsageError: event files are wanted, and cannot be written.
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
    """A line as it is, whatever brackets others wrote into it."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
