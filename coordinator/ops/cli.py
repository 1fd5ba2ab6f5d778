"""The commands `edl status`, `edl doctor` and `edl context add|use`."""

from __future__ import annotations

import json as json_format
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...proto.security.options import TlsKeys
from ...runtime.errors import AccessError, CoordinatorUnavailable, UnavailableError, UsageError
from ...runtime.structured_option import AsJson, Given, Key, StructuredOption
from ..config import DEFAULT_URL
from ..contexts import MeshContext
from ..store.redis_url import parse, with_absolute_paths
from .options import Mesh, Service, console, context_file, mesh_context, quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from ...proto import coordinator_pb2 as pb
    from .jobs_view import JobState
    from .machines_view import MachinesState
    from .queue_view import QueueState

_REFRESH_S: Final = 1.0
#: Maximum number of rows of a table without --all.
_ROWS: Final = 40


def status(
    service: Service = "",
    all_: Annotated[
        bool,
        typer.Option(
            "--all", help=f"Show all members. Default: {_ROWS} in a table, problems first."
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print all as JSON; newer versions add fields and never remove any."
        ),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh each second until Ctrl-C.")] = (
        False
    ),
    context: Mesh = None,
) -> None:
    """Show teachers, students, assignments, machines, trainings, and a line about elastic jobs."""
    quiet_grpc()
    from ..calling.client import fetch_status

    max_rows = 0 if all_ or json else _ROWS
    mesh = mesh_context(context)
    url = mesh.coordinator
    fetch = partial(fetch_status, url, service, max_members=max_rows, security=mesh.security())
    read = partial(_read_all, fetch, url, service, mesh.queue)
    try:
        if json:
            _print_json(read, service, watch)
        elif watch:
            _watch(read, service, max_rows)
        else:
            console().print(_render(_checked(read(), service), service, max_rows))
    except KeyboardInterrupt:
        if not watch:  # Ctrl-C is the usual end of --watch
            raise


@dataclass(frozen=True, slots=True)
class _MeshState:
    """The mesh as a manager knows it; trainings, machines and the queue as Redis has them.

    `no_manager`: why no manager answers; empty if one does. `machines` and `queue` are None if the
    user may not read them.
    """

    mesh: pb.MeshStatus
    trainings: Sequence[JobState]
    no_manager: str
    machines: MachinesState | None
    queue: QueueState | None


def _read_all(fetch: Callable[[], pb.MeshStatus], url: str, service: str, queue: str) -> _MeshState:
    """Return the state of the mesh; without a manager, only if trainings or elastic jobs exist.

    Raises:
        CoordinatorUnavailable: no manager answers, and there is nothing else to show: `service` is
            given, or Redis has neither trainings, nor agents for elastic jobs, nor unfinished
            elastic jobs.
    """
    from ...proto import coordinator_pb2 as pb
    from .machines_view import machines_at

    no_manager = ""
    trainings, queued = ((), None) if service else (_trainings(url), _queue(url, queue))
    try:
        mesh = fetch()
    except CoordinatorUnavailable as error:  # trainings only need Redis
        if not (trainings or queued):
            raise
        mesh, no_manager = pb.MeshStatus(), str(error)
    machines = machines_at(url)
    return _MeshState(mesh, trainings, no_manager, machines and machines.of(service), queued)


def _checked(state: _MeshState, service: str) -> _MeshState:
    """Return the state. Raises UsageError if the named service does not exist."""
    deployed = state.machines is not None and state.machines.deployments
    if service and not state.mesh.services and not deployed:
        raise UsageError(f"there is no service {service!r}: 'edl get services' shows all")
    return state


def _trainings(url: str) -> Sequence[JobState]:
    from ..jobs import open_job_board
    from .jobs_view import read_jobs

    with closing(open_job_board(url)) as board:
        try:
            return read_jobs(board)
        except AccessError:  # the user of this URL may only call managers
            return ()


def _queue(url: str, queue: str) -> QueueState | None:
    from ..job_queue import open_queue
    from .queue_view import read_queue

    with closing(open_queue(url, queue)) as board:
        try:
            return read_queue(board, queue)
        except AccessError:  # as in `_trainings`
            return None


def _to_json(state: _MeshState) -> dict[str, Any]:
    from . import jobs_view, machines_view, queue_view
    from .status_view import to_json

    machines = machines_view.to_json(state.machines or machines_view.MachinesState())
    trainings = [jobs_view.to_json(training) for training in state.trainings]
    queue = queue_view.to_json(state.queue) if state.queue is not None else None
    return {**to_json(state.mesh), **machines, "jobs": trainings, "elastic_jobs": queue}


