"""`edl operator ...`: the operator of TeacherServices and DistillJobs in a Kubernetes cluster."""

from __future__ import annotations

import logging

import typer

from ...proto.security.options import Tls, TokenFile, client_security, tls_files
from ...scheduler.elastic_values import ElasticConfig
from . import options
from .config import OperatorConfig

_USUAL = OperatorConfig()

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def operator() -> None:
    """The operator: reconcile TeacherServices and DistillJobs of a Kubernetes cluster."""


@app.command()
def run(
    namespace: options.Namespace = None,
    all_namespaces: options.AllNamespaces = False,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    growing_cluster: options.GrowingCluster = False,
    coordinator: options.Coordinator = None,
    interval: options.Interval = _USUAL.interval_s,
    share: options.Share = None,
    lease_duration: options.LeaseDuration = 15,
    metrics_listen: options.MetricsListen = None,
    insecure: options.Insecure = False,
    tls: Tls = None,
    token_file: TokenFile = None,
) -> None:
    """Reconcile TeacherServices and DistillJobs until SIGTERM or Ctrl-C.

    A TeacherService becomes a Deployment of teachers: as many as its coordinator desires, or as
    `kubectl scale` says. DistillJobs share what the cluster has, each between its fewest and most
    nodes. Any number of operators may run: one acts, and another takes over when it is gone. Pods
    of TeacherServices and DistillJobs run on without an operator.
    """
    from ...coordinator.ops.options import quiet_grpc
    from ...mesh.kubernetes.client import ALL_NAMESPACES, connect
    from ...runtime.lifecycle import stop_on_signals
    from ...runtime.logs import configure_logging
    from .run import run as run_operator

    configure_logging()
    quiet_grpc()
    # kopf logs each change, and during an outage each retry, which the loop logs once.
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    connection = connect(kubeconfig, context, namespace)
    shared = options.SHARE.read(share)
    config = OperatorConfig(
        ALL_NAMESPACES if all_namespaces else connection.namespace,
        coordinator,
        interval,
        _sharing(shared),
        growing_cluster,
        shared.place_within,
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


def _sharing(keys: options.ClusterShareKeys) -> ElasticConfig:
    from ...runtime.errors import UsageError

    try:
        return ElasticConfig(max_load=keys.max_load, freeze_s=keys.freeze)
    except ValueError as error:
        raise UsageError(f"--share: {error}") from None
