"""Capacity of a cluster, and how much of it other pods use: the pool that elastic jobs share.

Amounts are summed over machines, not packed into them (docs/adr/0016). Users read the names of
resources in the `reason` of a status. So the most frequent ones are called "cpu", "GiB of memory",
"gpu" and "pods"; all others keep their Kubernetes name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ...mesh.kubernetes.resources import (
    APP,
    COMPONENT_LABEL,
    GPU,
    PART_OF_LABEL,
    Object,
    quantity,
    seconds_of,
)
from ...runtime.errors import UsageError
from ...scheduler.elastic_values import Pool

_GIB: Final = 2.0**30
#: Kubernetes name -> our name, and units of Kubernetes per unit of ours.
_KINDS: Final = {
    "memory": ("GiB of memory", _GIB),
    "ephemeral-storage": ("GiB of disk", _GIB),
    GPU: ("gpu", 1.0),
}
PODS: Final = "pods"
#: Seconds for which pods of jobs stay on a machine that is unreachable or not ready. For the same
#: time the machine stays in the pool. Otherwise jobs would shrink at once, and lose nodes that
#: still run.
SILENT_S: Final = 30
#: State of a pod's machine. "counted": in the pool; "closed": ready, but takes no new pods
#: (cordoned or tainted); "silent": all others, also removed ones; "none": the pod is not scheduled
#: yet.
MachineState = Literal["counted", "closed", "silent", "none"]
#: Upper bound of a request; Kubernetes has no larger quantity.
_LARGEST: Final = 2.0**63
#: Amount of each resource in a cluster that adds machines for waiting pods: practically unlimited.
PLENTY: Final = 1e12
ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})
#: Field selector of pods that use resources now or may use them later.
NOT_ENDED: Final = ",".join(f"status.phase!={phase}" for phase in sorted(ENDED_PHASES))


def amounts(resources: Mapping[str, Any]) -> dict[str, float]:
    """Convert resources of Kubernetes to our names and units.

    {"memory": "2Gi", "cpu": "500m"} becomes {"GiB of memory": 2.0, "cpu": 0.5}.

    Raises:
        UsageError: a value is not a quantity of Kubernetes.
    """
    converted = {}
    for name, value in resources.items():
        kind, unit = _KINDS.get(name, (name, 1.0))
        converted[kind] = quantity(value) / unit
    return converted


def requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return the effective requests of a pod, as the cluster's scheduler counts them.

    These are the larger of two: the sum over its containers and sidecars (init containers that keep
    running), and the largest init container with the sidecars before it. Requests at pod level take
    precedence. The pod's overhead is added, and 1 of the resource "pods".

    Args:
        spec: spec of the pod.

    Raises:
        UsageError: a value is not a quantity of Kubernetes.
    """
    total: dict[str, float] = {}
    for container in spec.get("containers", ()):
        total = _sum(total, _container_requests(container))
    sidecars: dict[str, float] = {}  # init containers that keep running
    largest: dict[str, float] = {}
    for container in spec.get("initContainers", ()):
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, own)
            own = {}
        largest = _maximum(largest, _sum(sidecars, own))
    total = _maximum(_sum(total, sidecars), largest) | _container_requests(spec)
    return {**_sum(total, amounts(spec.get("overhead") or {})), PODS: 1.0}


def checked_requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """Return `requests_of` a pod spec into which a user's template is merged.

    Raises:
        UsageError: the template is malformed, or requests an impossible amount.
    """
    try:
        needs = requests_of(spec)
    except (TypeError, AttributeError) as error:
        raise UsageError(f"podTemplate is not a valid pod template: {error}") from None
    for kind, amount in needs.items():
        if not 0 <= amount <= _LARGEST:
            raise UsageError(f"resources: a pod cannot request {amount:g} {kind}")
    return needs


def _container_requests(container: Mapping[str, Any]) -> dict[str, float]:
    """Return the requests of a container; a limit without a request counts as a request."""
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {kind: one.get(kind, 0.0) + other.get(kind, 0.0) for kind in {**one, **other}}


