"""The options that the commands of jobs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Queue = Annotated[
    str,
    typer.Option(envvar="EDL_QUEUE", help="Name of the queue, where a mesh has more than one."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the job, as in `edl job list`.")]
On = Annotated[
    str,
    typer.Option(
        envvar="EDL_JOBS_ON",
        metavar="WHERE",
        help="Where jobs run: queue, the one of a fleet in Redis; or kubernetes[:NAMESPACE], a"
        " cluster with the operator.",
    ),
]
Context = Annotated[
    str,
    typer.Option(metavar="NAME", help="Of the kubeconfig, for kubernetes. Default: the current."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        envvar="KUBECONFIG",
        metavar="FILE",
        help="Says where the cluster is, for kubernetes. Default: ~/.kube/config, or within a pod"
        " its own account.",
    ),
]
