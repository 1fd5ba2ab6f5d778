"""The command `edl status`: teachers, students, assignments, machines and trainings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...runtime.errors import UsageError
from .options import Mesh, Service, console, mesh_context, quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from ...proto import coordinator_pb2 as pb
    from .jobs_view import JobState
    from .machines_view import MachinesState
    from .queue_view import QueueState

_REFRESH_S: Final = 1.0
#: Most rows of a table, without --all.
_ROWS: Final = 40


def status(
    service: Service = "",
    all_: Annotated[
        bool,
        typer.Option("--all", help=f"Show all members. Default: {_ROWS}, problems first."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print all as JSON; coordinator/ops/status_view.py describes it."
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

    most = 0 if all_ or json else _ROWS
    mesh = mesh_context(context)
    url = mesh.coordinator
    fetch = partial(fetch_status, url, service, max_members=most, security=mesh.security())
    ask = partial(_look, fetch, url, service, mesh.queue)
    try:
        if json:
            _print_json(ask, service, watch)
        elif watch:
            _watch(ask, service, most)
        else:
            console().print(_render(_found(ask(), service), service, most))
    except KeyboardInterrupt:
        if not watch:  # --watch has no other end
            raise


@dataclass(frozen=True, slots=True)
class _Seen:
    """The mesh as a manager knows it, and the rest as Redis has it.

    `machines` and `queue` are None if the user may not read them.
    """

    mesh: pb.MeshStatus
    jobs: Sequence[JobState]
    no_manager: str = ""
    machines: MachinesState | None = None
    queue: QueueState | None = None


def _look(fetch: Callable[[], pb.MeshStatus], url: str, service: str, queue: str) -> _Seen:
    """Raise CoordinatorUnavailable if no manager answers, and there are no trainings or jobs."""
    from ...proto import coordinator_pb2 as pb
    from ...runtime.errors import CoordinatorUnavailable
    from .machines_view import machines_at

    try:
        mesh = fetch()
    except CoordinatorUnavailable as error:  # trainings only need Redis
        jobs, queued = (_jobs(url), _queue(url, queue)) if not service else ((), None)
        if not (jobs or queued):
            raise
        return _Seen(pb.MeshStatus(), jobs, str(error), machines_at(url), queued)
    machines = machines_at(url)
    machines = machines and machines.of(service)
    if service:
        return _Seen(mesh, (), machines=machines)
    return _Seen(mesh, _jobs(url), machines=machines, queue=_queue(url, queue))


def _found(seen: _Seen, service: str) -> _Seen:
    deployed = seen.machines is not None and seen.machines.deployments
    if service and not seen.mesh.services and not deployed:
        raise UsageError(f"there is no service {service!r}: 'edl get services' shows all")
    return seen


def _jobs(url: str) -> Sequence[JobState]:
    from ...runtime.errors import AccessError
    from ..jobs import open_board
    from .jobs_view import read_jobs

    with closing(open_board(url)) as board:
        try:
            return read_jobs(board)
        except AccessError:  # the user of this URL may only call managers
            return ()


def _queue(url: str, queue: str) -> QueueState | None:
    from ...runtime.errors import AccessError
    from ..job_queue import open_queue
    from .queue_view import read_queue

    with closing(open_queue(url, queue)) as board:
        try:
            return read_queue(board, queue)
        except AccessError:  # as above
            return None


def _to_json(seen: _Seen) -> dict[str, Any]:
    from . import jobs_view, machines_view, queue_view
    from .status_view import to_json

    machines = machines_view.to_json(seen.machines or machines_view.MachinesState())
    jobs = [jobs_view.to_json(one) for one in seen.jobs]
    queue = queue_view.to_json(seen.queue) if seen.queue is not None else None
    return {**to_json(seen.mesh), **machines, "jobs": jobs, "elastic_jobs": queue}


def _render(seen: _Seen, service: str, most: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from . import jobs_view, machines_view, queue_view
    from .status_view import render

    mesh: RenderableType = (
        Text(seen.no_manager, style="dim") if seen.no_manager else render(seen.mesh, service)
    )
    machines = [machines_view.render(seen.machines, most)] if seen.machines else []
    queue = [Text(queue_view.line(seen.queue), style="bold")] if seen.queue else []
    return Group(mesh, *machines, *queue, *(jobs_view.render(one, most) for one in seen.jobs))


def _print_json(ask: Callable[[], _Seen], service: str, again: bool) -> None:
    """Print one document; with `again`, one per second, each in one line."""
    import json
    import time

    if not again:
        print(json.dumps(_to_json(_found(ask(), service)), indent=2))
        return
    while True:
        print(json.dumps(_to_json(ask())), flush=True)
        time.sleep(_REFRESH_S)


def _watch(ask: Callable[[], _Seen], service: str, most: int) -> None:
    import time

    from rich.live import Live
    from rich.text import Text

    from ...runtime.errors import UnavailableError

    def look() -> RenderableType:
        try:
            return _render(ask(), service, most)
        except UnavailableError as error:  # it may come back
            return Text(str(error), style="bold red")

    out = console()
    first = _render(ask(), service, most)
    if not out.is_terminal:  # a file, a pipe: one table after another
        out.print(first)
        while True:
            time.sleep(_REFRESH_S)
            out.print(look())
    with Live(first, console=out, auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_S)
            live.update(look(), refresh=True)
