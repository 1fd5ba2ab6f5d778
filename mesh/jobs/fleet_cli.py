"""`edl fleet jobs`: run the jobs of a queue on this machine."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...coordinator.config import DEFAULT_URL
from ...coordinator.ops.options import Coordinator
from ...coordinator.options import LogFormat, Verbose
from ...supervise import end_with_parent
from .options import Queue


def jobs(
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Nodes at a time. Default: one for each core."),
    ] = None,
    mode: Annotated[
        Literal["elastic", "gang"],
        typer.Option(help="gang, to compare: a job has all of its nodes or none."),
    ] = "elastic",
    freeze: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="After a change a job is not changed again for so long for the sake of a fairer"
            " share; it still makes room for jobs that wait, and for reservations.",
        ),
    ] = 30.0,
    max_load: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the slots that may be taken.")
    ] = 1.0,
    yield_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="A node in the way of a reservation is killed when it has not left within this.",
        ),
    ] = 8.0,
    ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.5,
            max=3600.0,
            help="When this has given no sign for so long, another one takes the queue.",
        ),
    ] = 5.0,
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="Give each slot cores of its own.")
    ] = True,
    cards: Annotated[
        str,
        typer.Option(metavar="0,1,...", help="The accelerator card of each slot."),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(help="For logs, and checkpoints that no job names. Default: in the cache."),
    ] = None,
    queue: Queue = "main",
    coordinator: Coordinator = DEFAULT_URL,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Run the jobs of a queue on this machine: start their nodes, grow, shrink and end them.

    Ctrl-C lets all nodes leave at a safe point; their jobs wait for the next such command. When
    this process dies, its nodes end with it. A second one waits in reserve.
    """
    from contextlib import closing

    from ...coordinator.jobs import open_board
    from ...coordinator.queue import open_queue
    from ...lifecycle import open_all_descriptors, stop_on_signals
    from ...logs import configure_logging
    from ...scheduler.elastic_values import ElasticConfig
    from ..cores import available_cores
    from .fleet import Fleet
    from .runner import FleetRunner
    from .slots import divide

    end_with_parent()
    configure_logging(verbose, log_format)
    open_all_descriptors()
    cores = available_cores()
    count = slots or len(cores)
    host = socket.gethostname()
    fleet = Fleet(
        f"fleet-{os.getpid()}-{secrets.token_hex(3)}",
        host,
        coordinator,
        divide(cores, count) if pin else ((),) * count,
        (folder or _cache() / queue).expanduser().absolute(),
        ElasticConfig(mode=mode, max_load=max_load, freeze_s=freeze),
        yield_within,
        ttl,
        tuple(filter(None, cards.split(","))),
    )
    with (
        closing(open_queue(coordinator, queue)) as board,
        closing(open_board(coordinator)) as trainings,
        stop_on_signals() as stop,
    ):
        FleetRunner(board, trainings, fleet).run(stop)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edl-dist" / "jobs"
