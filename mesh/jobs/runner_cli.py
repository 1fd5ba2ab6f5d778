"""The command `edl agent jobs`."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from ...coordinator.ops.options import Mesh, mesh_context
from ...runtime.errors import UsageError
from ...runtime.structured_option import Given, Key, StructuredOption
from ...runtime.supervise import end_with_parent
from ...scheduler.elastic_values import ElasticConfig


@dataclass(frozen=True, slots=True)
class ShareKeys:
    """Keys of `--share`."""

    mode: Annotated[
        Literal["elastic", "gang"],
        Key("elastic; or gang, for comparison: a job has its greatest number of nodes or none."),
    ] = "elastic"
    freeze: Annotated[
        float,
        Key(
            "seconds for which a resized job keeps its number of nodes, unless it has to make"
            " room.",
            at_least=0,
            metavar="SECONDS",
        ),
    ] = 30.0
    max_load: Annotated[
        float,
        Key("share of the slots that jobs and reservations may take together.", at_least=0.01),
    ] = 1.0
    yield_within: Annotated[
        float,
        Key(
            "seconds that a node has to leave a slot that edl reserve needs; then it is killed.",
            at_least=0,
            metavar="SECONDS",
        ),
    ] = 8.0


SHARE: Final = StructuredOption("--share", ShareKeys)
Share = Annotated[list[Given] | None, SHARE.option("How jobs share the slots, as in freeze=60.")]


def jobs(
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Nodes that run at a time. Default: one per core."),
    ] = None,
    share: Share = None,
    ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.5,
            max=3600.0,
            help="Seconds without a heartbeat after which another runner takes over.",
        ),
    ] = 5.0,
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="Pin each slot to its own cores.")
    ] = True,
    cards: Annotated[
        str,
        typer.Option(metavar="0,1,...", help="GPU of each slot. Default: each node sees all GPUs."),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for logs, and for checkpoints of jobs without --checkpoint. Default: in "
            "~/.cache/edl-dist/jobs."
        ),
    ] = None,
    context: Mesh = None,
) -> None:
    """Run the jobs of a queue on this machine: start, scale and stop their nodes.

    Ctrl-C ends all nodes at a safe point; their jobs wait until this command runs again. When this
    process dies, its nodes end with it. A second `edl agent jobs` for the same queue waits until
    the first one ends, and takes over.
    """
    from contextlib import closing

    from ...coordinator.job_queue import open_queue
    from ...coordinator.jobs import open_job_board
    from ...runtime.lifecycle import raise_descriptor_limit, stop_on_signals
    from ...runtime.logs import configure_logging
    from ..cores import available_cores
    from ..output import cache_folder
    from .node_scaler import JobRunnerConfig, divide_cores
    from .runner import JobRunner

    end_with_parent()
    configure_logging()
    raise_descriptor_limit()
    mesh = mesh_context(context)
    cores = available_cores()
    slot_count = slots or len(cores)
    host = socket.gethostname()
    share_keys = SHARE.read(share)
    config = JobRunnerConfig(
        f"fleet-{os.getpid()}-{secrets.token_hex(3)}",
        host,
        mesh.coordinator,
        divide_cores(cores, slot_count) if pin else ((),) * slot_count,
        (folder or cache_folder("jobs") / mesh.queue).expanduser().absolute(),
        _elastic_config(share_keys),
        share_keys.yield_within,
        ttl,
        tuple(filter(None, cards.split(","))),
    )
    with (
        closing(open_queue(mesh.coordinator, mesh.queue)) as queue,
        closing(open_job_board(mesh.coordinator)) as board,
        stop_on_signals() as stop,
    ):
        JobRunner(queue, board, config).run(stop)


def _elastic_config(keys: ShareKeys) -> ElasticConfig:
    try:
        return ElasticConfig(mode=keys.mode, max_load=keys.max_load, freeze_s=keys.freeze)
    except ValueError as error:
        raise UsageError(f"--share: {error}") from None
