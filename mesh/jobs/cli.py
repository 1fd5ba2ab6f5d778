"""`edl job submit|list|scale|stop|logs|events|reserve`: elastic jobs, on a fleet or a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...coordinator.ops.options import Coordinator, Json, MeshName, console, mesh_context
from ...runtime.errors import UsageError
from ...runtime.standard_streams import visible

if TYPE_CHECKING:
    from ...coordinator.queue import QueuedJob
    from .backend import JobBackend

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the job, as in `edl job list`.")]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def job() -> None:
    """Elastic jobs that share the slots of a fleet (`edl fleet jobs`), or a Kubernetes cluster."""


@app.command()
def submit(
    file: Annotated[
        Path, typer.Argument(metavar="JOB.yaml", help="The job's file: see docs/elastic-jobs.md.")
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what would run, for kubernetes as a manifest; change nothing.",
        ),
    ] = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Add a job; it starts as soon as there is room for its least number of nodes."""
    from contextlib import closing

    from .backend import JobLocation
    from .spec import read_job

    where = JobLocation.of(mesh_context(context, coordinator))
    spec = read_job(file, here=not where.kubernetes)
    if dry_run:
        lines = list(where.plan(spec))
    else:
        with closing(where.open()) as backend:
            lines = backend.submit(spec)
    for line in lines:
        typer.echo(line)


@app.command("list")
def list_jobs(
    json: Json = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Show all jobs: state, nodes and limits, time waited, and the reason."""
    import json as format_

    from . import views

    with _open(context, coordinator) as backend:
        found = backend.listing()
    if json:
        print(format_.dumps(views.to_json(found), indent=2))
        return
    out = console()
    out.print(found.head, soft_wrap=True, highlight=False, markup=False)
    if found.jobs:
        out.print(views.table(found))
    else:
        typer.echo(found.empty)


@app.command()
def scale(
    name: Name,
    nodes: Annotated[
        str,
        typer.Argument(metavar="N|auto", help="Number of nodes within its limits, or auto."),
    ],
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Set the number of nodes of a job; auto: as many as there is room for."""
    if nodes != "auto" and not nodes.isdecimal():
        raise UsageError(f"expects a number of nodes or 'auto', got {nodes!r}")
    count = None if nodes == "auto" else int(nodes)
    with _open(context, coordinator) as backend:
        found = backend.find(name)
        _check_limits(found, count)
        _check_running(backend.scale(found, count), name)
    asked = "as many nodes as there is room for" if count is None else f"{count} nodes"
    typer.echo(f"job {name} is to run with {asked}")


@app.command()
def stop(
    name: Name,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait at most so long for its end.", min=0.0)
    ] = 0.0,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Stop a job: its nodes end at a safe point; a training keeps its checkpoint."""
    from .backend import wait_for_end

    with _open(context, coordinator) as backend:
        found = backend.find(name)
        _check_running(backend.stop(found), name)
        if wait:
            ended = wait_for_end(backend, found, wait)
            typer.echo(f"job {name}: {ended.state}")
            return
        note = backend.stop_note()
    typer.echo(f"job {name} is to stop{note}")


@app.command()
def logs(
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")
    ] = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Show the latest lines that the nodes of a job printed, each with its node."""
    with _open(context, coordinator) as backend:
        found = backend.find(name)
        try:
            for line in backend.log_lines(found, follow):
                print(visible(line), flush=True)
        except KeyboardInterrupt:
            if not follow:  # Ctrl-C ends --follow
                raise


@app.command()
def events(
    last: Annotated[int, typer.Option(min=1, help="Number of events, the latest.")] = 50,
    json: Json = False,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Show what happened to the jobs and why."""
    import json as format_

    from .views import event_line

    with _open(context, coordinator) as backend:
        found = backend.events(last)
    for event in found:
        if json:
            print(format_.dumps({"at_ms": event.at_ms, **event.body}))
        else:
            typer.echo(visible(event_line(event)))


@app.command()
def reserve(
    slots: Annotated[int, typer.Argument(min=1, metavar="SLOTS", help="Number of slots.")],
    name: Annotated[str, typer.Option(help="Name of the reservation.")] = "service",
    for_: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.1, help="Default: until Ctrl-C."),
    ] = None,
    context: MeshName = "",
    coordinator: Coordinator = "",
) -> None:
    """Reserve slots of a fleet for an online service, as long as this command runs.

    Prints the slots and their cores once their nodes have left. On Kubernetes there are no slots:
    use priorities of pods.
    """
    from contextlib import closing

    from ...coordinator.queue import open_queue
    from ...runtime.lifecycle import stop_on_signals
    from .backend import JobLocation
    from .reservation import hold_slots

    mesh = mesh_context(context, coordinator)
    if JobLocation.of(mesh).kubernetes:
        raise UsageError(
            "on Kubernetes there are no slots to reserve: elastic jobs make room for teachers of a"
            " TeacherService by themselves, and for pods of others that have a `priorityClassName`"
            " above theirs; docs/elastic-jobs.md says more"
        )
    with closing(open_queue(mesh.coordinator, mesh.queue)) as board, stop_on_signals() as wish:
        hold_slots(board, name, slots, for_, wish, typer.echo)


@contextmanager
def _open(context: str, coordinator: str) -> Iterator[JobBackend]:
    from .backend import JobLocation

    backend = JobLocation.of(mesh_context(context, coordinator)).open()
    try:
        yield backend
    finally:
        backend.close()


def _check_limits(job: QueuedJob, count: int | None) -> None:
    least, most = int(job.spec.get("min_nodes", 1)), int(job.spec.get("max_nodes", 1))
    if count is not None and not least <= count <= most:
        raise UsageError(
            f"job {job.name} runs with {least} to {most} nodes, not with {count};"
            f" 'edl job stop {job.name}' ends it"
        )


def _check_running(accepted: bool, name: str) -> None:
    if not accepted:
        raise UsageError(f"job {name} has ended already: 'edl job list' says how")
