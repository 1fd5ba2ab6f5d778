"""TeacherServices of a test's cluster, under an operator in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.teachers.coordinator_counts import CoordinatorCounts
from edl.deploy.operator.teachers.reconciler import TeacherServiceReconciler
from edl.mesh.kubernetes.client import Client
from edl.mesh.kubernetes.resources import DEPLOYMENT, POD, SERVICE, TEACHER_SERVICE, Object
from edl.tests.deploy.kube_api.cluster import Cluster

from .jobs_world import REDIS

SPEC: Object = {
    "image": "edl-dist:1",
    "model": "/models/resnet",
    "service": "resnet101",
    "maxReplicas": 8,
    "args": ["--insecure"],
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
}
NAME = "resnet"


class CoordinatorNumbers(CoordinatorCounts):
    def __init__(self, **numbers: int | None) -> None:
        super().__init__()
        self.numbers: dict[str, int | None] = dict(numbers)
        self.asked: set[tuple[str, str]] = set()

    def of(self, url: str, service: str) -> int | None:
        return self.numbers.get(service)

    def keep(self, wanted: Iterable[tuple[str, str]]) -> None:
        self.asked = set(wanted)


class Operator:
    """Turns of TeacherServices on one cluster, a second apart; each operator is a new process."""

    def __init__(self, cluster: Cluster, said: CoordinatorNumbers, **config: Any) -> None:
        self.cluster, self.said = cluster, said
        self.config = OperatorConfig(cluster.namespace, REDIS, **config)
        self.now = 1_900_000_000.0

    def reconcile(self, client: Client | None = None) -> None:
        self.now += 1
        TeacherServiceReconciler(client or self.cluster.client, self.config, self.said).reconcile(
            self.now
        )

    def settle(self, name: str = NAME) -> Object:
        """Turns, and the cluster's own work, until nothing changes; the service then."""
        before = None
        for _ in range(20):
            self.reconcile()
            self.cluster.play()
            found = state(self.cluster, name)
            if found == before:
                return self.service(name)
            before = found
        raise AssertionError(f"it does not settle: {before}")

    def service(self, name: str = NAME) -> Object:
        return self.cluster.client.get(TEACHER_SERVICE, name)

    def ask(self, **spec: Any) -> None:
        self.cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": spec})


def serving(cluster: Cluster, number: int | None, cpu: str = "16", **spec: Any) -> Operator:
    """An operator on a cluster of one machine, after it has seen to a service with this number."""
    cluster.node("m1", cpu=cpu, memory="64Gi")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=number))
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, **spec})
    operator.settle()
    return operator


def deployment(cluster: Cluster) -> Object:
    return cluster.client.get(DEPLOYMENT, NAME)


def state(cluster: Cluster, name: str = NAME) -> Object:
    """All that an operator has brought about, without what differs between two runs anyway."""
    client = cluster.client
    status = dict(client.get(TEACHER_SERVICE, name).get("status", {}))
    untimed = [{**one, "lastTransitionTime": None} for one in status.get("conditions", ())]
    status["conditions"] = untimed
    deployments = {one["metadata"]["name"]: one["spec"] for one in client.list(DEPLOYMENT)}
    services = {one["metadata"]["name"]: one["spec"] for one in client.list(SERVICE)}
    phases = sorted(one["status"].get("phase", "") for one in client.list(POD))
    made = {"deployments": deployments, "services": services, "pods": phases}
    return {"status": status, **made}


def conditions(service: Object) -> dict[str, tuple[str, str]]:
    found = service["status"]["conditions"]
    return {one["type"]: (one["status"], one["reason"]) for one in found}


KEYS = st.sampled_from(["name", "resources", "requests", "limits", "cpu", "env", "restartPolicy"])
WORDS = st.sampled_from(["", "node", "teacher", "-1", "1e999", "5Gi"])
#: Anything that may be in a pod template, which no server validates.
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("containers", "initContainers", "overhead", "resources", "tolerations", "volumes")
POD_SPECS = st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=2)
