"""What a cluster has, and what of it others hold: the pool that elastic jobs share.

Amounts are summed over machines, not packed into them (docs/adr/0016). Kinds of resources have
names that read well in a reason: "cpu", "GiB of memory", "gpu", "pods"; all others keep their own.
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
)
from ...runtime.errors import UsageError
from ...scheduler.elastic_values import Pool

_GIB: Final = 2.0**30
#: Of Kubernetes -> ours, and how many of its units one of ours is.
_KINDS: Final = {
    "memory": ("GiB of memory", _GIB),
    "ephemeral-storage": ("GiB of disk", _GIB),
    GPU: ("gpu", 1.0),
}
PODS: Final = "pods"
#: Of the machine that a pod has: it counts in the pool; it takes nobody any more, but what runs
#: there goes on (cordoned); nothing is heard of it; the pod has none yet.
Machine = Literal["counted", "closed", "silent", "none"]
#: Kubernetes knows no larger quantity.
_MOST: Final = 2.0**63
#: What a cluster that grows as pods wait for machines has of each kind: no bound.
_PLENTY: Final = 1e12
ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})
#: A field selector of pods that hold room, or may come to.
NOT_ENDED: Final = ",".join(f"status.phase!={phase}" for phase in sorted(ENDED_PHASES))


def amounts(resources: Mapping[str, Any]) -> dict[str, float]:
    """Amounts by our kinds, of what Kubernetes says by its own: {"memory": "2Gi", "cpu": "500m"}.

    Raises:
        UsageError: a value is no quantity.
    """
    found = {}
    for name, value in resources.items():
        kind, unit = _KINDS.get(name, (name, 1.0))
        found[kind] = quantity(value) / unit
    return found


def requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """What a pod takes of a machine, as the cluster's scheduler counts it.

    Containers together, or the largest of those that run before them, unless the pod says it for
    all of them; and the pod itself.

    Args:
        spec: of the pod.

    Raises:
        UsageError: it says something that is no quantity.
    """
    total: dict[str, float] = {}
    for container in spec.get("containers", ()):
        total = _sum(total, _container(container))
    beside: dict[str, float] = {}  # containers that start before, and stay
    largest: dict[str, float] = {}
    for container in spec.get("initContainers", ()):
        own = _container(container)
        if container.get("restartPolicy") == "Always":
            beside = _sum(beside, own)
            own = {}
        largest = _most(largest, _sum(beside, own))
    total = _most(_sum(total, beside), largest) | _container(spec)
    return {**_sum(total, amounts(spec.get("overhead") or {})), PODS: 1.0}


def checked_requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """`requests_of` of a pod that is to be made, to whose spec a user's template has added.

    Raises:
        UsageError: that is no template of a pod, or says an amount that none can request.
    """
    try:
        needs = requests_of(spec)
    except (TypeError, AttributeError) as error:
        raise UsageError(f"podTemplate is no template of a pod: {error}") from None
    for kind, amount in needs.items():
        if not 0 <= amount <= _MOST:
            raise UsageError(f"resources: a pod cannot request {amount:g} {kind}")
    return needs


def _container(container: Mapping[str, Any]) -> dict[str, float]:
    """What one container requests; where it only has a limit, that is its request."""
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {kind: one.get(kind, 0.0) + other.get(kind, 0.0) for kind in {**one, **other}}


def _most(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {kind: max(one.get(kind, 0.0), other.get(kind, 0.0)) for kind in {**one, **other}}


def pool_of(
    machines: Iterable[Mapping[str, float]],
    others: Iterable[tuple[Machine, bool, Mapping[str, float]]],
) -> Pool:
    """What a cluster has, and what of it others hold or want back.

    Teachers that wait for a machine want room back; of other pods only those count that have a
    machine: what a stranger asks for in vain moves nobody.

    Args:
        machines: what each of those has that count, of each kind.
        others: of each pod of others that has not ended: the machine that it has, whether it is a
            teacher that stays, and what it requests.
    """
    capacity: dict[str, float] = {}
    for amounts_of in machines:
        capacity = _sum(capacity, amounts_of)
    held: dict[str, float] = {}
    for machine, teaches, requests in others:
        if machine == "counted" or (machine == "none" and teaches):
            held = _sum(held, requests)
    return Pool(capacity, {k: v for k, v in held.items() if k in capacity and v > 0})


@dataclass(frozen=True, slots=True)
class Machines:
    """The cluster's nodes, as Kubernetes calls them.

    Attributes:
        counted: what those have that are ready and take pods, by name.
        closed: those that are ready, and take no pods (any more), or none of those that may come.
    """

    counted: Mapping[str, Mapping[str, float]]
    closed: frozenset[str]

    @classmethod
    def of(
        cls, nodes: Iterable[Object], tolerated: Iterable[Sequence[Object]] | None = None
    ) -> Machines:
        """As the API lists them.

        Args:
            nodes: those of the cluster.
            tolerated: for each sort of pods that may come, their tolerations; a machine whose
                taints keep all of them away is closed. None: taints are not looked at.
        """
        sorts = None if tolerated is None else list(tolerated)
        counted, closed = {}, set()
        for node in nodes:
            name = node["metadata"]["name"]
            status = node.get("status", {})
            if not _is_ready(status):
                continue
            spec = node.get("spec", {})
            if spec.get("unschedulable") or (sorts is not None and _keeps_away(spec, sorts)):
                closed.add(name)
            else:
                counted[name] = amounts(status.get("allocatable", {}))
        return cls(counted, frozenset(closed))

    def of_pod(self, pod: Object) -> Machine:
        """What the machine is that a pod has."""
        name = pod.get("spec", {}).get("nodeName")
        if not name:
            return "none"
        if name in self.counted:
            return "counted"
        return "closed" if name in self.closed else "silent"

    def pool(self, pods: Iterable[Object], ours: Callable[[Object], bool]) -> Pool:
        """What there is, and what is others'; see `pool_of`.

        Args:
            pods: of all namespaces.
            ours: whether a pod is one of those that share the pool.
        """
        others = (
            (self.of_pod(pod), _is_teacher(pod), requests_of(pod["spec"]))
            for pod in pods
            if pod.get("status", {}).get("phase") not in ENDED_PHASES and not ours(pod)
        )
        return pool_of(self.counted.values(), others)


def unbounded(kinds: Iterable[str]) -> Pool:
    """Of a cluster to which machines come when pods wait for them."""
    return Pool(dict.fromkeys(kinds, _PLENTY))


def _keeps_away(spec: Mapping[str, Any], sorts: Sequence[Sequence[Object]]) -> bool:
    """Whether a machine's taints keep all sorts of pods away.

    Those of Kubernetes' own say how a machine is at the moment: what runs there goes on, and its
    readiness is looked at elsewhere.
    """
    taints = [
        one
        for one in spec.get("taints") or ()
        if one.get("effect") in ("NoSchedule", "NoExecute")
        and not one.get("key", "").startswith("node.kubernetes.io/")
    ]
    return bool(taints) and not any(
        all(any(_tolerates(one, taint) for one in sort) for taint in taints) for sort in sorts
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == taint.get("value", ""))


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status.get("conditions", ())
    )


def _is_teacher(pod: Object) -> bool:
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    ours = labels.get(PART_OF_LABEL) == APP and labels.get(COMPONENT_LABEL) == "teacher"
    return ours and "deletionTimestamp" not in meta
