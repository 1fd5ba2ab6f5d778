"""Messages about the changes of a mesh, one line each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...runtime.supervise import describe_exit
from .mesh_state import ALIVE, MeshState, ProcessState

#: Most characters of a line of another program.
_LONGEST = 200


def changes(
    before: MeshState,
    after: MeshState,
    address: Callable[[str], str],
    last: Callable[[str], str],
    logs: Path,
) -> list[str]:
    """Return a line for each change.

    Args:
        before: the former state.
        after: the current state.
        address: returns the address of a process by name; empty: none.
        last: returns the last line of output of a process by name.
        logs: folder of logs.
    """
    lines = []
    if after.stopping and not before.stopping:
        lines += _ending(after)
    if after.urgent and not before.urgent:
        lines.append("ending at once")
    for old, new in zip(before.processes, after.processes, strict=True):
        if old.phase == new.phase and old.starts == new.starts:
            continue
        name = new.spec.name
        lines += _change(old, new, address(name), shortened(last(name)), logs)
    return lines


def _ending(mesh: MeshState) -> list[str]:
    """Describe why the mesh ends, and how."""
    if mesh.broken is not None:
        return [f"{mesh.broken.spec.name} has failed, so the mesh ends"]
    students = mesh.with_role("student")
    if students and not any(one.alive or one.phase == "due" for one in students):
        return ["all students have ended: teachers and coordinator leave"]
    return ["ending: students leave first, then teachers, then the coordinator"]


def _change(old: ProcessState, new: ProcessState, address: str, last: str, logs: Path) -> list[str]:
    name, role = new.spec.name, new.spec.role
    again = f" again (start {new.starts})" if new.starts > 1 else ""
    behind = f"; its last line: {last}" if last else ""
    match new.phase:
        case "running" if role == "student":
            return [f"{name} runs{again}"]
        case "running":
            return [f"{name} is ready{again}: {address}"]
        case "due" if old.alive:
            pause_s = max(0.0, new.due_s - new.since_s)
            when = "at once" if pause_s < 0.05 else f"in {pause_s:.1f} s"
            return [f"{name} {describe_end(new.code)} and starts again {when}{behind}"]
        case "failed":
            tries = f" after {new.starts} starts" if new.starts > 1 else ""
            end = f"it {describe_end(new.code)}{behind}"
            return [f"{name} is given up{tries}: {end} ({logs / name}.log)"]
        case "done":
            return [f"{name} is done{behind}"]
        case "left" if old.phase in ALIVE:
            return [f"{name} has left"]
    return []


def up(what: str, up_s: float, url: str) -> str:
    """Return the line about a mesh that has come up."""
    return f"up in {up_s:.1f} s: {what}; 'edl status --redis {url}' shows it"


def describe_end(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None:
        return "has not ended"
    return f"{'was ' if code < 0 else ''}{describe_exit(code)}"


def state_of(one: ProcessState, now_s: float) -> str:
    """Return the state of a process for a table."""
    match one.phase:
        case "due" if one.starts:
            return f"again in {max(0.0, one.due_s - now_s):.0f} s"
        case "due":
            return "waits"
        case "running":
            return "ready" if one.spec.role != "student" else "runs"
    return one.phase


def counts(mesh: MeshState) -> str:
    """Describe how many processes run."""
    running = sum(one.phase in ("running", "done") for one in mesh.processes)
    return f"{running} of {len(mesh.processes)} processes"


def shortened(line: str) -> str:
    """Return a line of another program without control characters, shortened to `_LONGEST`."""
    clean = "".join(letter for letter in line.strip() if letter.isprintable())
    clean = clean.removeprefix("edl: ")
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 3] + "..."
