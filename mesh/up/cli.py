"""`edl up FILE.yaml` and `edl down`: a whole mesh of processes of this machine, and its end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...coordinator.options import LogFormat, Verbose

if TYPE_CHECKING:
    from ...lifecycle import Stop
    from .keeping import Keeping

_File = Annotated[
    Path, typer.Argument(metavar="FILE.yaml", help="The mesh; docs/up.md says what it holds.")
]


def up(
    file: _File,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Follow these services, students or processes alone."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Go to the background once the mesh is up.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what processes print, all or the named.")
    ] = False,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For the output of each process. Default: one that 'edl down' removes.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay when all students have ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands; start nothing.")
    ] = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Start a mesh: its coordinator, then teachers, then students; and keep it.

    What dies is started again. It ends when all students have ended, with 0 if all of them ended
    well. Ctrl-C lets students leave at a safe point, then teachers, then the coordinator; a second
    one ends all at once. When this process is killed, all of it ends, too.
    """
    from ...lifecycle import open_all_descriptors, stop_on_signals
    from ...logs import configure_logging
    from ...supervise import end_with_parent
    from .members import lines

    keeping = _keeping(file, logs, keep)
    if dry_run:
        for line in lines(keeping.plan):
            typer.echo(line)
        return
    end_with_parent()
    configure_logging(verbose, log_format)
    open_all_descriptors()
    if detach:
        options = [
            *(["--logs", str(keeping.logs)] if logs is not None else []),
            *(["--keep"] if keep else []),
            *(["--follow"] if follow else []),
            *(["--verbose"] if verbose else []),
            *(["--", *names] if names else []),
        ]
        _in_background(keeping, options)
        return
    with stop_on_signals(reraise=(signal.SIGINT,), hurries=True) as stop:
        code = _keep(keeping, names or [] if follow or names else None, stop)
    if code:
        raise typer.Exit(code)


def down(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.yaml", help="The mesh. Default: the only one that is up."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="End all meshes of this user.")] = False,
    within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Kill what has not ended by then. Default: as the file's grace periods say.",
        ),
    ] = None,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="Leave logs, and checkpoints without a place.")
    ] = False,
) -> None:
    """End a mesh that `edl up` has started: students, then teachers, then the coordinator."""
    from .ending import end, meant

    for place, name in meant(file, every, _base()):
        if end(place, within, typer.echo, keep_logs=keep_logs):
            typer.echo(f"{name} has ended")
        else:
            typer.echo(f"{name} was not up")


def _keeping(file: Path, logs: Path | None, keep: bool) -> Keeping:
    from .keeping import Keeping
    from .members import plan_of
    from .place import Place
    from .spec import read_mesh

    spec = read_mesh(file)
    place = Place.of(file, _base())
    plan = plan_of(spec, file, place.checkpoints)
    where = place.logs if logs is None else Path(os.path.abspath(logs.expanduser()))
    return Keeping(Path(os.path.abspath(file)), place, plan, where, keep)


def _keep(keeping: Keeping, names: list[str] | None, stop: Stop) -> int:
    from rich.console import Console

    from .display import Follow, opened
    from .keeping import keep
    from .place import short

    follow = Follow(names, {one.part.name: one.group for one in keeping.plan.members})
    with opened(Console(), short(keeping.file), follow, _write) as display:
        return keep(keeping, display, stop)


def _in_background(keeping: Keeping, options: list[str]) -> None:
    from ...lifecycle import stop_on_signals
    from .detaching import detach
    from .place import short

    with stop_on_signals() as stop:
        code = detach(keeping.file, keeping.place, options, typer.echo, stop)
    if code is not None:
        raise typer.Exit(code if code >= 0 else 128 - code)
    typer.echo(f"in the background; logs in {keeping.logs}")
    typer.echo(f"'edl down {short(keeping.file)}' ends it")


def _write(text: str) -> None:
    """A line on stdout; where nobody reads it any more, that ends no mesh."""
    try:
        typer.echo(text)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _base() -> Path:
    from ...errors import UsageError

    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "edl-dist" / "up"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder: XDG_CACHE_HOME names one for what is kept of a mesh"
        ) from error
