"""An operator, put together: its clients, the lead, the loop, what wakes it, its metrics."""

from __future__ import annotations

import logging
import os
import re
import socket
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...errors import LeaseSuperseded
from ...lifecycle import Stop
from ...mesh.kubernetes.client import Client, Connection
from ...metrics import MetricsServer
from .config import OperatorConfig
from .election import Election
from .jobs.turning import DistillJobs
from .loop import Loop, Part, Wake
from .metrics import OperatorMetrics
from .teachers.numbers import Numbers
from .teachers.turning import TeacherServices

if TYPE_CHECKING:
    from ...proto.security import ClientSecurity

log = logging.getLogger(__name__)

LEASE: Final = "edl-operator"
#: For an answer of the API server, seconds: an operator that is told to end waits for one at most.
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What one operator process is told beside how it works.

    Attributes:
        operator: how it works.
        lease_s: after so long without a sign of life another operator takes over; 0: there is no
            other one, and it leads at once.
        metrics_listen: where metrics and health are served; None: nowhere.
        insecure: they may be read from other machines.
        security: how to call coordinators.
    """

    operator: OperatorConfig
    lease_s: int = 15
    metrics_listen: str | None = None
    insecure: bool = False
    security: ClientSecurity | None = None


def run(connection: Connection, config: RunConfig, stop: Stop) -> None:
    """Make resources true until `stop` is requested; then give the lead back.

    What the resources have made goes on: an operator that is away changes nothing.

    Args:
        connection: to the cluster; the lease is in its namespace.
        config: see there.
        stop: ends it.

    Raises:
        UsageError, AddressInUse: metrics cannot be served so.
    """
    wake = Wake()
    with ExitStack() as undo:
        election = _election(connection, config, wake, undo)
        leads = (lambda: True) if election is None else election.leads

        def check(method: str, path: str) -> None:
            if stop.requested:  # what was begun is the next one's: it finds it as it stands
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
        numbers = Numbers(config.security)
        undo.callback(numbers.stop)
        jobs = DistillJobs(client, config.operator)
        undo.callback(jobs.close)
        parts: dict[str, Part] = {
            "teachers": TeacherServices(client, config.operator, numbers),
            "jobs": jobs,
        }
        from .watching import Watching

        watching = Watching(connection, config.operator.namespace, wake)
        undo.callback(watching.stop)
        watching.start()
        loop = Loop(parts, leads, config.operator.interval_s, wake, metrics)
        log.info("the operator has begun")
        loop.run(stop)
        if election is not None:
            election.stop()  # first of all, so that another one need not wait for the rest


def _election(
    connection: Connection, config: RunConfig, wake: Wake, undo: ExitStack
) -> Election | None:
    if not config.lease_s:
        return None
    client = Client(connection, timeout_s=max(1.0, config.lease_s / 3))
    undo.callback(client.close)
    election = Election(client, LEASE, identity(), config.lease_s, wake)
    undo.callback(election.stop)
    election.look()
    election.start()
    return election


def identity() -> str:
    """This process's own name among operators; another one with each start."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{host}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
