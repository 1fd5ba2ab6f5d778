"""`edl job submit|list|scale|stop|logs|events|reserve`: elastic jobs that share a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...coordinator.config import DEFAULT_URL
from ...coordinator.ops.options import Coordinator, Json, console
from ...errors import UsageError
from .options import Name, Queue

if TYPE_CHECKING:
    from ...coordinator.queue import QueueBoard, QueuedJob

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def job() -> None:
    """Elastic jobs that share the slots of a fleet (`edl fleet jobs`)."""


@app.command()
def submit(
    file: Annotated[
        Path, typer.Argument(metavar="JOB.yaml", help="What it is: see docs/elastic-jobs.md.")
    ],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would run; change nothing."),
    ] = False,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Add a job to the queue; a fleet runs it as soon as there is room for its fewest nodes."""
    from .spec import read_job
    from .views import manifest

    spec = read_job(file)
    if dry_run:
        for line in manifest(spec):
            typer.echo(line)
        return
    with _open(coordinator, queue) as board:
        number = board.submit(spec.name, spec.to_json())
        if number is None:
            raise UsageError(
                f"there is a job {spec.name} that has not ended: 'edl job stop {spec.name}' ends"
                " it, another `name:` is another job"
            )
        runner = board.runner()
    typer.echo(f"job {spec.name} is number {number} of queue {queue}")
    if runner is None:
        typer.echo("nobody runs jobs now: 'edl fleet jobs --slots N' does")
    elif spec.min_nodes > (slots := int(runner.facts.get("slots", 0))):
        typer.echo(f"it needs {spec.min_nodes} slots, and the fleet has {slots}: it waits for more")


@app.command("list")
def list_jobs(
    json: Json = False, queue: Queue = "main", coordinator: Coordinator = DEFAULT_URL
) -> None:
    """Show all jobs: their state, nodes and limits, how long they waited, and why."""
    import json as format_

    from . import views

    with _open(coordinator, queue) as board:
        jobs, runner = board.jobs(), board.runner()
        reservations, now_ms = board.reservations(), board.time_ms()
    if json:
        found = views.to_json(jobs, runner, reservations, now_ms)
        print(format_.dumps(found, indent=2))
        return
    out = console()
    out.print(views.fleet_line(runner, reservations), soft_wrap=True, highlight=False)
    if jobs:
        out.print(views.table(jobs, now_ms))
    else:
        typer.echo(f"no job in queue {queue}: 'edl job submit JOB.yaml' adds one")


@app.command()
def scale(
    name: Name,
    nodes: Annotated[
        str,
        typer.Argument(metavar="N|auto", help="So many nodes, within its limits; or auto."),
    ],
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Have a job run with N nodes once there is room; auto: with as many as there is room for."""
    from dataclasses import replace

    from .spec import JobSpec

    if nodes != "auto" and not nodes.isdecimal():
        raise UsageError(f"expects a number of nodes or 'auto', got {nodes!r}")
    with _open(coordinator, queue) as board:
        found = _find(board, name, queue)
        spec = JobSpec.from_json(found.spec)
        count = None if nodes == "auto" else int(nodes)
        if count is not None and not spec.min_nodes <= count <= spec.max_nodes:
            raise UsageError(
                f"job {name} runs with {spec.min_nodes} to {spec.max_nodes} nodes, not with"
                f" {count}; 'edl job stop {name}' ends it"
            )
        _ask(board.wish(name, replace(found.wish, nodes=count)), name)
    asked = "as many nodes as there is room for" if count is None else f"{count} nodes"
    typer.echo(f"job {name} is to run with {asked}")


@app.command()
def stop(
    name: Name,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long for its end.", min=0.0)
    ] = 0.0,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """End a job: its nodes leave at a safe point, and a training keeps its checkpoint."""
    from dataclasses import replace

    from .following import wait_for_end

    with _open(coordinator, queue) as board:
        found = _find(board, name, queue)
        _ask(board.wish(name, replace(found.wish, stop=True)), name)
        if wait:
            ended = wait_for_end(board, found, wait)
            typer.echo(f"job {name}: {ended.state}")
            return
        running = board.runner() is not None
    typer.echo(f"job {name} is to stop" + ("" if running else ", once a fleet runs: nobody does"))


@app.command()
def logs(
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until the job ends.")
    ] = False,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Show what the nodes of a job printed last, each line with its node."""
    from .following import log_lines

    with _open(coordinator, queue) as board:
        found = _find(board, name, queue)
        try:
            for line in log_lines(board, found, follow):
                print(line, flush=True)
        except KeyboardInterrupt:
            if not follow:  # which is ended in no other way
                raise


@app.command()
def events(
    last: Annotated[int, typer.Option(min=1, help="So many, the latest.")] = 50,
    json: Json = False,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Show what happened to the jobs of the queue, and why."""
    import json as format_

    from ...coordinator.queue.board import EVENTS_KEPT
    from .views import event_line

    with _open(coordinator, queue) as board:
        found = board.events(count=EVENTS_KEPT)[-last:]
    for event in found:
        if json:
            print(format_.dumps({"at_ms": event.at_ms, **event.body}))
        else:
            typer.echo(event_line(event))


@app.command()
def reserve(
    slots: Annotated[int, typer.Argument(min=1, metavar="SLOTS", help="How many.")],
    name: Annotated[str, typer.Option(help="Of who needs them, in `edl job list`.")] = "service",
    for_: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.1, help="Default: until Ctrl-C."),
    ] = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
) -> None:
    """Take slots back from the jobs, for an online service, as long as this command runs.

    Says which slots, and their cores, as soon as the nodes there have left.
    """
    from ...lifecycle import stop_on_signals
    from .reserving import hold

    with _open(coordinator, queue) as board, stop_on_signals() as wish:
        hold(board, name, slots, for_, wish, typer.echo)


@contextmanager
def _open(coordinator: str, queue: str) -> Iterator[QueueBoard]:
    from ...coordinator.queue import open_queue

    board = open_queue(coordinator, queue)
    try:
        yield board
    finally:
        board.close()


def _find(board: QueueBoard, name: str, queue: str) -> QueuedJob:
    found = next((one for one in board.jobs() if one.name == name), None)
    if found is None:
        raise UsageError(f"there is no job {name!r} in queue {queue}: 'edl job list' shows all")
    return found


def _ask(taken: bool, name: str) -> None:
    if not taken:
        raise UsageError(f"job {name} has ended already: 'edl job list' says how")
