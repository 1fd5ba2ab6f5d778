"""Display of a mesh: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...coordinator.store.redis_url import masked
from ...runtime.errors import UsageError
from ...runtime.standard_streams import escape_control_characters
from . import messages
from .mesh_state import ProcessState
from .runner import MeshView, RunningProcess

_PER_S: Final = 4
_STYLES: Final = {"ready": "green", "runs": "green", "done": "green", "failed": "red"}


class OutputFilter:
    """Selects the processes with output to show.

    Args:
        names: names of processes, services or students; empty: all processes; None: no process.
        members: service or student of each process, by the name of the process.

    Raises:
        UsageError: a name is unknown.
    """

    def __init__(self, names: Collection[str] | None, members: dict[str, str]) -> None:
        for name in names or ():
            if name not in members and name not in members.values():
                there = ", ".join(dict.fromkeys([*members.values(), *members]))
                raise UsageError(f"nothing here is called {name!r}; there are: {there}")
        chosen = [
            name
            for name, group in members.items()
            if names is not None and (not names or name in names or group in names)
        ]
        self.names: frozenset[str] = frozenset(chosen)
        self._width = max(map(len, chosen), default=0)

    def prefixed(self, name: str, line: str) -> str | None:
        """Return the line after the name of its process; None: do not show it."""
        return f"{name:<{self._width}} | {line}" if name in self.names else None


class LineDisplay:
    """Displays lines. Thread-safe.

    Args:
        write: called with each line, by one thread at a time.
        follow: selects the output to show.
    """

    def __init__(self, write: Callable[[str], None], follow: OutputFilter) -> None:
        self._write, self._follow = write, follow
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            self._write(text)

    def show(self, view: MeshView) -> None:
        """Do nothing: the state is only shown in a terminal."""

    def print_output(self, name: str, line: str) -> None:
        if (text := self._follow.prefixed(name, line)) is not None:
            self.say(escape_control_characters(text))


class TerminalDisplay(LineDisplay):
    """Displays lines, and a live table of the mesh below them.

    Args:
        console: console of a terminal.
        title: name of the mesh.
        follow: selects the output to show.
    """

    def __init__(self, console: Console, title: str, follow: OutputFilter) -> None:
        super().__init__(lambda text: print_plainly(console, text), follow)
        self._title = title
        self._view: MeshView | None = None
        self._live = Live(
            get_renderable=self._render,
            console=console,
            refresh_per_second=_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def show(self, view: MeshView) -> None:
        self._view = view

    def _render(self) -> Any:
        return Text("") if self._view is None else render(self._view, self._title)


@contextmanager
def open_display(
    console: Console, title: str, follow: OutputFilter, write: Callable[[str], None]
) -> Generator[LineDisplay]:
    """Open a display for a console; if the console is no terminal, `write` gets the lines."""
    if not console.is_terminal:
        yield LineDisplay(write, follow)
        return
    terminal = TerminalDisplay(console, title, follow)
    terminal.start()
    try:
        yield terminal
    finally:
        terminal.stop()


def render(view: MeshView, title: str) -> Any:
    """Return a head line and a table with a row for each process."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(5):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for one in view.mesh.processes:
        table.add_row(*_row(one, view.running.get(one.spec.name), view.now_s))
    up = "starting" if view.up_s is None else f"up in {view.up_s:.1f} s"
    state = "ending" if view.mesh.stopping else up
    head = Text.assemble(
        (title, "bold"), f"  {state}  {messages.counts(view.mesh)}  ", (masked(view.url), "cyan")
    )
    return Group(head, table)


def _row(one: ProcessState, running: RunningProcess | None, now_s: float) -> list[Text]:
    state = messages.state_of(one, now_s)
    there = running is not None and one.alive
    for_s = f"{now_s - one.since_s:.0f} s" if one.starts else ""
    return [
        Text(f"  {one.spec.name}"),
        Text(state, style=_STYLES.get(state, "yellow")),
        Text(for_s, style="dim"),
        Text(f"{one.failures} ended" if one.failures else "", style="red"),
        Text(running.address if running is not None and there else ""),
        Text(messages.shortened(running.last) if running is not None else "", style="dim"),
    ]


def print_plainly(console: Console, text: str) -> None:
    """Print a line without interpreting markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
