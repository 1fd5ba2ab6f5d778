"""Computes how many teachers of a service the cluster has room for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from ....mesh.kubernetes.client import ALL_NAMESPACES, Client
from ....mesh.kubernetes.resources import NODE, POD, Object, is_job_node, key_of
from ....runtime.errors import Forbidden
from ..capacity import NOT_ENDED, Machines, requests_of
from ..config import OperatorConfig
from ..error_log import ErrorLog
from .manifests import pod_spec_of, service_key_of
from .replica_count import room_for

log = logging.getLogger(__name__)


class TeacherRoom:
    """The room of the cluster for teachers in one round.

    It reads machines and pods at the first call of `of`.

    Args:
        client: of the cluster.
        config: settings of the operator.
        errors: logs errors of reading.
        deployments: Deployments of all services, as they were read.
    """

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        errors: ErrorLog,
        deployments: Iterable[Object],
    ) -> None:
        self._client, self._config, self._errors = client, config, errors
        self._deployments = {key_of(one): one for one in deployments}
        self._cluster: tuple[Machines, list[Object]] | None = None
        self._pod_counts: Counter[tuple[str, str] | None] = Counter()
        self._is_unlimited = config.growing_cluster

    def reserve(self, deployment: Object) -> None:
        """Reserve room for the teachers of this Deployment in later calls of `of`."""
        self._deployments[key_of(deployment)] = deployment

    def of(self, deployment: Object) -> int | None:
        """Return how many teachers of this service fit; None: no limit is known.

        Nodes of elastic jobs yield to teachers, so they do not count.
        """
        if self._cluster is None and not self._is_unlimited:
            self._read_cluster()
        if self._cluster is None:
            return None
        machines, pods = self._cluster
        own = key_of(deployment)
        pool = machines.pool(pods, lambda pod: is_job_node(pod) or service_key_of(pod) == own)
        promises = [
            (one["spec"].get("replicas", 1) - self._pod_counts[key], requests_of(pod_spec_of(one)))
            for key, one in self._deployments.items()
            if key != own
        ]
        needs = requests_of(pod_spec_of(deployment))
        return room_for(pool, needs, self._config.elastic.max_load, promises)

    def _read_cluster(self) -> None:
        try:
            machines = Machines.of(self._client.list(NODE))
            pods = self._client.list(POD, namespace=ALL_NAMESPACES, fields=NOT_ENDED)
        except Forbidden as error:
            self._errors.report(log, NODE, "cannot read the capacity of the cluster", error)
            self._is_unlimited = True
            return
        self._errors.clear(NODE)
        self._cluster = machines, pods
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        self._pod_counts = Counter(map(service_key_of, staying))
