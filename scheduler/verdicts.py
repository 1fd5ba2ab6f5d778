"""Comparison of four methods by time and cost, to decide whether a mesh is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from .cluster import Cluster, Distillation
from .pipeline_model import DeviceGroup, PlannedMesh, predict

#: Times and costs that differ by a smaller factor count as equal: predictions are not that exact.
EQUAL = 1.02
#: Largest number of teachers at which a crossover is searched.
MOST = 1 << 14
#: N-training uses no teacher; Online runs the teacher on the student's device; with the offline
#: store, Online or a mesh labels only the first epoch; in the mesh teachers label each epoch.
Method = Literal["N-training", "Online", "offline store", "mesh"]
#: What a plan optimises. Methods that break the deadline or the budget count only if all do.
Aim = Literal["fastest", "cheapest"]


def money(amount: float) -> str:
    """Format a sum of money: with two decimals, or with three significant digits below 1."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.3g}"


@dataclass(frozen=True, slots=True)
class MethodEstimate:
    """Estimate of one method to train the job.

    Attributes:
        method: the estimated method.
        why_not: why it is impossible; empty: it is possible, and the other values describe it.
        samples_per_s: rate in the steady state; for the store, the mean over all epochs.
        epoch_s: mean time of an epoch.
        total_s: time of all epochs.
        cost_per_hour: price of all devices in use; for the store, the mean over all epochs.
        cost: price of all epochs.
        teachers: number of devices that label; for the store, in the first epoch only; 0 for
            Online, whose students label themselves.
        student: kind of the students' devices.
        rows: rows of a student's batch.
    """

    method: Method
    why_not: str = ""
    samples_per_s: float = 0.0
    epoch_s: float = 0.0
    total_s: float = 0.0
    cost_per_hour: float = 0.0
    cost: float = 0.0
    teachers: int = 0
    student: str = ""
    rows: int = 0

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
        worth: the mesh is the method to take.
        take: the method to take, among those with a teacher; None: none of them is possible.
        reasons: sentences, the most important first.
    """

    worth: bool
    take: Method | None
    reasons: tuple[str, ...]


def judge(
    cluster: Cluster,
    job: Distillation,
    estimates: Sequence[MethodEstimate],
    mesh: PlannedMesh | None,
    aim: Aim,
) -> MeshVerdict:
    """Decide which method to take.

    Args:
        cluster: the devices.
        job: the distillation with its deadline and budget.
        estimates: the estimates of all four methods.
        mesh: the planned mesh of the estimate of "mesh"; None: no mesh is possible.
        aim: what to optimise.
    """
    by = {estimate.method: estimate for estimate in estimates}
    take = _best_method(job, estimates, aim)
    reasons: list[str] = []
    if mesh is None:
        reasons.append(f"no mesh: {by['mesh'].why_not}")
    else:
        reasons += _against_online(cluster, job, by, mesh)
        reasons += _against_store(job, by)
        reasons += _against_n_training(by)
    reasons += _broken_limits(cluster, job, by, take)
    return MeshVerdict(take == "mesh", take, tuple(reasons))


def _best_method(job: Distillation, estimates: Sequence[MethodEstimate], aim: Aim) -> Method | None:
    """Return the best method with a teacher.

    Among methods that are equal by `aim`, it is the better one by the other value (time or cost),
    then the simpler one.
    """
    by_simplicity: tuple[Method, ...] = ("Online", "offline store", "mesh")
    possible = [one for one in estimates if one.method in by_simplicity and not one.why_not]
    best = [estimate for estimate in possible if estimate.within_limits(job)] or possible
    if not best:
        return None
    for index in range(2):
        least = min(estimate.sort_key(aim)[index] for estimate in best)
        best = [estimate for estimate in best if estimate.sort_key(aim)[index] <= EQUAL * least]
    return min(best, key=lambda estimate: by_simplicity.index(estimate.method)).method


def _against_online(
    cluster: Cluster, job: Distillation, by: dict[Method, MethodEstimate], mesh: PlannedMesh
) -> list[str]:
    online, in_mesh = by["Online"], by["mesh"]
    if online.why_not:
        return [f"Online is impossible: {online.why_not}"]
    speedup = in_mesh.samples_per_s / online.samples_per_s
    costs = f"{money(in_mesh.cost)} against {money(online.cost)} {cluster.currency}"
    if in_mesh.total_s * EQUAL < online.total_s:
        speed = f"the mesh is {_percent(speedup - 1)} faster than Online"
        if in_mesh.cost <= online.cost * EQUAL:
            return [f"{speed} at no notable extra cost: {costs}"]
        saved_h = (online.total_s - in_mesh.total_s) / 3600
        per_hour = (in_mesh.cost - online.cost) / saved_h
        price = f"{money(per_hour)} {cluster.currency} for each hour saved"
        return [f"{speed}; it costs {costs}: {price}"]
    if in_mesh.total_s <= online.total_s * EQUAL:
        speed = "the mesh is as fast as Online"
        return (
            [f"{speed} and cheaper: {costs}"]
            if in_mesh.cost * EQUAL < online.cost
            else [f"{speed}, needs {in_mesh.teachers} more devices, and costs {costs}"]
        )
    enough = crossover(cluster, job, mesh, online.samples_per_s)
    speed = f"Online is {_percent(1 / speedup - 1)} faster than the mesh (the mesh costs {costs})"
    if enough is None:
        return [f"{speed}, and more teachers do not change that"]
    return [
        f"{speed}; with {enough} teachers or more the mesh is faster;"
        f" the plan uses {in_mesh.teachers}"
    ]


def _against_store(job: Distillation, by: dict[Method, MethodEstimate]) -> list[str]:
    store, in_mesh = by["offline store"], by["mesh"]
    if store.why_not or store.total_s > in_mesh.total_s * EQUAL:
        return []
    if store.cost * EQUAL < in_mesh.cost:
        saved = _percent(1 - store.cost / in_mesh.cost)
        size_gb = job.samples * job.label_bytes / 1e9
        return [
            f"inputs are the same in each epoch: labels that are kept save {saved} of the cost, for"
            f" {size_gb:,.3g} GB of disk"
        ]
    return []


def _against_n_training(by: dict[Method, MethodEstimate]) -> list[str]:
    alone = by["N-training"]
    longer = by["mesh"].total_s / alone.total_s - 1
    if longer < 1 / EQUAL - 1:
        return [f"the mesh is faster than training without a teacher on {alone.student}"]
    if longer < EQUAL - 1:
        within = _percent(EQUAL - 1)
        return [f"the mesh is as fast as training without a teacher (within {within})"]
    return [f"the mesh takes {_percent(longer)} longer than training without a teacher"]


def _broken_limits(
    cluster: Cluster, job: Distillation, by: dict[Method, MethodEstimate], take: Method | None
) -> list[str]:
    if take is None or by[take].within_limits(job):
        return []
    takes = f"takes {by[take].total_s / 3600:.3g} h"
    costs = f"costs {money(by[take].cost)} {cluster.currency}"
    nothing = "no method with a teacher keeps"
    if job.budget is None:
        return [f"{nothing} the deadline: {take} {takes}"]
    if job.deadline_s is None:
        return [f"{nothing} the budget: {take} {costs}"]
    return [f"{nothing} both the deadline and the budget: {take} {takes} and {costs}"]


def crossover(cluster: Cluster, job: Distillation, mesh: PlannedMesh, rate: float) -> int | None:
    """Return how many teachers a mesh needs to be faster than `rate`.

    Args:
        cluster: the devices.
        job: the distillation.
        mesh: the mesh; the number of teachers in its last group is varied.
        rate: samples per second to exceed.

    Returns:
        The number of teachers of all groups; None: no number up to `MOST` suffices.
    """
    *other_groups, last = mesh.teacher_groups

    def exceeds(count: int) -> bool:
        larger = replace(mesh, teacher_groups=(*other_groups, DeviceGroup(last.kind, count)))
        return predict(cluster, job, larger).samples_per_s > rate

    low, high = 0, 1
    while not exceeds(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return high + int(sum(group.count for group in other_groups))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 10 else f"{share:,.0f} times"
