"""The `edl` command: one word for each thing that the mesh does, each loaded when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lifecycle import run_cli

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the `edl` command line; the console script and `python -m edl` call it."""
    run_cli(_app)


def _app() -> typer.Typer:
    import typer

    from .benchmarks.cli import bench
    from .coordinator.cli import app as coordinator
    from .coordinator.cli import status
    from .mesh.demo.cli import demo
    from .teacher.cli import app as teacher

    app = typer.Typer(
        name="edl",
        help="EDL-Dist: a mesh of teachers that label the batches of your student.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.add_typer(coordinator, name="coordinator", help="Who is alive, and who serves whom.")
    app.add_typer(teacher, name="teacher", help="Serve a model as a teacher.")
    app.command("status")(status)
    app.command("demo")(demo)
    app.command("bench")(bench)
    return app
