"""Options of `edl operator run`: help, limits and environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_CLUSTER = "The cluster"
_JOBS = "How jobs share"
_LEAD = "Several operators"
_METRICS = "Metrics and health"

Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        envvar="EDL_NAMESPACE",
        metavar="NAME",
        help="Namespace of the resources. Default: that of the context, or of the pod.",
        rich_help_panel=_CLUSTER,
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option(
        "--all-namespaces",
        "-A",
        help="Reconcile resources of all namespaces; the lease stays in --namespace.",
        rich_help_panel=_CLUSTER,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        envvar="KUBECONFIG",
        metavar="FILE",
        help="Kubeconfig file. Default: ~/.kube/config; in a pod, its service account.",
        rich_help_panel=_CLUSTER,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Context of the kubeconfig. Default: its current one.",
        rich_help_panel=_CLUSTER,
    ),
]
GrowingCluster = Annotated[
    bool,
    typer.Option(
        "--growing-cluster",
        envvar="EDL_GROWING_CLUSTER",
        help="The cluster adds machines for waiting pods: do not limit pods to what is free now.",
        rich_help_panel=_CLUSTER,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--redis",
        envvar="EDL_COORDINATOR",
        metavar="URL",
        help="Redis URL of the mesh for resources that name none.",
    ),
]
Interval = Annotated[
    float,
    typer.Option(
        envvar="EDL_INTERVAL",
        metavar="SECONDS",
        help="Time between two rounds. Changes of resources, and of objects created for them, start"
        " a round at once; changes of machines do not.",
    ),
]
MaxLoad = Annotated[
    float,
    typer.Option(
        envvar="EDL_MAX_LOAD",
        help="Share of the cluster's capacity that jobs and all other pods may use together.",
        rich_help_panel=_JOBS,
    ),
]
Freeze = Annotated[
    float,
    typer.Option(
        envvar="EDL_FREEZE",
        metavar="SECONDS",
        help="A resized job keeps its number of nodes for so long, unless it has to make room.",
        rich_help_panel=_JOBS,
    ),
]
PlaceWithin = Annotated[
    float,
    typer.Option(
        envvar="EDL_PLACE_WITHIN",
        metavar="SECONDS",
        help="A job does without nodes whose pods the cluster does not schedule within this time.",
        rich_help_panel=_JOBS,
    ),
]
LeaderElect = Annotated[
    bool,
    typer.Option(
        "--leader-elect/--no-leader-elect",
        help="Act only while holding the Lease edl-operator.",
        rich_help_panel=_LEAD,
    ),
]
LeaseDuration = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="EDL_LEASE_DURATION",
        metavar="SECONDS",
        help="Another operator takes over if the leader does not renew the lease for so long.",
        rich_help_panel=_LEAD,
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics and health here; a port alone: for this machine only.",
        rich_help_panel=_METRICS,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Serve metrics beyond this machine without credentials.",
        rich_help_panel=_METRICS,
    ),
]
