"""DistillJobs of a test's cluster, under an operator in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.observe import ProgressReader
from edl.deploy.operator.jobs.reconciler import DistillJobReconciler
from edl.mesh.jobs.job_run import TrainingProgress
from edl.mesh.kubernetes.client import Client
from edl.mesh.kubernetes.resources import DISTILL_JOB, JOB_LABEL, POD, Object
from edl.runtime.errors import EdlError
from edl.scheduler.elastic_values import ElasticConfig
from edl.tests.deploy.kube_api.cluster import Cluster

REDIS = "redis://head:6379"


class FakeTrainings(ProgressReader):
    progress = TrainingProgress(steady=True)

    def read(self, url: str, job: str, nodes: int) -> TrainingProgress:
        return self.progress


class JobsWorld:
    """The reconciles of an operator and of the cluster's own controllers."""

    def __init__(self, cluster: Cluster, **config: Any) -> None:
        self.cluster = cluster
        self.config = OperatorConfig(
            **{"namespace": cluster.namespace, "coordinator": REDIS, **config},
            elastic=ElasticConfig(freeze_s=0),
            lost_pause_s=0,
        )
        self.trainings = FakeTrainings(REDIS)
        self.now = time.time()
        self.jobs = self.operator(cluster.client)

    def operator(self, client: Client, cluster_s: float = 0.0) -> DistillJobReconciler:
        return DistillJobReconciler(client, self.config, self.trainings, cluster_s)

    def submit(self, name: str, least: int, most: int, cpu: str = "1", **more: Any) -> None:
        program = {} if "train" in more else {"command": "work --hard"}
        spec = {"image": "edl-dist", "minNodes": least, "maxNodes": most, **program, **more}
        spec.setdefault("resources", {"requests": {"cpu": cpu}})
        self.cluster.create(DISTILL_JOB, name, spec)

    def ask(self, name: str, **spec: Any) -> None:
        self.cluster.client.patch(DISTILL_JOB, name, {"spec": spec})

    def reconcile(self) -> None:
        self.now += 1
        self.jobs.reconcile(self.now)
        self.cluster.play()

    def rest(self) -> None:
        before, quiet = self._versions(), 0
        for _ in range(40):
            self.reconcile()
            after = self._versions()
            before, quiet = after, quiet + 1 if after == before else 0
            if quiet == 2:
                return
        raise AssertionError(f"still changing: {before}")

    def _versions(self) -> list[tuple[str, str]]:
        listed = [one for kind in (DISTILL_JOB, POD) for one in self.cluster.client.list(kind)]
        return [(one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in listed]

    def status(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.cluster.client.get(DISTILL_JOB, name).get("status", {})
        return found

    def pods(self, name: str) -> list[Object]:
        """Existing pods of a job, by number."""
        return sorted(self.cluster.pods(**{JOB_LABEL: name}), key=number)

    def nodes(self, name: str) -> list[int]:
        """Numbers of the nodes that neither leave nor have ended."""
        return [
            number(one)
            for one in self.pods(name)
            if "deletionTimestamp" not in one["metadata"]
            and one.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        ]


def submitted(
    cluster: Cluster, least: int, most: int, cpu: str = "4", grows: bool = False, **spec: Any
) -> JobsWorld:
    """A world with one machine and the job `a`, which no operator has seen yet."""
    cluster.node("m1", cpu=cpu)
    world = JobsWorld(cluster, growing_cluster=grows)
    world.submit("a", least, most, **spec)
    return world


def running(cluster: Cluster, least: int, most: int, **more: Any) -> JobsWorld:
    """As `submitted`, when nothing changes any more."""
    world = submitted(cluster, least, most, **more)
    world.rest()
    return world


def number(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def refusing(method: str, end: str, error: EdlError) -> Callable[[str, str], None]:
    """A hook that raises `error` at each such call whose path ends so."""

    def hook(called: str, path: str) -> None:
        if called == method and path.endswith(end):
            raise error

    return hook
