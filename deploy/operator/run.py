"""Assembles an operator: clients, election, reconcilers, watcher and metrics."""

from __future__ import annotations

import logging
import os
import re
import socket
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...mesh.kubernetes.client import Client, Connection
from ...runtime.errors import LeaseSuperseded
from ...runtime.lifecycle import Stop
from ...runtime.metrics import MetricsServer
from .config import OperatorConfig
from .election import LeaseElection
from .jobs.reconciler import DistillJobReconciler
from .loop import ReconcileLoop, Reconciler, WakeUp
from .metrics import OperatorMetrics
from .teachers.coordinator_counts import CoordinatorCounts
from .teachers.reconciler import TeacherServiceReconciler

if TYPE_CHECKING:
    from ...proto.security import ClientSecurity

log = logging.getLogger(__name__)

LEASE: Final = "edl-operator"
#: Seconds to wait for the API server; also bounds the time that an operator takes to end.
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings of an operator process.

    Attributes:
        operator: settings of its reconcilers.
        lease_s: another operator takes over if the lease is not renewed for so many seconds; 0:
            there is no other one.
        metrics_listen: address of metrics and health; None: not served.
        insecure: allow reading them from other machines without credentials.
        security: credentials for coordinators.
    """

    operator: OperatorConfig
    lease_s: int = 15
    metrics_listen: str | None = None
    insecure: bool = False
    security: ClientSecurity | None = None


def run(connection: Connection, config: RunConfig, stop: Stop) -> None:
    """Reconcile resources until `stop` is requested; then release the lease.

    Deployments and pods keep running without an operator.

    Args:
        connection: to the cluster; the lease is in its namespace.
        config: the settings.
        stop: ends it.

    Raises:
        UsageError, AddressInUse: metrics cannot be served.
    """
    wake = WakeUp()
    with ExitStack() as undo:
        election = _election(connection, config, wake, undo)
        leads = (lambda: True) if election is None else election.leads

        def check(method: str, path: str) -> None:
            if stop.requested:  # the next operator continues
                raise LeaseSuperseded(f"this operator ends: {method} {path} is not sent")
            if election is not None:
                election.check(method, path)

        metrics = OperatorMetrics(leads)
        if config.metrics_listen is not None:
            server = MetricsServer(
                config.metrics_listen, metrics.registry, insecure=config.insecure
            )
            undo.callback(server.close)
            log.info("metrics and health at http://%s", server.address)
        client = undo.enter_context(Client(connection, timeout_s=_ANSWER_S, hook=check))
        numbers = CoordinatorCounts(config.security)
        undo.callback(numbers.stop)
        jobs = DistillJobReconciler(client, config.operator)
        undo.callback(jobs.close)
        parts: dict[str, Reconciler] = {
            "teachers": TeacherServiceReconciler(client, config.operator, numbers),
            "jobs": jobs,
        }
        from .watcher import ResourceWatcher

        watcher = ResourceWatcher(connection, config.operator.namespace, wake)
        undo.callback(watcher.stop)
        watcher.start()
        loop = ReconcileLoop(parts, leads, config.operator.interval_s, wake, metrics)
        log.info("the operator has begun")
        loop.run(stop)
        if election is not None:
            election.stop()  # first, so that another operator can take over at once


def _election(
    connection: Connection, config: RunConfig, wake: WakeUp, undo: ExitStack
) -> LeaseElection | None:
    if not config.lease_s:
        return None
    client = Client(connection, timeout_s=max(1.0, config.lease_s / 3))
    undo.callback(client.close)
    election = LeaseElection(client, LEASE, identity(), config.lease_s, wake)
    undo.callback(election.stop)
    election.look()
    election.start()
    return election


def identity() -> str:
    """Return a unique name for this process."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{host}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
