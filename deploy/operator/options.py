"""The options of `edl operator run`: their help, their limits, their environment variables."""

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
        help="Whose resources are made true. Default: the one of the context, or of the pod.",
        rich_help_panel=_CLUSTER,
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option(
        "--all-namespaces",
        "-A",
        help="Those of every namespace; the lease stays in --namespace.",
        rich_help_panel=_CLUSTER,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        envvar="KUBECONFIG",
        metavar="FILE",
        help="Says where the cluster is. Default: ~/.kube/config, or within a pod its account.",
        rich_help_panel=_CLUSTER,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of the kubeconfig. Default: its current one.",
        rich_help_panel=_CLUSTER,
    ),
]
GrowingCluster = Annotated[
    bool,
    typer.Option(
        "--growing-cluster",
        envvar="EDL_GROWING_CLUSTER",
        help="Machines come when pods wait for them: what is free now is no bound.",
        rich_help_panel=_CLUSTER,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_COORDINATOR",
        metavar="URL",
        help="Redis URL of the mesh, for resources that name none.",
    ),
]
Interval = Annotated[
    float,
    typer.Option(
        envvar="EDL_INTERVAL",
        metavar="SECONDS",
        help="Between two looks at everything. Changes of resources, and of what was made of them,"
        " are seen at once; of machines by then.",
    ),
]
MaxLoad = Annotated[
    float,
    typer.Option(
        envvar="EDL_MAX_LOAD",
        help="The share of what the cluster has that jobs and all others may take together.",
        rich_help_panel=_JOBS,
    ),
]
Freeze = Annotated[
    float,
    typer.Option(
        envvar="EDL_FREEZE",
        metavar="SECONDS",
        help="A job that was changed keeps its nodes for so long, unless it has to make room.",
        rich_help_panel=_JOBS,
    ),
]
PlaceWithin = Annotated[
    float,
    typer.Option(
        envvar="EDL_PLACE_WITHIN",
        metavar="SECONDS",
        help="A job does without nodes that the cluster cannot place for so long.",
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
        help="After so long without a sign of life of the one that acts another one does.",
        rich_help_panel=_LEAD,
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics and health here; a port alone is one of this machine only.",
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
