"""What is said of a mesh as it changes, a line for each thing that a user wants to know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...supervise import describe_exit
from .startup import ALIVE, Mesh, Standing

#: Of a line that others print.
_LONGEST = 200


def changes(
    before: Mesh,
    after: Mesh,
    address: Callable[[str], str],
    last: Callable[[str], str],
    logs: Path,
) -> list[str]:
    """The lines for what has changed.

    Args:
        before: the mesh as it stood.
        after: as it stands now.
        address: of a process, by name; empty where it serves nowhere.
        last: the last line that it printed.
        logs: folder of logs.
    """
    told = []
    if after.stopping and not before.stopping:
        told += _ending(after)
    if after.urgent and not before.urgent:
        told.append("ending at once")
    for old, new in zip(before.standings, after.standings, strict=True):
        if old.phase == new.phase and old.starts == new.starts:
            continue
        name = new.part.name
        told += _change(old, new, address(name), shortened(last(name)), logs)
    return told


def _ending(mesh: Mesh) -> list[str]:
    """Why the mesh ends, and how."""
    if mesh.broken is not None:
        return [f"the mesh cannot be kept without {mesh.broken.part.name}: all of it ends"]
    students = mesh.with_role("student")
    if students and not any(one.alive or one.phase == "due" for one in students):
        return ["all students have ended: teachers and coordinator leave"]
    return ["ending: students leave first, then teachers, then the coordinator"]


def _change(old: Standing, new: Standing, address: str, last: str, logs: Path) -> list[str]:
    name, role = new.part.name, new.part.role
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
            return [f"{name} {how(new.code)} and starts again {when}{behind}"]
        case "failed":
            tries = f" after {new.starts} starts" if new.starts > 1 else ""
            return [f"{name} is given up{tries}: it {how(new.code)}{behind} ({logs / name}.log)"]
        case "done":
            return [f"{name} is done{behind}"]
        case "left" if old.phase in ALIVE:
            return [f"{name} has left"]
    return []


def up(what: str, up_s: float, url: str) -> str:
    """That all of the mesh is there, and where."""
    return f"up in {up_s:.1f} s: {what}; 'edl status --coordinator {url}' shows it"


def how(code: int | None) -> str:
    """In words, how a process ended."""
    if code is None:
        return "has not ended"
    return f"{'was ' if code < 0 else ''}{describe_exit(code)}"


def state_of(one: Standing, now_s: float) -> str:
    """A word or two for a table."""
    match one.phase:
        case "due" if one.starts:
            return f"again in {max(0.0, one.due_s - now_s):.0f} s"
        case "due":
            return "waits"
        case "running":
            return "ready" if one.part.role != "student" else "runs"
    return one.phase


def counts(mesh: Mesh) -> str:
    """How much of it is there."""
    there = sum(one.phase in ("running", "done") for one in mesh.standings)
    return f"{there} of {len(mesh.standings)} processes"


def shortened(line: str) -> str:
    """A line of others, in a line of ours: nothing that a terminal obeys, and not for ever."""
    clean = "".join(letter for letter in line.strip() if letter.isprintable())
    clean = clean.removeprefix("edl: ")
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 3] + "..."
