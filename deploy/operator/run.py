"""Assembles an operator: clients, election, reconcilers, watcher and metrics."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from ...mesh.kubernetes.client import Client, Connection
from ...runtime.errors import LeaseSuperseded
from ...runtime.lifecycle import Stop
from ...runtime.metrics import MetricsServer
from .config import OperatorConfig
from .election import LeaseElection
from .jobs.reconciler import DistillJobReconciler
from .loop import ReconcileLoop
from .teachers.coordinator_counts import CoordinatorCounts
from .teachers.reconciler import TeacherServiceReconciler

if TYPE_CHECKING:
    from ...proto.security.credentials import ClientSecurity

log = logging.getLogger(__name__)

LEASE: Final = "edl-operator"
#: Seconds to wait for an answer of the API server.
_ANSWER_S: Final = 10.0


def run(
    connection: Connection,
    config: OperatorConfig,
    stop: Stop,
    *,
    lease_s: int,
    metrics_listen: str | None,
    insecure: bool,
    security: ClientSecurity | None,
) -> None:
    """Reconcile resources until `stop` is requested; then release the lease.

    Deployments and pods keep running without an operator.

    Args:
        connection: to the cluster; the lease is in its namespace.
        config: settings of the reconcilers.
        stop: request it to end the operator.
        lease_s: another operator takes over if the lease is not renewed for so many seconds; 0:
            this is the only operator, so it uses no lease.
        metrics_listen: address of metrics and health; None: not served.
        insecure: allow other machines to read metrics and health without credentials.
        security: credentials for coordinators; None: neither TLS nor token.

    Raises:
        UsageError, AddressInUse: metrics cannot be served.
    """
    wake = threading.Event()
    with ExitStack() as cleanup:
        election = _election(connection, lease_s, wake, cleanup)
        leads = (lambda: True) if election is None else election.leads

        def check(method: str, path: str) -> None:
            if stop.requested:  # leave all further changes to the next operator
                raise LeaseSuperseded(f"this operator ends: {method} {path} is not sent")
            if election is not None:
                election.check(method, path)

        client = cleanup.enter_context(Client(connection, timeout_s=_ANSWER_S, hook=check))
        desired_counts = CoordinatorCounts(security)
        cleanup.callback(desired_counts.stop)
        teachers = TeacherServiceReconciler(client, config, desired_counts)
        jobs = DistillJobReconciler(client, config)
        cleanup.callback(jobs.close)
        parts = {"teachers": teachers.reconcile, "jobs": jobs.reconcile}
        loop = ReconcileLoop(parts, leads, config.interval_s, wake)
        if metrics_listen is not None:
            server = MetricsServer(metrics_listen, loop.metrics.registry, insecure=insecure)
            cleanup.callback(server.close)
            log.info("metrics and health at http://%s", server.address)
        from .watcher import ResourceWatcher

        watcher = ResourceWatcher(connection, config.namespace, wake.set)
        cleanup.callback(watcher.stop)
        watcher.start()
        log.info("the operator has started")
        loop.run(stop)
        if election is not None:
            election.stop()  # before the rest, so that another operator can take over at once


def _election(
    connection: Connection, lease_s: int, wake: threading.Event, cleanup: ExitStack
) -> LeaseElection | None:
    if not lease_s:
        return None
    client = Client(connection, timeout_s=max(1.0, lease_s / 3))
    cleanup.callback(client.close)
    election = LeaseElection(client, LEASE, identity(), lease_s, wake.set)
    cleanup.callback(election.stop)
    election.renew()
    election.start()
    return election


def identity() -> str:
    """Return a unique name for this process."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{host}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
