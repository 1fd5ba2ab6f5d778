"""The commands `edl` and `edl-teacher`: which module has which subcommand.

Modules are imported only when the command that needs them runs.
"""

from __future__ import annotations

import sys

from .runtime.interrupts import end_at_once

TYPE_CHECKING = False  # that of `typing` takes longer to import than all the rest here
if TYPE_CHECKING:
    import typer

#: Groups of commands: module, attribute, help (empty: the group's own).
_GROUPS = {
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
    "context": ("coordinator.ops.context_cli", "app", ""),
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
_COMMANDS = {
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


def main() -> None:
    """Run the `edl` command line; the console script and `python -m edl` call it."""
    end_at_once("edl")
    from .runtime.lifecycle import run_cli

    run_cli(_edl, moved=_moved(sys.argv[1] if len(sys.argv) > 1 else ""))


def teacher() -> None:
    """Run the `edl-teacher` command line; the console script calls it."""
    end_at_once("edl-teacher")
    from .runtime.lifecycle import run_cli

    run_cli(_teacher, name="edl-teacher")


def command_line(only: str = "") -> typer.Typer:
    """Build the command line.

    Args:
        only: the subcommand that will be run, so that the modules of the others need not be
            imported; if there is no such subcommand, all are included.
    """
    from importlib import import_module

    import typer

    from . import __version__

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"edl-dist {__version__}")
            raise typer.Exit

    known = only in _GROUPS or only in _COMMANDS
    app = typer.Typer(
        name="edl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    version = typer.Option(
        False, "--version", help="Show the version.", is_eager=True, callback=show_version
    )

    @app.callback()
    def edl(version: bool = version) -> None:
        """EDL-Dist: a mesh of teachers that label the batches of your student."""

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


def _moved(command: str) -> dict[str, str]:
    """Return the options that a command had before there were contexts, and what to use instead."""
    if command not in ("status", "events", "drain", "doctor", "service", "job", "fleet"):
        return {}
    security = {
        option: f"it belongs to a context: 'edl context add NAME {option} FILE ...', or {variable}."
        for option, variable in (
            ("--tls-ca", "EDL_TLS_CA"), ("--tls-cert", "EDL_TLS_CERT"),
            ("--tls-key", "EDL_TLS_KEY"), ("--token-file", "EDL_TOKEN_FILE"),
        )
    }  # fmt: skip
    return security | {
        "--on": "it belongs to a context: 'edl context add NAME --jobs-on ...', or EDL_JOBS_ON.",
        "--kubeconfig": "it belongs to a context: 'edl context add NAME --kubeconfig FILE ...'.",
        "--queue": "it belongs to a context: 'edl context add NAME --queue ...', or EDL_QUEUE.",
    }


def _edl() -> typer.Typer:
    # Here, so that an error in one of its imports is one line and not a traceback.
    return command_line(sys.argv[1] if len(sys.argv) > 1 else "")


def _teacher() -> typer.Typer:
    from .teacher.cli import app  # here for the same reason

    return app
