"""The command `edl`: which module has which subcommand, and their help."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

import typer

from . import __version__

#: Groups of commands: module, attribute, help (empty: the group's own).
_GROUPS: Final = {
    "coordinator": ("coordinator.cli", "app", "Who is alive, and who serves whom."),
    "teacher": ("teacher.cli", "app", "Serve a model as a teacher."),
    "student": (
        "student.cli",
        "app",
        "Train a student on nodes that come and go; evaluate, export.",
    ),
    "service": (
        "coordinator.ops.deploy_cli",
        "service_app",
        "Services: list, show, upgrade, deploy.",
    ),
    "agent": ("mesh.agent.cli", "app", ""),
    "store": (
        "distill_reader.store.cli",
        "app",
        "Look into a label store: the file where a reader keeps soft labels.",
    ),
    "checkpoint": (
        "student.checkpoint.cli",
        "app",
        "Look into the checkpoints of a student's training.",
    ),
    "job": (
        "mesh.jobs.cli",
        "app",
        "Elastic jobs that share a fleet: submit, list, scale, stop.",
    ),
    "operator": ("deploy.operator.cli", "app", ""),
    "fleet": ("mesh.fleet.cli", "app", "Start and stop processes of the mesh on this machine."),
}
#: Single commands: the module that has a function of the command's name.
_COMMANDS: Final = {
    "up": "mesh.up.cli",
    "down": "mesh.up.cli",
    "status": "coordinator.ops.status_cli",
    "events": "coordinator.ops.cli",
    "drain": "coordinator.ops.cli",
    "doctor": "coordinator.ops.cli",
    "demo": "mesh.demo.cli",
    "plan": "mesh.plan.cli",
    "profile": "mesh.profile.cli",
    "simulate": "mesh.simulate.cli",
    "chaos": "mesh.chaos.cli",
    "bench": "benchmarks.cli",
}


def command_line(only: str = "") -> typer.Typer:
    """Build the command line.

    Args:
        only: the subcommand that will be run, so that the modules of the others need not be
            imported; if there is no such subcommand, all are included.
    """
    known = only in _GROUPS or only in _COMMANDS
    app = typer.Typer(
        name="edl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(_edl)
    for name, (module, attribute, text) in _GROUPS.items():
        if name == only or not known:
            group = getattr(import_module(f".{module}", __package__), attribute)
            if text:
                app.add_typer(group, name=name, help=text)
            else:
                app.add_typer(group, name=name)
    for name, module in _COMMANDS.items():
        if name == only or not known:
            app.command(name)(getattr(import_module(f".{module}", __package__), name))
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
