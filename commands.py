"""The command `edl`: the command lines of the folders, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__
from .benchmarks.cli import bench
from .coordinator.cli import app as coordinator
from .coordinator.ops.cli import doctor, drain, events
from .coordinator.ops.deploy_cli import service_app
from .coordinator.ops.status_cli import status
from .deploy.operator.cli import app as operator
from .distill_reader.store.cli import app as store
from .mesh.agent.cli import app as agent
from .mesh.chaos.cli import chaos
from .mesh.demo.cli import demo
from .mesh.fleet.cli import app as fleet
from .mesh.jobs.cli import app as job
from .mesh.plan.cli import plan
from .mesh.profile.cli import profile
from .mesh.simulate.cli import simulate
from .mesh.up.cli import down, up
from .student.checkpoint.cli import app as checkpoint
from .student.cli import app as student
from .teacher.cli import app as teacher

app = typer.Typer(
    name="edl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
app.add_typer(coordinator, name="coordinator", help="Who is alive, and who serves whom.")
app.add_typer(teacher, name="teacher", help="Serve a model as a teacher.")
app.add_typer(
    student, name="student", help="Train a student on nodes that come and go; evaluate, export."
)
app.add_typer(service_app, name="service", help="Services: list, show, upgrade, deploy.")
app.add_typer(agent, name="agent")
app.add_typer(
    store,
    name="store",
    help="Look into a label store: the file where a reader keeps soft labels.",
)
app.add_typer(
    checkpoint, name="checkpoint", help="Look into the checkpoints of a student's training."
)
app.add_typer(job, name="job", help="Elastic jobs that share a fleet: submit, list, scale, stop.")
app.add_typer(operator, name="operator")
app.add_typer(fleet, name="fleet", help="Start and stop processes of the mesh on this machine.")
app.command("up")(up)
app.command("down")(down)
app.command("status")(status)
app.command("events")(events)
app.command("drain")(drain)
app.command("doctor")(doctor)
app.command("demo")(demo)
app.command("plan")(plan)
app.command("profile")(profile)
app.command("simulate")(simulate)
app.command("chaos")(chaos)
app.command("bench")(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edl-dist {__version__}")
        raise typer.Exit


@app.callback()
def edl(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """EDL-Dist: a mesh of teachers that label the batches of your student."""
