"""`edl operator ...`: the operator of TeacherServices and DistillJobs in a Kubernetes cluster."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from ...proto.security.options import Tls, TokenFile, client_security, tls_files
from ...runtime.structured_option import Given, Key, StructuredOption
from ...scheduler.elastic_values import ElasticConfig
from .config import OperatorConfig

_DEFAULTS: Final = OperatorConfig()

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
        help="The cluster adds machines for waiting pods: do not limit pods to the free resources.",
        rich_help_panel=_CLUSTER,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--redis",
        envvar="EDL_COORDINATOR",
        metavar="URL",
        help="Redis URL of the mesh for resources that name none. The progress of trainings is read"
        " only there.",
    ),
]
Interval = Annotated[
    float,
    typer.Option(
        envvar="EDL_INTERVAL",
        metavar="SECONDS",
        help="Seconds between two rounds. Changes of resources, and of Deployments and pods created"
        " for them, start a round at once; changes of machines do not.",
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
    ] = _DEFAULTS.elastic.max_load
    freeze: Annotated[
        float,
        Key(
            "seconds for which a resized job keeps its number of nodes, unless it has to make"
            " room.",
            "EDL_FREEZE",
            metavar="SECONDS",
        ),
    ] = _DEFAULTS.elastic.freeze_s
    place_within: Annotated[
        float,
        Key(
            "seconds after which a job does without a node that the cluster cannot place or start.",
            "EDL_PLACE_WITHIN",
            metavar="SECONDS",
        ),
    ] = _DEFAULTS.place_within_s


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
        help="Allow --metrics-listen beyond loopback, although it checks no credentials.",
        rich_help_panel=_METRICS,
    ),
]


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def operator() -> None:
    """The operator: reconcile TeacherServices and DistillJobs of a Kubernetes cluster."""


@app.command()
def run(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    growing_cluster: GrowingCluster = False,
    coordinator: Coordinator = None,
    interval: Interval = _DEFAULTS.interval_s,
    share: Share = None,
    lease_duration: LeaseDuration = 15,
    metrics_listen: MetricsListen = None,
    insecure: Insecure = False,
    tls: Tls = None,
    token_file: TokenFile = None,
) -> None:
    """Reconcile TeacherServices and DistillJobs until SIGTERM or Ctrl-C.

    A TeacherService becomes a Deployment with as many teachers as its coordinator desires, or as
    `kubectl scale` sets. DistillJobs share the cluster's resources, each job with a number of nodes
    between its bounds. Any number of operators may run: one acts, and another takes over if the
    first ends. Pods of TeacherServices and DistillJobs run on without an operator.
    """
    from ...coordinator.ops.options import quiet_grpc
    from ...mesh.kubernetes.client import ALL_NAMESPACES, connect
    from ...runtime.lifecycle import stop_on_signals
    from ...runtime.logs import configure_logging
    from .run import run as run_operator

    configure_logging()
    quiet_grpc()
    # kopf would log each change, and each retry during an outage. The watcher logs an outage once.
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    connection = connect(kubeconfig, context, namespace)
    share_keys = SHARE.read(share)
    config = OperatorConfig(
        ALL_NAMESPACES if all_namespaces else connection.namespace,
        coordinator,
        interval,
        _elastic_config(share_keys),
        growing_cluster,
        share_keys.place_within,
    )
    security = client_security(tls_files(tls), token_file)
    where = "all namespaces" if all_namespaces else f"namespace {connection.namespace}"
    with stop_on_signals() as stop:
        typer.echo(f"operator ready: {where} of {connection.configuration.host}")
        run_operator(
            connection,
            config,
            stop,
            lease_s=lease_duration,
            metrics_listen=metrics_listen,
            insecure=insecure,
            security=security,
        )


def _elastic_config(keys: ClusterShareKeys) -> ElasticConfig:
    from ...runtime.errors import UsageError

    try:
        return ElasticConfig(max_load=keys.max_load, freeze_s=keys.freeze)
    except ValueError as error:
        raise UsageError(f"--share: {error}") from None
