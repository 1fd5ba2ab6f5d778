"""`edl job submit|list|scale|stop|logs|events|reserve`: elastic jobs, on a fleet or a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...coordinator.config import DEFAULT_URL
from ...coordinator.ops.options import Coordinator, Json, console
from ...runtime.errors import UsageError
from ...runtime.standard_streams import visible

if TYPE_CHECKING:
    from ...coordinator.queue import QueuedJob
    from .backend import JobBackend

Queue = Annotated[
    str,
    typer.Option(envvar="EDL_QUEUE", help="Name of the queue, where a mesh has more than one."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the job, as in `edl job list`.")]
On = Annotated[
    str,
    typer.Option(
        envvar="EDL_JOBS_ON",
        metavar="WHERE",
        help="Where jobs run: queue (of a fleet, in Redis) or kubernetes[:NAMESPACE] (a cluster"
        " with the operator).",
    ),
]
Context = Annotated[
    str,
    typer.Option(metavar="NAME", help="Context of the kubeconfig. Default: the current one."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        envvar="KUBECONFIG",
        metavar="FILE",
        help="Kubeconfig of the cluster. Default: ~/.kube/config, or within a pod its service"
        " account.",
    ),
]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def job() -> None:
    """Elastic jobs that share the slots of a fleet (`edl fleet jobs`), or a Kubernetes cluster."""


@app.command()
def submit(
    ctx: typer.Context,
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Add a job; it starts as soon as there is room for its least number of nodes.

    On Kubernetes, nodes use the Redis URL of the operator, or --coordinator.
    """
    from contextlib import closing
    from dataclasses import replace

    from .backend import JobLocation
    from .spec import read_job

    where = JobLocation.of(on, context, kubeconfig, queue, coordinator)
    if where.kubernetes and not _is_given(ctx, "coordinator"):
        # A URL from an environment variable here rarely works within a pod.
        where = replace(where, coordinator="")
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Show all jobs: state, nodes and limits, time waited, and the reason."""
    import json as format_

    from . import views

    with _open(on, context, kubeconfig, queue, coordinator) as backend:
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Set the number of nodes of a job; auto: as many as there is room for."""
    if nodes != "auto" and not nodes.isdecimal():
        raise UsageError(f"expects a number of nodes or 'auto', got {nodes!r}")
    count = None if nodes == "auto" else int(nodes)
    with _open(on, context, kubeconfig, queue, coordinator) as backend:
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Stop a job: its nodes end at a safe point; a training keeps its checkpoint."""
    from .backend import wait_for_end

    with _open(on, context, kubeconfig, queue, coordinator) as backend:
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Show the latest lines that the nodes of a job printed, each with its node."""
    with _open(on, context, kubeconfig, queue, coordinator) as backend:
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Show what happened to the jobs and why."""
    import json as format_

    from .views import event_line

    with _open(on, context, kubeconfig, queue, coordinator) as backend:
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
    on: On = "queue",
    context: Context = "",
    kubeconfig: Kubeconfig = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
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

    if JobLocation.of(on, context, kubeconfig, queue, coordinator).kubernetes:
        raise UsageError(
            "on Kubernetes there are no slots to reserve: elastic jobs make room for teachers of a"
            " TeacherService by themselves, and for pods of others that have a `priorityClassName`"
            " above theirs; docs/elastic-jobs.md says more"
        )
    with closing(open_queue(coordinator, queue)) as board, stop_on_signals() as wish:
        hold_slots(board, name, slots, for_, wish, typer.echo)


def _is_given(ctx: typer.Context, option: str) -> bool:
    """Whether an option was given on the command line."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def _open(
    on: str, context: str, kubeconfig: Path | None, queue: str, coordinator: str
) -> Iterator[JobBackend]:
    from .backend import JobLocation

    backend = JobLocation.of(on, context, kubeconfig, queue, coordinator).open()
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
