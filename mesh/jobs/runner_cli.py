"""The command `edl agent jobs`."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...coordinator.ops.options import Mesh, mesh_context
from ...coordinator.options import Verbose
from ...runtime.supervise import end_with_parent


def jobs(
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Nodes that run at a time. Default: one per core."),
    ] = None,
    mode: Annotated[
        Literal["elastic", "gang"],
        typer.Option(help="gang: a job has all of its nodes or none, to compare."),
    ] = "elastic",
    freeze: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="After a change, a job is not changed again for so long to make shares fairer; it"
            " still makes room for waiting jobs and reservations.",
        ),
    ] = 30.0,
    max_load: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the slots that jobs may take.")
    ] = 1.0,
    yield_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="A node in a reserved slot is killed if it has not left within this time.",
        ),
    ] = 8.0,
    ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.5,
            max=3600.0,
            help="After so long without a heartbeat another runner takes over.",
        ),
    ] = 5.0,
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="Pin each slot to its own cores.")
    ] = True,
    cards: Annotated[
        str,
        typer.Option(metavar="0,1,...", help="Accelerator card of each slot."),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(help="For logs, and checkpoints without a folder. Default: in the cache."),
    ] = None,
    context: Mesh = None,
    verbose: Verbose = False,
) -> None:
    """Run the jobs of a queue on this machine: start, scale and stop their nodes.

    Ctrl-C ends all nodes at a safe point; their jobs wait until this command runs again. When this
    process dies, its nodes end with it. A second `edl agent jobs` for the same queue waits until
    the first one ends, and takes over.
    """
    from contextlib import closing

    from ...coordinator.jobs import open_board
    from ...coordinator.queue import open_queue
    from ...runtime.lifecycle import open_all_descriptors, stop_on_signals
    from ...runtime.logs import configure_logging
    from ...scheduler.elastic_values import ElasticConfig
    from ..cores import available_cores
    from ..output_files import cache_folder
    from .runner import JobRunner
    from .slots import JobRunnerConfig, divide_cores

    end_with_parent()
    configure_logging(verbose)
    open_all_descriptors()
    mesh = mesh_context(context)
    cores = available_cores()
    count = slots or len(cores)
    host = socket.gethostname()
    config = JobRunnerConfig(
        f"fleet-{os.getpid()}-{secrets.token_hex(3)}",
        host,
        mesh.coordinator,
        divide_cores(cores, count) if pin else ((),) * count,
        (folder or cache_folder("jobs") / mesh.queue).expanduser().absolute(),
        ElasticConfig(mode=mode, max_load=max_load, freeze_s=freeze),
        yield_within,
        ttl,
        tuple(filter(None, cards.split(","))),
    )
    with (
        closing(open_queue(mesh.coordinator, mesh.queue)) as board,
        closing(open_board(mesh.coordinator)) as trainings,
        stop_on_signals() as stop,
    ):
        JobRunner(board, trainings, config).run(stop)
