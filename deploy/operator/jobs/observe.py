"""Reads DistillJobs, their progress, machines and pods, as input of `decisions.decide_pods`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ....coordinator.jobs import JobBoard, open_job_board
from ....coordinator.store.redis_url import name_same_database
from ....mesh.jobs.job_run import TrainingProgress, read_progress
from ....mesh.kubernetes.client import ALL_NAMESPACES, Client
from ....mesh.kubernetes.resources import (
    DISTILL_JOB,
    NODE,
    NODES_SELECTOR,
    POD,
    Object,
    is_controlled_by,
    is_job_node,
    seconds_of,
)
from ....runtime.errors import EdlError, UsageError
from ....scheduler.elastic_values import Pool
from ..capacity import NOT_ENDED, PLENTY, Machines
from ..config import OperatorConfig
from ..error_log import ErrorLog
from .ledger import DesiredJob, ObservedJob, PodLedger
from .node_pods import job_of, node_pod_of, number_of
from .pods import needs_of, redis_url_of, spec_of, tolerations_of
from .status import has_ended, ledger_of

log = logging.getLogger(__name__)

#: Seconds before a Redis that did not answer is queried again: each attempt delays all jobs.
_PAUSE_S: Final = 30.0
#: Progress of a training whose Redis is unknown or does not answer. The job counts as steady.
_UNKNOWN: Final = TrainingProgress(steady=True)


class ProgressReader:
    """Reads the progress of trainings, which their ranks report in Redis.

    It opens only the operator's own URL. By the URL of a job, users could make the operator send
    its secret files to any host, as passwords. Use it from one thread.

    Args:
        url: Redis URL of the operator; None: it has none.
        opening: opens the job board at a Redis URL.
        clock: returns seconds that do not go back.
    """

    def __init__(
        self,
        url: str | None,
        opening: Callable[[str], JobBoard] = open_job_board,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._open, self._clock = url, opening, clock
        self._board: JobBoard | None = None
        self._retry_at_s: float | None = None

    def read(self, url: str, job: str, nodes: int) -> TrainingProgress:
        """Return the progress of one training; unknown if Redis does not answer.

        Args:
            url: Redis URL of its nodes.
            job: its name.
            nodes: number of its nodes.

        Raises:
            UsageError: its nodes use another Redis than the operator.
        """
        if self._url is None or (url != self._url and not name_same_database(url, self._url)):
            raise UsageError(
                "unknown, because the Redis URL of its nodes does not name the operator's own Redis"
                " (--redis)"
            )
        if self._retry_at_s is not None and self._retry_at_s > self._clock():
            return _UNKNOWN
        try:
            if self._board is None:
                self._board = self._open(self._url)
            progress = read_progress(self._board, job, nodes)
        except EdlError as error:
            # A warning once per outage.
            level = logging.WARNING if self._retry_at_s is None else logging.DEBUG
            log.log(level, "cannot read the progress of trainings: %s", error)
            self._retry_at_s = self._clock() + _PAUSE_S
            return _UNKNOWN
        self._retry_at_s = None
        return progress

    def close(self) -> None:
        """Close the connection."""
        if self._board is not None:
            with contextlib.suppress(EdlError):
                self._board.close()


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster at one moment.

    Attributes:
        resources: DistillJobs as they were read, by the names in `jobs`.
        jobs: the same jobs, as input of `decide_pods`.
        pods: pods of each job by number, as they were read.
        pool: resources that jobs share.
    """

    resources: dict[str, Object]
    jobs: tuple[ObservedJob, ...]
    pods: dict[str, dict[int, Object]]
    pool: Pool


