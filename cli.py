"""The commands `edl` and `edl-teacher`, which import what they are made of only when they run."""

from __future__ import annotations

from .interrupts import end_at_once

TYPE_CHECKING = False  # that of `typing` takes longer to import than all the rest here
if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the `edl` command line; the console script and `python -m edl` call it."""
    end_at_once("edl")
    from .lifecycle import run_cli

    run_cli(_edl)


def teacher() -> None:
    """Run the `edl-teacher` command line; the console script calls it."""
    end_at_once("edl-teacher")
    from .lifecycle import run_cli

    run_cli(_teacher, name="edl-teacher")


def _edl() -> typer.Typer:
    # Here, so that an error in one of its imports is one line and not a traceback.
    import sys

    from .commands import command_line

    return command_line(sys.argv[1] if len(sys.argv) > 1 else "")


def _teacher() -> typer.Typer:
    from .teacher.cli import app  # here for the same reason

    return app
