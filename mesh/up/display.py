"""A mesh as its user sees it: a table that is drawn again at a terminal, plain lines elsewhere."""

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
from ...errors import UsageError
from ...standard_streams import visible
from . import wording
from .runner import Running, View
from .startup import Standing

_PER_S: Final = 4
_STYLES: Final = {"ready": "green", "runs": "green", "done": "green", "failed": "red"}


class Follow:
    """Whose lines are shown as they come.

    Args:
        names: of processes, services, students; None: nobody's.
        members: names of all processes, with what they belong to.

    Raises:
        UsageError: nothing of that name is there.
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
        """A line with who has printed it; None: it is not shown."""
        return f"{name:<{self._width}} | {line}" if name in self.names else None


class Plain:
    """Lines alone.

    Args:
        write: takes each.
        follow: whose lines are among them.
    """

    def __init__(self, write: Callable[[str], None], follow: Follow) -> None:
        self._write, self._follow = write, follow
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            self._write(text)

    def show(self, view: View) -> None:
        """Nothing is drawn."""

    def heard(self, name: str, line: str) -> None:
        if (told := self._follow.prefixed(name, line)) is not None:
            self.say(visible(told))


class Terminal(Plain):
    """The same lines, and below them the mesh as it stands.

    Args:
        console: a terminal.
        title: what the mesh is called.
        follow: whose lines are shown.
    """

    def __init__(self, console: Console, title: str, follow: Follow) -> None:
        super().__init__(lambda text: print_plainly(console, text), follow)
        self._title = title
        self._view: View | None = None
        self._live = Live(
            get_renderable=self._drawn,
            console=console,
            refresh_per_second=_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def show(self, view: View) -> None:
        self._view = view

    def _drawn(self) -> Any:
        return Text("") if self._view is None else drawn(self._view, self._title)


@contextmanager
def opened(
    console: Console, title: str, follow: Follow, write: Callable[[str], None]
) -> Generator[Plain]:
    """The display that suits a console; where it is no terminal, `write` takes the lines."""
    if not console.is_terminal:
        yield Plain(write, follow)
        return
    terminal = Terminal(console, title, follow)
    terminal.start()
    try:
        yield terminal
    finally:
        terminal.stop()


def drawn(view: View, title: str) -> Any:
    """A mesh as a head line and a row for each process."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(5):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for one in view.mesh.standings:
        table.add_row(*_row(one, view.running.get(one.part.name), view.now_s))
    up = "starting" if view.up_s is None else f"up in {view.up_s:.1f} s"
    state = "ending" if view.mesh.stopping else up
    head = Text.assemble(
        (title, "bold"), f"  {state}  {wording.counts(view.mesh)}  ", (masked(view.url), "cyan")
    )
    return Group(head, table)


def _row(one: Standing, running: Running | None, now_s: float) -> list[Text]:
    state = wording.state_of(one, now_s)
    there = running is not None and one.alive
    for_s = f"{now_s - one.since_s:.0f} s" if one.starts else ""
    return [
        Text(f"  {one.part.name}"),
        Text(state, style=_STYLES.get(state, "yellow")),
        Text(for_s, style="dim"),
        Text(f"{one.failures} ended" if one.failures else "", style="red"),
        Text(running.address if running is not None and there else ""),
        Text(wording.shortened(running.last) if running is not None else "", style="dim"),
    ]


def print_plainly(console: Console, text: str) -> None:
    """A line as it is, whatever brackets others wrote into it."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