class ClusterReader:
    """Reads jobs and their pods at each call, and the rest of the cluster less often.

    Args:
        client: of the cluster.
        config: settings of the operator.
        trainings: reads the progress of trainings.
        every_s: seconds between two reads of machines, and of pods that are not nodes of jobs.
    """

    def __init__(
        self, client: Client, config: OperatorConfig, trainings: ProgressReader, every_s: float
    ) -> None:
        self._client, self._config, self._trainings = client, config, trainings
        self._every_s = every_s
        self._errors = ErrorLog()
        self._read_s = float("-inf")
        # uids and generations of the jobs at the latest read of machines and other pods
        self._read_for: frozenset[object] = frozenset()
        self._machines = Machines({}, frozenset())
        self._pods: list[Object] = []

    def observe(self, now: float) -> ClusterSnapshot:
        """Observe jobs, their pods, their progress and the rest of the cluster.

        Jobs are listed before their pods. So every pod that a job's status mentions is found.

        Args:
            now: seconds since 1970.

        Raises:
            EdlError: see `Client`.
        """
        named = _named(self._client.list(DISTILL_JOB, namespace=self._config.namespace))
        active = [job for job in named.values() if not has_ended(job)]
        self._errors.retain({job["metadata"]["uid"] for job in active})
        if not named:  # the cluster itself ends pods of deleted jobs
            return ClusterSnapshot({}, (), {}, Pool({}))
        pods = self._client.list(POD, NODES_SELECTOR, ALL_NAMESPACES)
        self._read_others(now, active)
        own = _pods_of(named, pods)
        jobs = tuple(self._job(name, named[name], own[name].values()) for name in named)
        if self._config.growing_cluster:
            pool = Pool({kind: PLENTY for job in jobs for kind in job.wanted.needs})
        else:
            # Pods of a job with an invalid spec stay as they are: they take room like other pods.
            sharing = [own[job.name] for job in jobs if not job.wanted.spec_error]
            uids = {pod["metadata"]["uid"] for job_pods in sharing for pod in job_pods.values()}
            all_pods = [*self._pods, *pods]
            pool = self._machines.pool(all_pods, lambda pod: pod["metadata"]["uid"] in uids)
        return ClusterSnapshot(named, jobs, own, pool)

    def _read_others(self, now: float, jobs: Sequence[Object]) -> None:
        """Read machines, and pods that are not nodes of jobs, unless both were read lately.

        Args:
            now: seconds since 1970.
            jobs: DistillJobs that have not ended; if one has changed, both are read at once.
        """
        metas = [job["metadata"] for job in jobs]
        current = frozenset((meta["uid"], meta.get("generation")) for meta in metas)
        if current != self._read_for or not 0 <= now - self._read_s < self._every_s:
            tolerated = [tolerations_of(job, self._config.coordinator) for job in jobs]
            machines = Machines.of(self._client.list(NODE), tolerated, now)
            pods = self._client.list(POD, namespace=ALL_NAMESPACES, fields=NOT_ENDED)
            self._machines, self._pods = machines, [pod for pod in pods if not is_job_node(pod)]
            self._read_s, self._read_for = now, current

    def _job(self, name: str, resource: Object, pods: Iterable[Object]) -> ObservedJob:
        wanted = wanted_of(resource, self._config.coordinator)
        nodes = tuple(node_pod_of(pod, self._machines) for pod in pods)
        staying = sum(node.stays for node in nodes)
        training, meta = _UNKNOWN, resource["metadata"]
        if wanted.trains and staying and not wanted.spec_error and not has_ended(resource):
            try:
                url = redis_url_of(resource, self._config.coordinator)
                training = self._trainings.read(url, meta["name"], staying)
            except UsageError as error:  # the job counts as steady
                self._errors.report(log, meta["uid"], f"progress of job {name}", error)
        try:
            ledger = ledger_of(resource)
        except UsageError as error:  # start a new ledger: its pods show which numbers are used
            log.warning("%s", error)
            ledger = PodLedger()
        return ObservedJob(name, wanted, ledger, nodes, training.progress, training.steady)


def _named(listed: Iterable[Object]) -> dict[str, Object]:
    """Return jobs by name, or by namespace and name if several have the name.

    Jobs that are being deleted are left out: the cluster ends their pods, which take room like
    other pods until then.
    """
    alive = [job for job in listed if "deletionTimestamp" not in job["metadata"]]
    counts = Counter(job["metadata"]["name"] for job in alive)
    return {
        name if counts[name] == 1 else f"{job['metadata']['namespace']}/{name}": job
        for job in alive
        for name in [job["metadata"]["name"]]
    }


def _pods_of(named: dict[str, Object], pods: Iterable[Object]) -> dict[str, dict[int, Object]]:
    """Return the pods of each job by number, without those of a former job of the same name."""
    by_label = defaultdict(list)
    for pod in pods:
        by_label[pod["metadata"]["namespace"], job_of(pod)].append(pod)
    pods_by_job: dict[str, dict[int, Object]] = {}
    for name, resource in named.items():
        meta = resource["metadata"]
        pods_by_job[name] = {
            number: pod
            for pod in by_label[meta["namespace"], meta["name"]]
            if (number := number_of(pod)) is not None and is_controlled_by(pod, meta["uid"])
        }
    return pods_by_job


def wanted_of(resource: Object, coordinator: str | None) -> DesiredJob:
    """Return the desired state of a DistillJob.

    Args:
        resource: the DistillJob.
        coordinator: Redis URL of jobs that name none.
    """
    spec, meta = resource.get("spec", {}), resource["metadata"]
    needs, spec_error = {}, ""
    try:
        spec_of(resource)
        needs = needs_of(resource, coordinator)
    except UsageError as error:
        spec_error = str(error)
    least = max(1, spec.get("minNodes", 1))
    return DesiredJob(
        least,
        max(least, spec.get("maxNodes", 1)),
        needs,
        node_limit=spec.get("nodes"),
        priority=spec.get("priority", 0),
        retries=spec.get("retries", 3),
        stop=bool(spec.get("stopped")),
        trains=bool(spec.get("train")),
        submitted_s=seconds_of(meta["creationTimestamp"]),
        spec_error=spec_error,
    )
