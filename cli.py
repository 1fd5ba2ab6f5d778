"""The commands `edl`, which puts the command lines of the folders together, and `edl-teacher`."""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__
from .lifecycle import run_cli


def main() -> None:
    """Run the `edl` command line; the console script and `python -m edl` call it."""
    run_cli(_app)


def teacher() -> None:
    """Run the `edl-teacher` command line; the console script calls it."""
    run_cli(_teacher, name="edl-teacher")


def _teacher() -> typer.Typer:
    from .teacher.cli import app  # here for the same reason as in `_app`

    return app


def _app() -> typer.Typer:
    # Here, so that an error in one of them, or Ctrl-C meanwhile, is one line and not a traceback.
    from .benchmarks.cli import bench
    from .coordinator.cli import app as coordinator
    from .coordinator.ops.cli import doctor, drain, events, service_app
    from .coordinator.ops.status_cli import status
    from .mesh.demo.cli import demo
    from .teacher.cli import app as teacher

    app = typer.Typer(
        name="edl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(_edl)
    app.add_typer(coordinator, name="coordinator", help="Who is alive, and who serves whom.")
    app.add_typer(teacher, name="teacher", help="Serve a model as a teacher.")
    app.add_typer(service_app, name="service", help="Services: list, show, upgrade.")
    app.command("status")(status)
    app.command("events")(events)
    app.command("drain")(drain)
    app.command("doctor")(doctor)
    app.command("demo")(demo)
    app.command("bench")(bench)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edl-dist {__version__}")
        raise typer.Exit


def _edl(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """EDL-Dist: a mesh of teachers that label the batches of your student."""
