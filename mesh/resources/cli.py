"""The commands `edl get|describe|logs|scale|drain|delete|apply|upgrade|reserve|events`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...coordinator.ops.options import Mesh, Service, console, mesh_context, quiet_grpc
from ...runtime.errors import UsageError
from ...runtime.standard_streams import escape_control_characters
from ...runtime.structured_option import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .documents import Spec
    from .jobs import JobKind
    from .resource_kind import ResourceKind
    from .services import ServiceKind

#: Module and class of each kind.
_KINDS = {
    "teacher": ("members", "TeacherKind"),
    "student": ("members", "StudentKind"),
    "service": ("services", "ServiceKind"),
    "machine": ("members", "MachineKind"),
    "job": ("jobs", "JobKind"),
    "context": ("contexts", "ContextKind"),
}


def _kind(kinds: str) -> Any:
    return typer.Argument(
        metavar="KIND",
        help=f"{kinds}; or its plural.",
        autocompletion=lambda: [*_KINDS, *(f"{name}s" for name in _KINDS)],
    )


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name, as `edl get KIND` shows it.")]


def get(
    kind: Annotated[str, _kind("teacher, student, service, machine, job or context")],
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Show only this resource. Default: all.")
    ] = "",
    service: Service = "",
    json: AsJson = False,
    context: Mesh = None,
) -> None:
    """Show teachers, students, services, machines, jobs or contexts, one per line.

    Jobs are elastic jobs; `edl status` shows trainings, and everything of a mesh at once.
    """
    from json import dumps

    resources = _resources(kind, context).get(name, service)
    if json:
        print(dumps(resources.body, indent=2))
    else:
        console().print(resources.table)


def describe(
    kind: Annotated[str, _kind("teacher, student, service, machine or job")],
    name: Name,
    context: Mesh = None,
) -> None:
    """Show everything known about a resource; for a job also its events, with reasons."""
    console().print(_resources(kind, context).describe(name))


def logs(
    kind: Annotated[str, _kind("job")],
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")
    ] = False,
    context: Mesh = None,
) -> None:
    """Show the latest lines that the nodes of a job printed, each with its node."""
    try:
        for line in _resources(kind, context).logs(name, follow):
            print(escape_control_characters(line), flush=True)
    except KeyboardInterrupt:
        if not follow:  # Ctrl-C ends --follow
            raise


def scale(
    kind: Annotated[str, _kind("job or service")],
    name: Name,
    size: Annotated[
        str,
        typer.Argument(
            metavar="SIZE",
            help="For a job: number of nodes, or auto: as many as there is room for. For a service"
            " on machines: number of teachers, N or MIN:MAX.",
        ),
    ],
    context: Mesh = None,
) -> None:
    """Set the number of nodes of a job, or of teachers of a service on machines."""
    typer.echo(_resources(kind, context).scale(name, size))


def drain(
    kind: Annotated[str, _kind("teacher or machine")],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the teacher, or host name of the machine."),
    ],
    service: Service = "",
    context: Mesh = None,
) -> None:
    """Let a teacher, or all teachers of a machine, finish requests and leave; no label is lost.

    Students soon send them no new requests, and their processes end within their grace period. If
    the mesh has tokens, this needs a token of the role admin.
    """
    for drained in _resources(kind, context).drain(name, service):
        typer.echo(escape_control_characters(f"draining {drained}"))


def delete(
    kind: Annotated[str, _kind("job, service or context")],
    name: Name,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds to wait for the end of a job; 0: do not wait.",
            min=0.0,
        ),
    ] = 0.0,
    context: Mesh = None,
) -> None:
    """Stop a job, take all machines away from a service, or remove a context.

    The nodes of a job end at a safe point, and a training keeps its checkpoint. The teachers of a
    service on machines finish their requests.
    """
    typer.echo(_resources(kind, context).delete(name, wait))


def apply(
    files: Annotated[
        list[Path],
        typer.Option(
            "--file",
            "-f",
            metavar="FILE.yaml",
            help="Documents with `kind: mesh`, `service` or `job`. Repeat it for each file.",
        ),
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check the files and show what would run, a job on Kubernetes as a manifest;"
            " change nothing.",
        ),
    ] = False,
    context: Mesh = None,
) -> None:
    """Make what files describe: start a mesh, deploy services on machines, submit jobs.

    All files are checked before anything is changed. A service that is deployed already is changed;
    a job starts as soon as there is room for its least number of nodes; a mesh starts in the
    background, as by `edl up --detach`.
    """
    from ..jobs.spec import QueuedJobSpec, checked_job
    from .documents import read_documents
    from .services import ServiceKind

    quiet_grpc()
    jobs = _jobs(context)
    documents = [
        (path, checked_job(spec, path, here=jobs.namespace is None))
        if isinstance(spec, QueuedJobSpec)
        else (path, spec)
        for path, spec in read_documents(files)
    ]
    plan = [line for path, spec in documents for line in _plan(path, spec, jobs)]
    if dry_run:
        for line in plan:
            typer.echo(line)
        return
    services = ServiceKind(context)
    for path, spec in documents:
        _apply(path, spec, jobs, services)


def _plan(path: Path, spec: Spec, jobs: JobKind) -> list[str]:
    """Return lines that describe what `_apply` would run.

    With jobs on a cluster, the lines of all documents are YAML for kubectl: manifests of jobs, and
    comments.

    Raises:
        UsageError: the mesh or job cannot be applied.
    """
    from ..jobs.spec import QueuedJobSpec
    from ..up.cli import mesh_run_of
    from ..up.plan import command_lines
    from .documents import DeploymentSpec

    if isinstance(spec, QueuedJobSpec):
        return list(jobs.plan(spec))
    if isinstance(spec, DeploymentSpec):
        max_teachers = spec.min if spec.max is None else spec.max
        lines = [f"service {spec.name}: {spec.min} to {max_teachers} teachers of {spec.model}"]
    else:
        lines = command_lines(mesh_run_of(path).plan)
    if jobs.namespace is None:
        return lines
    return [f"# {part}" for line in lines for part in line.splitlines()]


def _apply(path: Path, spec: Spec, jobs: JobKind, services: ServiceKind) -> None:
    from ..jobs.spec import QueuedJobSpec
    from ..up.cli import up
    from .documents import DeploymentSpec

    if isinstance(spec, QueuedJobSpec):
        for line in jobs.submit(spec):
            typer.echo(line)
    elif isinstance(spec, DeploymentSpec):
        typer.echo(services.deploy(spec.request()))
    else:
        up(path, detach=True)


def upgrade(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Name of the service.")],
    content: Annotated[
        str,
        typer.Argument(
            metavar="CONTENT",
            help="content_id of the new model, or its first characters; `edl describe service"
            " NAME` lists the contents.",
        ),
    ],
    at: Annotated[
        Literal["epoch", "now"],
        typer.Option(
            help="epoch: each student moves when it begins its next epoch, so that every epoch has "
            "labels of one content; now: all move at once."
        ),
    ] = "epoch",
    context: Mesh = None,
) -> None:
    """Move a service to another model, of which teachers already run in the service.

    A student never gets labels of both models at once, and keeps the old model while no teacher of
    the new model serves. `edl describe service NAME` shows how many students have not moved yet;
    when all have moved, the old teachers can be drained.
    """
    quiet_grpc()
    from ...coordinator.calling import client

    mesh = mesh_context(context)
    typer.echo(client.upgrade(mesh.coordinator, service, content, at, security=mesh.security()))


def reserve(
    slots: Annotated[int, typer.Argument(min=1, metavar="SLOTS", help="Number of slots.")],
    name: Annotated[str, typer.Option(help="Name of the reservation.")] = "service",
    for_: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="SECONDS",
            min=0.1,
            help="How long, including the wait for the slots. Default: until Ctrl-C.",
        ),
    ] = None,
    context: Mesh = None,
) -> None:
    """Reserve slots of elastic jobs for an online service, as long as this command runs.

    Prints the slots and their cores when the nodes in these slots have left. On Kubernetes there
    are no slots: use priorities of pods.
    """
    from contextlib import closing

    from ...coordinator.job_queue import open_queue
    from ...runtime.lifecycle import stop_on_signals
    from ..jobs.queue_backend import hold_slots

    jobs = _jobs(context)
    if jobs.namespace is not None:
        raise UsageError(
            "on Kubernetes there are no slots to reserve: elastic jobs make room for teachers of a"
            " TeacherService by themselves, and for other pods with a `priorityClassName` above"
            " that of the jobs; docs/how-to/elastic-jobs.md says more"
        )
    queue = open_queue(jobs.mesh.coordinator, jobs.mesh.queue)
    with closing(queue), stop_on_signals() as stop:
        hold_slots(queue, name, slots, for_, stop, typer.echo)


def events(
    service: Service = "",
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Show events of elastic jobs instead.")
    ] = False,
    last: Annotated[
        int, typer.Option(min=0, help="Number of latest events; 0: all stored events.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new events until Ctrl-C.")
    ] = False,
    json: AsJson = False,
    context: Mesh = None,
) -> None:
    """Show the log of the mesh: members that joined, left or were lost, and assignments.

    Each event has its reason.
    """
    quiet_grpc()
    if jobs:
        if service or follow:
            raise UsageError("with --jobs there is no --service and no --follow: leave them out")
        _events_of_jobs(_jobs(context), last, json)
        return
    from ...coordinator.calling import client
    from ...coordinator.ops.text_output import event_json, event_text

    mesh = mesh_context(context)
    out = console()
    try:
        for event in client.watch(
            mesh.coordinator, service=service, last=last, follow=follow, security=mesh.security()
        ):
            if json:
                print(event_json(event), flush=True)
            else:
                out.print(event_text(event), soft_wrap=True)
    except KeyboardInterrupt:
        if not follow:  # Ctrl-C ends --follow
            raise


def _events_of_jobs(jobs: JobKind, last: int, json: bool) -> None:
    from json import dumps

    from ..jobs.views import event_line

    for event in jobs.events(last):
        if json:
            print(dumps({"at_ms": event.at_ms, **event.body}))
        else:
            typer.echo(escape_control_characters(event_line(event)))


def _resources(kind: str, context: Sequence[str] | None) -> ResourceKind:
    """Return the resources of a kind, given by its name or its plural."""
    from importlib import import_module

    quiet_grpc()
    name = kind if kind in _KINDS else kind.removesuffix("s")
    if name not in _KINDS:
        raise UsageError(f"there is no kind {kind!r:.40}; there are: {', '.join(_KINDS)}")
    module, class_name = _KINDS[name]
    resources: ResourceKind = getattr(import_module(f".{module}", __package__), class_name)(context)
    return resources


def _jobs(context: Sequence[str] | None) -> JobKind:
    from .jobs import JobKind

    return JobKind(context)
