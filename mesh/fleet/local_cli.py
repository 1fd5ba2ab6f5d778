"""`edl fleet local`: teachers of a service on this machine, as many as it should have."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated

import typer

from ...coordinator.config import DEFAULT_TTL_S
from ...coordinator.ops.options import Coordinator, MeshName, mesh_context, quiet_grpc
from ...coordinator.options import LogFormat, Verbose
from ...runtime.supervise import end_with_parent


def local(
    service: Annotated[str, typer.Option(help="Name of the service.")],
    model: Annotated[str, typer.Option(help="Model of each teacher: a path, or module:function.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPTIONS",
            help="After --: further options of 'edl teacher serve'.",
        ),
    ] = None,
    least: Annotated[
        int, typer.Option("--min", min=0, help="Least number of teachers, unless none is wanted.")
    ] = 0,
    most: Annotated[
        int | None,
        typer.Option("--max", min=0, help="Greatest number of teachers. Default: one per core."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a teacher.")] = 1,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per run of the model.")] = 8,
    ttl: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="A teacher is dead without a heartbeat for so long."),
    ] = DEFAULT_TTL_S,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="Time for a teacher to finish its requests."),
    ] = 10.0,
    logs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the output of each teacher.")
    ] = None,
    context: MeshName = "",
    coordinator: Coordinator = "",
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Run teachers of a service on this machine: as many as the coordinator wants.

    Starts teachers when students need them, replaces those that die, and drains those that are not
    needed any more: all, if there is no student. Ctrl-C drains all; they also end if this process
    dies.
    """
    from contextlib import ExitStack

    from ...coordinator.registry.keys import check_member, check_service
    from ...runtime.lifecycle import open_all_descriptors, stop_on_signals
    from ...runtime.logs import configure_logging
    from ..cores import available_cores
    from ..local import TeacherSpec
    from .local import LocalFleet, LocalFleetRunner
    from .service_poller import FLEET_PREFIX, ServicePoller

    end_with_parent(grace + 10.0)
    configure_logging(verbose, log_format)
    open_all_descriptors()
    quiet_grpc()
    mesh = mesh_context(context, coordinator)
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    fleet = LocalFleet(
        TeacherSpec(
            check_service(service), model, threads, micro_batch, ttl, grace, tuple(options or ())
        ),
        mesh.coordinator,
        check_member("teachers", f"{FLEET_PREFIX}{host}-{os.getpid()}"),
        least,
        len(available_cores()) if most is None else most,
        logs,
    )
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    poller = ServicePoller(mesh.coordinator, service, mesh.security())
    with stop_on_signals() as stop, ExitStack() as undo:
        undo.callback(poller.stop)
        poller.start()
        typer.echo(f"fleet ready: {service}, {fleet.least} to {fleet.most} teachers")
        LocalFleetRunner(fleet, lambda: poller.latest, registered=lambda: poller.registered).run(
            stop
        )
