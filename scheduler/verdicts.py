"""Comparison of four methods by time and cost, to decide whether a mesh is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from .cluster import Cluster, Distillation
from .pipeline_model import DeviceGroup, PlannedMesh, predict

#: Times and costs that differ by a smaller factor count as equal: predictions are no more exact.
EQUAL = 1.02
#: Largest number of teachers at which a crossover is searched.
MOST = 1 << 14
#: N-training uses no teacher; Online runs it on the student's device; with the offline store
#: teachers label only the first epoch; in the mesh they label each epoch.
Method = Literal["N-training", "Online", "offline store", "mesh"]
#: What a plan optimises, within its deadline and budget if it can keep them.
Aim = Literal["fastest", "cheapest"]


def money(amount: float) -> str:
    """Format a sum of money: with cents, or three digits if it is small."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.3g}"


@dataclass(frozen=True, slots=True)
class MethodEstimate:
    """Estimate of one method to train the job.

    Attributes:
        method: the method.
        why_not: why it is impossible; empty: it is possible, and the other values describe it.
        samples_per_s: in the steady state; of the store, the mean over all epochs.
        epoch_s: mean time of an epoch.
        total_s: time of all epochs.
        cost_per_hour: of all devices in use.
        cost: of all epochs.
        teachers: number of devices that label.
    """

    method: Method
    why_not: str = ""
    samples_per_s: float = 0.0
    epoch_s: float = 0.0
    total_s: float = 0.0
    cost_per_hour: float = 0.0
    cost: float = 0.0
    teachers: int = 0

    def within_limits(self, job: Distillation) -> bool:
        """Whether it keeps the deadline and the budget."""
        return self.total_s <= (job.deadline_s or inf) and self.cost <= (job.budget or inf)

    def sort_key(self, aim: Aim) -> tuple[float, float]:
        """Return the values to minimise, the more important one first."""
        return (self.total_s, self.cost) if aim == "fastest" else (self.cost, self.total_s)


@dataclass(frozen=True, slots=True)
class MeshVerdict:
    """Whether the mesh is worth it.

    Attributes:
        worth: take the mesh.
        take: the method to take, among those that distil; None: none is possible.
        reasons: sentences, the most important first.
    """

    worth: bool
    take: Method | None
    reasons: tuple[str, ...]


def judge(
    cluster: Cluster,
    job: Distillation,
    ways: Sequence[MethodEstimate],
    mesh: PlannedMesh | None,
    aim: Aim,
) -> MeshVerdict:
    """Decide which method to take.

    Args:
        cluster: its devices.
        job: with its deadline and budget.
        ways: all four estimates.
        mesh: the mesh; None: there is none.
        aim: what to optimise.
    """
    by = {way.method: way for way in ways}
    take = _take(job, ways, aim)
    reasons: list[str] = []
    if mesh is None:
        reasons.append(f"no mesh: {by['mesh'].why_not}")
    else:
        reasons += _against_online(cluster, job, by, mesh)
        reasons += _against_store(job, by)
        reasons += _against_none(by)
    reasons += _limits(cluster, job, by, take)
    return MeshVerdict(take == "mesh", take, tuple(reasons))


def _take(job: Distillation, ways: Sequence[MethodEstimate], aim: Aim) -> Method | None:
    """Return the best method that distils; among equal ones the cheaper, then the simpler."""
    order: tuple[Method, ...] = ("Online", "offline store", "mesh")
    can = [way for way in ways if way.method in order and not way.why_not]
    left = [way for way in can if way.within_limits(job)] or can
    if not left:
        return None
    for place in range(2):
        least = min(way.sort_key(aim)[place] for way in left)
        left = [way for way in left if way.sort_key(aim)[place] <= EQUAL * least]
    return min(left, key=lambda way: order.index(way.method)).method


def _against_online(
    cluster: Cluster, job: Distillation, by: dict[Method, MethodEstimate], mesh: PlannedMesh
) -> list[str]:
    online, ours = by["Online"], by["mesh"]
    if online.why_not:
        return [f"Online is impossible: {online.why_not}"]
    faster = ours.samples_per_s / online.samples_per_s
    sums = f"{money(ours.cost)} against {money(online.cost)} {cluster.currency}"
    if ours.total_s * EQUAL < online.total_s:
        words = f"the mesh is {_percent(faster - 1)} faster than Online"
        if ours.cost <= online.cost * EQUAL:
            return [f"{words} at no notable extra cost: {sums}"]
        saved_h = (online.total_s - ours.total_s) / 3600
        each = (ours.cost - online.cost) / saved_h
        return [f"{words}; it costs {sums}: {money(each)} {cluster.currency} an hour saved"]
    if ours.total_s <= online.total_s * EQUAL:
        words = "the mesh is as fast as Online"
        return (
            [f"{words} and cheaper: {sums}"]
            if ours.cost * EQUAL < online.cost
            else [f"{words}, needs {ours.teachers} more devices, and costs {sums}"]
        )
    crossing = crossover(cluster, job, mesh, online.samples_per_s)
    words = f"Online is {_percent(1 / faster - 1)} faster than the mesh ({sums})"
    if crossing is None:
        return [f"{words}, and more teachers do not change that"]
    return [
        f"{words}; with {crossing} teachers or more the mesh is faster;"
        f" the plan uses {ours.teachers}"
    ]


def _against_store(job: Distillation, by: dict[Method, MethodEstimate]) -> list[str]:
    store, ours = by["offline store"], by["mesh"]
    if store.why_not or store.total_s > ours.total_s * EQUAL:
        return []
    if store.cost * EQUAL < ours.cost:
        less = _percent(1 - store.cost / ours.cost)
        size = job.samples * job.label_bytes / 1e9
        return [
            f"inputs are the same in each epoch: labels that are kept save {less} of the cost, for"
            f" {size:,.3g} GB of disk"
        ]
    return []


def _against_none(by: dict[Method, MethodEstimate]) -> list[str]:
    ours, alone = by["mesh"], by["N-training"]
    more = ours.total_s / alone.total_s - 1
    if more < EQUAL - 1:
        return [f"it takes at most {_percent(EQUAL - 1)} longer than training without a teacher"]
    return [f"it takes {_percent(more)} longer than training without a teacher"]


def _limits(
    cluster: Cluster, job: Distillation, by: dict[Method, MethodEstimate], take: Method | None
) -> list[str]:
    if take is None or by[take].within_limits(job):
        return []
    takes = f"takes {by[take].total_s / 3600:.3g} h"
    costs = f"costs {money(by[take].cost)} {cluster.currency}"
    if job.budget is None:
        return [f"nothing keeps the deadline: {take} {takes}"]
    if job.deadline_s is None:
        return [f"nothing keeps the budget: {take} {costs}"]
    return [f"nothing keeps both the deadline and the budget: {take} {takes} and {costs}"]


def crossover(cluster: Cluster, job: Distillation, mesh: PlannedMesh, rate: float) -> int | None:
    """Return how many teachers a mesh needs to be faster than `rate`.

    Args:
        cluster: its devices.
        job: the distillation.
        mesh: the mesh; the number of its last kind of teachers is varied.
        rate: samples per second to exceed.

    Returns:
        The number; None: no number suffices.
    """
    *before, last = mesh.teams

    def exceeds(count: int) -> bool:
        larger = replace(mesh, teams=(*before, DeviceGroup(last.kind, count)))
        return predict(cluster, job, larger).samples_per_s > rate

    low, high = 0, 1
    while not exceeds(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return high + int(sum(team.count for team in before))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 10 else f"{share:,.0f} times"
