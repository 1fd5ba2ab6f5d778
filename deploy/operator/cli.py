"""`edl operator ...`: the operator of TeacherServices and DistillJobs in a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...proto.security.options import TlsCa, TlsCert, TlsKey, TokenFile, client_security
from ...scheduler.elastic import ElasticConfig

_USUAL = ElasticConfig()
_CLUSTER = "The cluster"
_LEAD = "Several operators"
_JOBS = "How jobs share"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def operator() -> None:
    """Kubernetes: make TeacherServices and DistillJobs true."""


@app.command()
def run(
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            envvar="EDL_NAMESPACE",
            metavar="NAME",
            help="Whose resources are made true. Default: the one of the context, or of the pod.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            "-A",
            help="Those of every namespace; the lease stays in --namespace.",
            rich_help_panel=_CLUSTER,
        ),
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            envvar="KUBECONFIG",
            metavar="FILE",
            help="Says where the cluster is. Default: ~/.kube/config, or within a pod its account.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the kubeconfig. Default: its current one.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    growing_cluster: Annotated[
        bool,
        typer.Option(
            "--growing-cluster",
            envvar="EDL_GROWING_CLUSTER",
            help="Machines come when pods wait for them: what is free now is no bound.",
            rich_help_panel=_CLUSTER,
        ),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_COORDINATOR",
            metavar="URL",
            help="Redis URL of the mesh, for resources that name none.",
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            envvar="EDL_INTERVAL",
            metavar="SECONDS",
            help="Between two looks at everything; changes are seen at once.",
        ),
    ] = 5.0,
    max_load: Annotated[
        float,
        typer.Option(
            envvar="EDL_MAX_LOAD",
            help="The share of what the cluster has that jobs and all others may take together.",
            rich_help_panel=_JOBS,
        ),
    ] = _USUAL.max_load,
    freeze: Annotated[
        float,
        typer.Option(
            envvar="EDL_FREEZE",
            metavar="SECONDS",
            help="A job that was changed keeps its nodes for so long, unless it has to make room.",
            rich_help_panel=_JOBS,
        ),
    ] = _USUAL.freeze_s,
    place_within: Annotated[
        float,
        typer.Option(
            envvar="EDL_PLACE_WITHIN",
            metavar="SECONDS",
            help="A job does without nodes that the cluster cannot place for so long.",
            rich_help_panel=_JOBS,
        ),
    ] = 120.0,
    leader_elect: Annotated[
        bool,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Act only while holding the Lease edl-operator.",
            rich_help_panel=_LEAD,
        ),
    ] = True,
    lease_duration: Annotated[
        int,
        typer.Option(
            min=1,
            envvar="EDL_LEASE_DURATION",
            metavar="SECONDS",
            help="After so long without a sign of life of the one that acts another one does.",
            rich_help_panel=_LEAD,
        ),
    ] = 15,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            envvar="EDL_METRICS_LISTEN",
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics and health here; a port alone is one of this machine"
            " only.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve metrics beyond this machine without credentials."),
    ] = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Make TeacherServices and DistillJobs true until SIGTERM or Ctrl-C.

    A TeacherService becomes a Deployment of teachers: as many as its coordinator desires, or as
    `kubectl scale` says. DistillJobs share what the cluster has, each between its fewest and most
    nodes. Any number of operators may run: one acts, and another takes over when it is gone. What
    they have made goes on without them.
    """
    from ...coordinator.ops.options import quiet_grpc
    from ...lifecycle import configure_logging, stop_on_signals
    from ...mesh.kubernetes.client import ALL_NAMESPACES, connect
    from .config import OperatorConfig
    from .run import RunConfig
    from .run import run as run_operator

    configure_logging(verbose)
    quiet_grpc()
    connection = connect(kubeconfig, context, namespace)
    config = RunConfig(
        OperatorConfig(
            ALL_NAMESPACES if all_namespaces else connection.namespace,
            coordinator,
            interval,
            _sharing(max_load, freeze),
            growing_cluster,
            place_within,
        ),
        lease_duration if leader_elect else 0,
        metrics_listen,
        insecure,
        client_security(tls_ca, tls_cert, tls_key, token_file),
    )
    where = "all namespaces" if all_namespaces else f"namespace {connection.namespace}"
    with stop_on_signals() as stop:
        typer.echo(f"operator ready: {where} of {connection.configuration.host}")
        run_operator(connection, config, stop)


def _sharing(max_load: float, freeze_s: float) -> ElasticConfig:
    from ...errors import UsageError

    try:
        return ElasticConfig(max_load=max_load, freeze_s=freeze_s)
    except ValueError as error:
        raise UsageError(f"--max-load, --freeze: {error}") from None