def _maximum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {kind: max(one.get(kind, 0.0), other.get(kind, 0.0)) for kind in {**one, **other}}


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of the cluster, which Kubernetes calls nodes. See `MachineState`.

    Attributes:
        counted: name -> allocatable resources, of machines that take new pods and are ready, or
            were ready less than `SILENT_S` ago.
        closed: names of machines that are ready in this sense, but take no new pods, or none of the
            jobs' pods.
    """

    counted: Mapping[str, Mapping[str, float]]
    closed: frozenset[str]

    @classmethod
    def of(
        cls,
        nodes: Iterable[Object],
        tolerated: Iterable[Sequence[Object]] | None = None,
        now: float | None = None,
    ) -> Machines:
        """Classify the nodes of the cluster.

        Args:
            nodes: all Node objects.
            tolerated: tolerations of each job. A machine is closed if its taints keep all jobs
                away. None: ignore taints.
            now: seconds since 1970; None: only machines that are ready now count.
        """
        jobs = None if tolerated is None else list(tolerated)
        counted, closed = {}, set()
        for node in nodes:
            name = node["metadata"]["name"]
            status = node.get("status", {})
            if not _is_ready(node, now):
                continue
            spec = node.get("spec", {})
            if spec.get("unschedulable") or (jobs is not None and _taints_exclude(spec, jobs)):
                closed.add(name)
            else:
                counted[name] = amounts(status.get("allocatable", {}))
        return cls(counted, frozenset(closed))

    def of_pod(self, pod: Object) -> MachineState:
        """Return the state of a pod's machine."""
        name = pod.get("spec", {}).get("nodeName")
        if not name:
            return "none"
        if name in self.counted:
            return "counted"
        return "closed" if name in self.closed else "silent"

    def pool(self, pods: Iterable[Object], shares_pool: Callable[[Object], bool]) -> Pool:
        """Return the capacity of the cluster, and how much of it other pods take.

        A pod on a counted machine takes what it requests. So does a teacher that waits for a
        machine: jobs make room for it. Other waiting pods take nothing: jobs give up no nodes for
        them.

        Args:
            pods: pods of all namespaces.
            shares_pool: returns whether a pod is one of those that share the pool. These pods do
                not count as other pods, so they take nothing here.
        """
        capacity: dict[str, float] = {}
        for resources in self.counted.values():
            capacity = _sum(capacity, resources)
        taken: dict[str, float] = {}
        for pod in pods:
            machine = self.of_pod(pod)
            takes = machine == "counted" or (machine == "none" and _is_teacher(pod))
            ended = pod.get("status", {}).get("phase") in ENDED_PHASES
            if takes and not ended and not shares_pool(pod):
                taken = _sum(taken, requests_of(pod["spec"]))
        return Pool(capacity, {k: v for k, v in taken.items() if k in capacity and v > 0})


def _taints_exclude(spec: Mapping[str, Any], jobs: Sequence[Sequence[Object]]) -> bool:
    """Return whether a machine's taints keep all jobs away.

    The taints of Kubernetes itself are ignored: they reflect conditions of the machine, and
    readiness is checked separately.

    Args:
        spec: spec of the Node object.
        jobs: tolerations of each job.
    """
    taints = [
        taint
        for taint in spec.get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not taint.get("key", "").startswith("node.kubernetes.io/")
    ]
    return bool(taints) and not any(
        all(any(_tolerates(toleration, taint) for toleration in job) for taint in taints)
        for job in jobs
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == taint.get("value", ""))


def _is_ready(node: Object, now: float | None) -> bool:
    """Return whether a machine is ready, or was until less than `SILENT_S` before `now`.

    A machine that became unready within `SILENT_S` of its creation counts as one that was never
    ready.
    """
    conditions = node.get("status", {}).get("conditions", ())
    ready: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return True
    since, created = ready.get("lastTransitionTime"), node["metadata"].get("creationTimestamp")
    if now is None or not since or not created:
        return False
    since_s = seconds_of(since)
    return since_s - seconds_of(created) >= SILENT_S and 0 <= now - since_s < SILENT_S


def _is_teacher(pod: Object) -> bool:
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    is_labelled = labels.get(PART_OF_LABEL) == APP and labels.get(COMPONENT_LABEL) == "teacher"
    return is_labelled and "deletionTimestamp" not in meta
