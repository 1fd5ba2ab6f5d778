"""Options of `edl operator run`: help, limits and environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ...runtime.structured_option import Given, Key, StructuredOption
from .config import OperatorConfig

_USUAL: Final = OperatorConfig()

_CLUSTER = "The cluster"
_JOBS = "How jobs share"
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
        help="Seconds between two rounds. Changes of resources, and of objects created for them,"
        " start a round at once; changes of machines do not.",
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterShareKeys:
    """Keys of `--share`."""

    max_load: Annotated[
        float,
        Key(
            "share of the cluster's capacity that jobs and all other pods may use together.",
            "EDL_MAX_LOAD",
        ),
    ] = _USUAL.elastic.max_load
    freeze: Annotated[
        float,
        Key(
            "seconds for which a resized job keeps its number of nodes, unless it has to make"
            " room.",
            "EDL_FREEZE",
            metavar="SECONDS",
        ),
    ] = _USUAL.elastic.freeze_s
    place_within: Annotated[
        float,
        Key(
            "seconds after which a job does without a node whose pod the cluster has not"
            " scheduled.",
            "EDL_PLACE_WITHIN",
            metavar="SECONDS",
        ),
    ] = _USUAL.place_within_s


SHARE: Final = StructuredOption("--share", ClusterShareKeys)
Share = Annotated[
    list[Given] | None, SHARE.option("How jobs share the cluster, as in freeze=60.", panel=_JOBS)
]
LeaseDuration = Annotated[
    int,
    typer.Option(
        min=0,
        envvar="EDL_LEASE_DURATION",
        metavar="SECONDS",
        help="Seconds without a renewal of the Lease edl-operator after which another operator "
        "takes over from the leader; 0: act without a Lease, as the only operator.",
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_METRICS_LISTEN",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics and health probes on this address; PORT alone: on loopback. "
        "Default: none.",
        rich_help_panel=_METRICS,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow --metrics-listen beyond loopback; it asks for no credentials.",
        rich_help_panel=_METRICS,
    ),
]