def _render(state: _MeshState, service: str, max_rows: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from . import jobs_view, machines_view, queue_view
    from .status_view import render

    mesh: RenderableType = (
        Text(state.no_manager, style="dim") if state.no_manager else render(state.mesh, service)
    )
    machines = [machines_view.render(state.machines, max_rows)] if state.machines else []
    queue = [Text(queue_view.line(state.queue), style="bold")] if state.queue else []
    return Group(
        mesh,
        *machines,
        *queue,
        *(jobs_view.render(training, max_rows) for training in state.trainings),
    )


def _print_json(read: Callable[[], _MeshState], service: str, again: bool) -> None:
    """Print one document; with `again`, one per second, each in one line."""
    if not again:
        print(json_format.dumps(_to_json(_checked(read(), service)), indent=2))
        return
    state = read()
    while True:
        print(json_format.dumps(_to_json(state)), flush=True)
        time.sleep(_REFRESH_S)
        state = _await_state(read)


def _await_state(read: Callable[[], _MeshState]) -> _MeshState:
    """Return the next state; write each failure before it to stderr."""
    while True:
        try:
            return read()
        except UnavailableError as error:  # it may answer again
            print(error, file=sys.stderr, flush=True)
            time.sleep(_REFRESH_S)


def _watch(read: Callable[[], _MeshState], service: str, max_rows: int) -> None:
    from rich.live import Live
    from rich.text import Text

    def read_and_render() -> RenderableType:
        try:
            return _render(read(), service, max_rows)
        except UnavailableError as error:  # it may answer again
            return Text(str(error), style="bold red")

    out = console()
    first = _render(read(), service, max_rows)
    if not out.is_terminal:  # a file, a pipe: one table after another
        out.print(first)
        while True:
            time.sleep(_REFRESH_S)
            out.print(read_and_render())
    with Live(first, console=out, auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_S)
            live.update(read_and_render(), refresh=True)


def doctor(json: AsJson = False, context: Mesh = None) -> None:
    """Check from this machine whether students and commands can use the mesh.

    Checks Redis with its clock and memory, service managers, versions, credentials, services, and
    whether their teachers can be reached from here. Exits with 1 if something is wrong.
    """
    quiet_grpc()
    from .doctor import examine
    from .text_output import finding_text

    findings = []
    out = console()
    mesh = mesh_context(context)
    for finding in examine(mesh.coordinator, mesh.security):
        findings.append(finding)
        if not json:
            out.print(finding_text(finding), soft_wrap=True)
    if json:
        print(json_format.dumps([asdict(finding) for finding in findings], indent=2))
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(1)


#: Reads no environment variables: they may be of another mesh.
TLS: Final = StructuredOption("--tls", TlsKeys, variables=False)


@dataclass(frozen=True, slots=True)
class ElasticJobsKeys:
    """Keys of `--jobs-on`, which says where elastic jobs run."""

    where: Annotated[
        str,
        Key(
            "queue (in Redis; 'edl agent jobs' runs them) or kubernetes\\[:NAMESPACE] (the "
            "operator there runs them)."
        ),
    ] = "queue"
    queue: Annotated[str, Key("name of the queue, if a mesh has more than one.")] = "main"
    kubeconfig: Annotated[Path | None, Key("of the cluster. Default: kubectl's.")] = None
    kube_context: Annotated[str, Key("context of the kubeconfig. Default: its current one.")] = ""


JOBS_ON: Final = StructuredOption("--jobs-on", ElasticJobsKeys, first="where")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.callback()
def context() -> None:
    """Contexts: named meshes and how to reach them, in ~/.config/edl-dist/contexts.yaml.

    Commands such as 'edl status' use the current context, or the one that --context names. 'edl get
    contexts' lists them, 'edl delete context NAME' removes one.
    """


@app.command()
def add(
    name: Name,
    coordinator: Annotated[
        str, typer.Option("--redis", help="Redis URL of the mesh.")
    ] = DEFAULT_URL,
    tls: Annotated[
        list[Given] | None, TLS.option("Files of TLS; ca= verifies the service managers.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the bearer token to call with.")
    ] = None,
    jobs_on: Annotated[
        list[Given] | None, JOBS_ON.option("Where elastic jobs run, as in kubernetes:research.")
    ] = None,
) -> None:
    """Add a context, or replace the one of this name. It becomes current if no context is.

    This contacts no server; 'edl doctor --context NAME' checks the mesh.
    """
    files, jobs = TLS.read(tls), JOBS_ON.read(jobs_on)
    parse(coordinator)  # raises if it is not a Redis URL
    added = MeshContext(
        coordinator=with_absolute_paths(coordinator),
        tls_ca=_absolute(files.ca),
        tls_cert=_absolute(files.cert),
        tls_key=_absolute(files.key),
        token_file=_absolute(token_file),
        jobs_on=jobs.where,
        queue=jobs.queue,
        kubeconfig=_absolute(jobs.kubeconfig),
        kube_context=jobs.kube_context,
    )
    added.security()  # raises if the files do not fit together
    file = context_file()
    contexts = file.change(lambda contexts: contexts.add(name, added))
    hint = (
        "" if contexts.current == name else f"; 'edl context use {name}' makes it the current one"
    )
    typer.echo(f"context {name} is in {file.path}{hint}")


@app.command()
def use(name: Name) -> None:
    """Make a context the current one."""
    context_file().change(lambda contexts: contexts.use(name))
    typer.echo(f"context {name} is the current one")


def _absolute(path: Path | None) -> Path | None:
    """Return the absolute path of a file, for a context. Raises UsageError if it does not exist."""
    if path is None:
        return None
    if not path.expanduser().is_file():
        raise UsageError(f"there is no file {path}")
    return path.expanduser().absolute()
