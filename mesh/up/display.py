"""Display of a mesh: a line for each change, and a live table in a terminal."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...coordinator.store.redis_url import masked
from ...runtime.errors import UsageError
from ...runtime.standard_streams import escape_control_characters, print_plainly
from ...runtime.supervise import Identity, Process, describe_exit
from .mesh_state import ALIVE, MeshState, ProcessState

#: Maximum number of characters that are shown of another program's line.
_MAX_LINE_CHARS: Final = 200
_REFRESHES_PER_S: Final = 4
_STYLES: Final = {"ready": "green", "runs": "green", "done": "green", "failed": "red"}


@dataclass(slots=True)
class ProcessRun:
    """The latest run of a process, which may have ended.

    Attributes:
        process: the process; None: it could not be started.
        identity: identity for the `MeshRecord`; None: it does not run.
        started_s: monotonic time of the start.
        ready: match of the line that showed that it is ready; None: it is not ready yet, or it
            prints no such line.
        address: address of its server; empty: none.
        last: last line that it printed, or the reason why it could not be started.
    """

    process: Process | None
    identity: Identity | None
    started_s: float
    ready: re.Match[str] | None = None
    address: str = ""
    last: str = ""


@dataclass(frozen=True, slots=True)
class MeshView:
    """State of a mesh to show.

    Attributes:
        mesh: state of the processes.
        latest_runs: latest run of each process that was started, by name.
        url: Redis URL; empty: unknown.
        up_s: seconds until all processes were ready; None: they have not all been ready yet.
        now_s: current monotonic time.
    """

    mesh: MeshState
    latest_runs: dict[str, ProcessRun]
    url: str
    up_s: float | None
    now_s: float


def changes(
    before: MeshState,
    after: MeshState,
    latest_runs: Mapping[str, ProcessRun],
    logs: Path,
) -> list[str]:
    """Return a line for each change.

    Args:
        before: the former state.
        after: the current state.
        latest_runs: latest run of each process that was started, by name.
        logs: folder of logs.
    """
    lines = []
    if after.stopping and not before.stopping:
        lines += _describe_ending(after)
    if after.urgent and not before.urgent:
        lines.append("ending at once")
    for old, new in zip(before.processes, after.processes, strict=True):
        if old.phase == new.phase and old.starts == new.starts:
            continue
        lines += _describe_change(old, new, latest_runs.get(new.spec.name), logs)
    return lines


def _describe_ending(mesh: MeshState) -> list[str]:
    """Describe why the mesh ends, and how."""
    if mesh.broken is not None:
        return [f"{mesh.broken.spec.name} has failed, so the mesh ends"]
    students = mesh.with_role("student")
    if students and not any(process.alive or process.phase == "due" for process in students):
        return ["all students have ended: teachers and coordinator leave"]
    return ["ending: students leave first, then teachers, then the coordinator"]


def _describe_change(
    old: ProcessState, new: ProcessState, run: ProcessRun | None, logs: Path
) -> list[str]:
    name, role = new.spec.name, new.spec.role
    address = "" if run is None else run.address
    last = "" if run is None else shortened(run.last)
    again = f" again (start {new.starts})" if new.starts > 1 else ""
    last_text = f"; its last line: {last}" if last else ""
    was_started = run is not None and run.process is not None
    match new.phase:
        case "running" if role == "student":
            return [f"{name} runs{again}"]
        case "running":
            return [f"{name} is ready{again}: {address}"]
        case "due" if old.alive:
            pause_s = max(0.0, new.due_s - new.since_s)
            when = "at once" if pause_s < 0.05 else f"in {pause_s:.1f} s"
            if not was_started:
                return [f"{last}; {name} is started again {when}"]
            return [f"{name} {describe_end(new.code)} and starts again {when}{last_text}"]
        case "failed":
            tries = f" after {new.starts} starts" if new.starts > 1 else ""
            end = f"it {describe_end(new.code)}{last_text}" if was_started else last
            return [f"{name} is given up{tries}: {end} ({logs / name}.log)"]
        case "done":
            return [f"{name} is done{last_text}"]
        case "left" if old.phase in ALIVE:
            return [f"{name} has left"]
    return []


def up_line(summary: str, up_s: float, url: str) -> str:
    """Return the line about a mesh that has come up."""
    return f"up in {up_s:.1f} s: {summary}; 'edl status --redis {url}' shows it"


def describe_end(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None:
        return "has not ended"
    return f"{'was ' if code < 0 else ''}{describe_exit(code)}"


def _state_text(process: ProcessState, now_s: float) -> str:
    """Return the state of a process for a table."""
    match process.phase:
        case "due" if process.starts:
            return f"again in {max(0.0, process.due_s - now_s):.0f} s"
        case "due":
            return "waits"
        case "running":
            return "ready" if process.spec.role != "student" else "runs"
    return process.phase


def shortened(line: str) -> str:
    """Return a line of another program without control characters, at most 200 characters."""
    clean = "".join(letter for letter in line.strip() if letter.isprintable())
    clean = clean.removeprefix("edl: ")
    return clean if len(clean) <= _MAX_LINE_CHARS else clean[: _MAX_LINE_CHARS - 3] + "..."


def line_prefixes(names: Collection[str] | None, members: Mapping[str, str]) -> dict[str, str]:
    """Return the line prefix of each process whose output is shown, by name of the process.

    Args:
        names: names of processes, services or students; empty: all processes; None: no process.
        members: service or student of each process, by the name of the process.

    Raises:
        UsageError: a name is unknown.
    """
    for name in names or ():
        if name not in members and name not in members.values():
            known = ", ".join(dict.fromkeys([*members.values(), *members]))
            raise UsageError(f"nothing here is called {name!r}; there are: {known}")
    chosen = [
        name
        for name, group in members.items()
        if names is not None and (not names or name in names or group in names)
    ]
    width = max(map(len, chosen), default=0)
    return {name: f"{name:<{width}} | " for name in chosen}


class MeshDisplay:
    """Displays lines. Thread-safe.

    Args:
        write: called with each line, by one thread at a time.
        prefixes: see `line_prefixes`.

    Attributes:
        view: latest state of the mesh; only shown in a terminal.
    """

    def __init__(self, write: Callable[[str], None], prefixes: Mapping[str, str]) -> None:
        self._write, self._prefixes = write, prefixes
        self._lock = threading.Lock()
        self.view: MeshView | None = None

    def say(self, text: str) -> None:
        with self._lock:
            self._write(text)

    def print_output(self, name: str, line: str) -> None:
        if name in self._prefixes:
            self.say(escape_control_characters(f"{self._prefixes[name]}{line}"))


@contextmanager
def open_display(
    console: Console, title: str, prefixes: Mapping[str, str], write: Callable[[str], None]
) -> Iterator[MeshDisplay]:
    """Open a display for a console.

    A terminal has a live table of the mesh below the lines; otherwise, `write` gets the lines.
    """
    if not console.is_terminal:
        yield MeshDisplay(write, prefixes)
        return
    display = MeshDisplay(lambda text: print_plainly(console, text), prefixes)
    with Live(
        get_renderable=lambda: "" if display.view is None else render(display.view, title),
        console=console,
        refresh_per_second=_REFRESHES_PER_S,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield display


def render(view: MeshView, title: str) -> Any:
    """Return a head line and a table with a row for each process."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(5):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for process in view.mesh.processes:
        table.add_row(*_row(process, view.latest_runs.get(process.spec.name), view.now_s))
    up = "starting" if view.up_s is None else f"up in {view.up_s:.1f} s"
    state = "ending" if view.mesh.stopping else up
    running = sum(process.phase in ("running", "done") for process in view.mesh.processes)
    counts = f"{running} of {len(view.mesh.processes)} processes"
    head = Text.assemble((title, "bold"), f"  {state}  {counts}  ", (masked(view.url), "cyan"))
    return Group(head, table)


def _row(process: ProcessState, run: ProcessRun | None, now_s: float) -> list[Text]:
    state = _state_text(process, now_s)
    runs = run is not None and process.alive
    duration = f"{now_s - process.since_s:.0f} s" if process.starts else ""
    return [
        Text(f"  {process.spec.name}"),
        Text(state, style=_STYLES.get(state, "yellow")),
        Text(duration, style="dim"),
        Text(f"failed {process.failures} times" if process.failures else "", style="red"),
        Text(run.address if run is not None and runs else ""),
        Text(shortened(run.last) if run is not None else "", style="dim"),
    ]
