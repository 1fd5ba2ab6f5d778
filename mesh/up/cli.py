"""The commands `edl up` and `edl down`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..output import cache_folder

if TYPE_CHECKING:
    from ...runtime.lifecycle import Stop
    from .mesh_run import MeshRun

_File = Annotated[
    Path, typer.Argument(metavar="FILE.yaml", help="File of the mesh; see docs/how-to/deploy.md.")
]


def up(
    file: _File,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Follow only these services, students or processes."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Run the mesh in the background; return once it is up."
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Show the output of all or of the named processes."),
    ] = False,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the output of processes. Default: a folder that 'edl down' removes.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay up when all students have ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands; start nothing.")
    ] = False,
) -> None:
    """Start a mesh and keep it running: its coordinator, then teachers, then students.

    Processes that end unexpectedly are restarted. The mesh ends when all students have ended; the
    exit code is 0 if all succeeded. Ctrl-C stops students at a safe point, then teachers, then the
    coordinator; a second Ctrl-C stops all at once. If this process is killed, all others end, too.
    """
    from ...runtime.lifecycle import raise_descriptor_limit, stop_on_signals
    from ...runtime.logs import configure_logging
    from ...runtime.supervise import end_with_parent
    from .plan import command_lines

    mesh = mesh_run_of(file, logs, keep)
    if dry_run:
        for line in command_lines(mesh.plan):
            typer.echo(line)
        return
    end_with_parent()
    configure_logging()
    raise_descriptor_limit()
    if detach:
        options = [
            *(["--logs", str(mesh.logs)] if logs is not None else []),
            *(["--keep"] if keep else []),
            *(["--follow"] if follow else []),
            *(["--", *names] if names else []),
        ]
        _in_background(mesh, options)
        return
    with stop_on_signals(reraise=(signal.SIGINT,), second_signal_urgent=True) as stop:
        code = _run(mesh, names or [] if follow or names else None, stop)
    if code:
        raise typer.Exit(code)


def down(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.yaml",
            help="File of the mesh. Default: the file of the only mesh that is up.",
        ),
    ] = None,
    all_meshes: Annotated[
        bool, typer.Option("--all", help="Stop all meshes of this user.")
    ] = False,
    within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Kill processes that still run after this time. Default: the file's grace"
            " periods.",
        ),
    ] = None,
    keep_logs: Annotated[
        bool,
        typer.Option(
            "--keep-logs",
            help="Keep the default folder of logs and checkpoints, which is deleted otherwise.",
        ),
    ] = False,
) -> None:
    """Stop a mesh that `edl up` has started: students, then teachers, then the coordinator."""
    from .down import selected_meshes, stop_mesh

    for directory, name in selected_meshes(file, all_meshes, cache_folder("up")):
        if stop_mesh(directory, within, typer.echo, keep_logs=keep_logs):
            typer.echo(f"{name} has ended")
        else:
            typer.echo(f"{name} was not up")


def mesh_run_of(file: Path, logs: Path | None = None, keep: bool = False) -> MeshRun:
    """Return the mesh that `edl up` runs with these arguments.

    Raises:
        UsageError: the file, or something that it names, is missing or invalid.
    """
    from .mesh_run import MeshRun
    from .plan import plan_of
    from .spec import read_mesh
    from .state_directory import StateDirectory

    spec = read_mesh(file)
    directory = StateDirectory.of(file, cache_folder("up"))
    plan = plan_of(spec, file, directory.checkpoints)
    log_folder = directory.logs if logs is None else Path(os.path.abspath(logs.expanduser()))
    return MeshRun(Path(os.path.abspath(file)), directory, plan, log_folder, keep)


def _run(mesh: MeshRun, names: list[str] | None, stop: Stop) -> int:
    from rich.console import Console

    from .display import line_prefixes, open_display
    from .mesh_run import run_mesh
    from .state_directory import relative_path

    prefixes = line_prefixes(
        names, {process.name: process.group for process in mesh.plan.processes}
    )
    with open_display(Console(), relative_path(mesh.file), prefixes, _write) as display:
        return run_mesh(mesh, display, stop)


def _in_background(mesh: MeshRun, options: list[str]) -> None:
    from ...runtime.lifecycle import stop_on_signals
    from .mesh_run import run_in_background
    from .state_directory import relative_path

    with stop_on_signals() as stop:
        code = run_in_background(mesh.file, mesh.directory, options, typer.echo, stop)
    if code == 0 and not stop.requested:  # the students have ended; `edl apply` goes on
        return
    if code is not None:
        raise typer.Exit(code if code >= 0 else 128 - code)
    typer.echo(f"in the background; logs in {mesh.logs}")
    typer.echo(f"'edl down {relative_path(mesh.file)}' ends it")


def _write(text: str) -> None:
    """Write a line to stdout; a closed pipe does not stop the mesh."""
    try:
        typer.echo(text)
    except OSError:
        from ...runtime.lifecycle import discard_output

        discard_output(sys.stdout)
