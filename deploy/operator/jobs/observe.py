"""What the cluster shows of DistillJobs, machines and pods, as the rules look at it."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ....errors import UsageError
from ....mesh.kubernetes.client import ALL_NAMESPACES, Client
from ....mesh.kubernetes.resources import (
    DISTILL_JOB,
    NODE,
    NODES_SELECTOR,
    POD,
    Object,
    is_controlled_by,
    is_node,
    seconds_of,
)
from ....scheduler.elastic_values import Pool
from ..capacity import NOT_ENDED, Machines, unbounded
from ..config import OperatorConfig
from .ledger import JobSeen, JobWanted, PodLedger, PodSeen, Progress
from .pods import needs_of, spec_of, tolerations_of
from .seeing import job_of, number_of, seen
from .status import has_ended, ledger_of

#: How far a training is: asked with the URL of its Redis, its name, and how many nodes it has.
Look = Callable[[str, str, int], Progress]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scene:
    """The cluster at one moment.

    Attributes:
        resources: DistillJobs as they were read, by the names that the rules know them by.
        jobs: the same, as the rules look at them; without those that are being deleted.
        pods: of each job, by number, as they were read.
        pool: what jobs share.
    """

    resources: dict[str, Object]
    jobs: tuple[JobSeen, ...]
    pods: dict[str, dict[int, Object]]
    pool: Pool


class Surroundings:
    """Machines and others' pods, in all namespaces: much to read, so it is read now and then.

    Args:
        client: of the cluster.
        every_s: seconds for which what was read is good enough.
        coordinator: Redis URL of jobs that name none.
    """

    def __init__(self, client: Client, every_s: float, coordinator: str | None = None) -> None:
        self._client, self._every_s, self._coordinator = client, every_s, coordinator
        self._read_s = float("-inf")
        self._asked: frozenset[object] = frozenset()
        self._machines = Machines({}, frozenset())
        self._pods: list[Object] = []

    def look(self, now: float, jobs: Iterable[Object]) -> tuple[Machines, list[Object]]:
        """Machines, and pods that are no node of a job.

        Args:
            now: seconds.
            jobs: DistillJobs that may have nodes yet; when they are others than before, or other
                things are asked of them, all is read anew.
        """
        resources = list(jobs)
        metas = [one["metadata"] for one in resources]
        asked = frozenset((meta["uid"], meta.get("generation")) for meta in metas)
        if asked != self._asked or not 0 <= now - self._read_s < self._every_s:
            tolerated = [tolerations_of(one, self._coordinator) for one in resources]
            machines = Machines.of(self._client.list(NODE), tolerated)
            pods = self._client.list(POD, namespace=ALL_NAMESPACES, fields=NOT_ENDED)
            self._machines, self._pods = machines, [pod for pod in pods if not is_node(pod)]
            self._read_s, self._asked = now, asked
        return self._machines, self._pods


def observe(
    client: Client, config: OperatorConfig, surroundings: Surroundings, look: Look, now: float
) -> Scene:
    """Look at everything.

    Jobs are listed before their pods: so none is missing that a job's status tells of.

    Args:
        client: of the cluster.
        config: of the operator.
        surroundings: of its jobs.
        look: how far trainings are.
        now: seconds.

    Raises:
        EdlError: see `Client`.
    """
    named = _named(client.list(DISTILL_JOB, namespace=config.namespace))
    if not named:  # pods of those that were deleted are ended by the cluster
        return Scene({}, (), {}, Pool({}))
    pods = client.list(POD, NODES_SELECTOR, ALL_NAMESPACES)
    open_jobs = [one for one in named.values() if not has_ended(one)]
    machines, others = surroundings.look(now, open_jobs)
    own = _pods_of(named, pods)
    jobs = tuple(
        _seen(name, resource, [seen(pod, machines) for pod in own[name].values()], config, look)
        for name, resource in named.items()
    )
    if config.growing_cluster:
        pool = unbounded({kind for job in jobs for kind in job.wanted.needs})
    else:
        # What runs of a spec that is wrong is not decided about: it holds room as others' pods do.
        sharing = [own[job.name] for job in jobs if not job.wanted.wrong]
        mine = {pod["metadata"]["uid"] for of_job in sharing for pod in of_job.values()}
        pool = machines.pool([*others, *pods], lambda pod: pod["metadata"]["uid"] in mine)
    return Scene(named, jobs, own, pool)


def _named(listed: Iterable[Object]) -> dict[str, Object]:
    """By name, with the namespace where two have one; those that are being deleted are left out.

    Their pods are ended by the cluster, and until then hold room as others' do.
    """
    alive = [one for one in listed if "deletionTimestamp" not in one["metadata"]]
    times = Counter(one["metadata"]["name"] for one in alive)
    return {
        name if times[name] == 1 else f"{one['metadata']['namespace']}/{name}": one
        for one in alive
        for name in [one["metadata"]["name"]]
    }


def _pods_of(named: dict[str, Object], pods: Iterable[Object]) -> dict[str, dict[int, Object]]:
    """The pods of each job by number; of one before it of the same name they are others'."""
    labelled = defaultdict(list)
    for pod in pods:
        labelled[pod["metadata"]["namespace"], job_of(pod)].append(pod)
    found: dict[str, dict[int, Object]] = {}
    for name, resource in named.items():
        meta = resource["metadata"]
        found[name] = {
            number: pod
            for pod in labelled[meta["namespace"], meta["name"]]
            if (number := number_of(pod)) is not None and is_controlled_by(pod, meta["uid"])
        }
    return found


def _seen(
    name: str, resource: Object, pods: Sequence[PodSeen], config: OperatorConfig, look: Look
) -> JobSeen:
    wanted = wanted_of(resource, config.coordinator)
    staying = sum(pod.stays for pod in pods)
    url = resource.get("spec", {}).get("coordinator") or config.coordinator
    progress = Progress()
    if wanted.trains and staying and url:
        progress = look(url, resource["metadata"]["name"], staying)
    try:
        ledger = ledger_of(resource)
    except UsageError as error:  # its pods still say which numbers are used up
        log.warning("%s", error)
        ledger = PodLedger()
    return JobSeen(name, wanted, ledger, tuple(pods), progress)


def wanted_of(resource: Object, coordinator: str | None) -> JobWanted:
    """What a DistillJob asks for.

    Args:
        resource: it.
        coordinator: Redis URL of those that name none.
    """
    spec, meta = resource.get("spec", {}), resource["metadata"]
    needs, wrong = {}, ""
    try:
        spec_of(resource)
        needs = needs_of(resource, coordinator)
    except UsageError as error:
        wrong = str(error)
    least = max(1, spec.get("minNodes", 1))
    return JobWanted(
        least,
        max(least, spec.get("maxNodes", 1)),
        needs,
        asked=spec.get("nodes"),
        priority=spec.get("priority", 0),
        retries=spec.get("retries", 3),
        stop=bool(spec.get("stopped")),
        trains=bool(spec.get("train")),
        submitted_s=seconds_of(meta["creationTimestamp"]),
        wrong=wrong,
    )
