"""What a cluster has and others hold, summed as the scheduler of Kubernetes counts it."""

from __future__ import annotations

from typing import Any

import pytest

from edl.deploy.operator.capacity import Machines, amounts, requests_of
from edl.mesh.kubernetes.resources import APP, COMPONENT_LABEL, PART_OF_LABEL, Object
from edl.runtime.errors import UsageError


def machine(name: str, ready: str = "True", closed: bool = False, **has: str) -> Object:
    allocatable = {"nvidia.com/gpu" if kind == "gpu" else kind: has[kind] for kind in has}
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": True} if closed else {},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]},
    }


def requesting(cpu: float | str) -> Object:
    return {"resources": {"requests": {"cpu": cpu}}}


def pod(node: str = "", phase: str = "Running", cpu: str = "1", teaches: bool = False) -> Object:
    labels = {PART_OF_LABEL: APP, COMPONENT_LABEL: "teacher"} if teaches else {}
    return {
        "metadata": {"name": "p", "labels": labels},
        "spec": {"containers": [requesting(cpu)], **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


def test_quantities_by_kinds_that_read_well() -> None:
    found = amounts({"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": "2", "example.com/nic": 1})
    assert found == {"cpu": 1.5, "GiB of memory": 2.0, "gpu": 2.0, "example.com/nic": 1.0}
    with pytest.raises(UsageError, match="is no quantity"):
        amounts({"cpu": "much"})


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [{}]}, None),
        ({"containers": [requesting(1)] * 2}, 2.0),
        ({"containers": [{"resources": {"limits": {"cpu": 3}}}]}, 3.0),
        ({"containers": [{"resources": {"limits": {"cpu": 3}, "requests": {"cpu": 1}}}]}, 1.0),
        ({"containers": [requesting(1)], "initContainers": [requesting(4)]}, 4.0),
        ({"containers": [requesting(1)], "overhead": {"cpu": "250m"}, "initContainers": [
            {"restartPolicy": "Always", **requesting(2)}, requesting(0.5)]}, 3.25),
        ({"containers": [requesting(1)] * 3, **requesting(2)}, 2.0),
    ],
)  # fmt: skip
def test_what_a_pod_takes(spec: dict[str, Any], cpu: float | None) -> None:
    found = requests_of(spec)
    assert found.pop("pods") == 1.0
    assert found == ({} if cpu is None else {"cpu": cpu})


def test_only_machines_that_are_ready_and_take_pods_count() -> None:
    machines = Machines.of([
        machine("a", cpu="4", memory="8Gi"), machine("b", cpu="2", gpu="1"),
        machine("down", ready="False", cpu="9"), machine("silent", ready="Unknown", cpu="9"),
        machine("cordoned", closed=True, cpu="9"),
    ])  # fmt: skip
    assert [machines.of_pod(pod(name)) for name in ("a", "down", "gone", "cordoned", "")] == [
        "counted", "silent", "silent", "closed", "none",
    ]  # fmt: skip
    pool = machines.pool([], lambda _: False)
    assert pool.capacity == {"cpu": 6.0, "GiB of memory": 8.0, "gpu": 1.0}
    assert pool.reserved == {}


SPOT = {"key": "spot", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "tolerated", "counts"),
    [
        ([SPOT], None, True),
        ([SPOT], [], False),
        ([SPOT], [[]], False),
        ([SPOT], [[{"operator": "Exists"}]], True),
        ([SPOT], [[{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]], True),
        ([SPOT], [[{"key": "spot", "value": "yes"}]], True),
        ([SPOT], [[{"key": "spot", "value": "no"}]], False),
        ([SPOT], [[{"key": "spot", "operator": "Exists", "effect": "NoExecute"}]], False),
        ([SPOT], [[], [{"key": "spot", "operator": "Exists"}]], True),
        ([{**SPOT, "effect": "PreferNoSchedule"}], [[]], True),
        ([SPOT, {"key": "gpu", "effect": "NoExecute"}], [[{"key": "spot", "value": "yes"}]], False),
        ([{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}], [[]], True),
    ],
)
def test_machines_whose_taints_keep_all_away_are_closed(
    taints: list[Object], tolerated: list[list[Object]] | None, counts: bool
) -> None:
    node = machine("a", cpu="4")
    node["spec"]["taints"] = taints
    machines = Machines.of([node], tolerated)
    assert machines.of_pod(pod("a")) == ("counted" if counts else "closed")


def test_what_is_others_and_what_is_wanted_back() -> None:
    machines = Machines.of([machine("a", cpu="8"), machine("down", ready="False", cpu="8")])
    ours, teacher = pod("a", cpu="100"), pod(cpu="2", phase="Pending", teaches=True)
    others = [pod("a", cpu="500m"), pod("a", phase="Succeeded"), pod("down")]
    pods = [ours, *others, pod(phase="Pending", cpu="50"), teacher]
    assert machines.pool(pods, lambda one: one is ours).reserved == {"cpu": 2.5}


@pytest.mark.parametrize(
    ("node", "teaches", "holds"),
    [("a", False, True), ("a", True, True), ("", True, True), ("", False, False),
     ("cordoned", True, False), ("down", True, False)],
)  # fmt: skip
def test_what_holds_room(node: str, teaches: bool, holds: bool) -> None:
    closed, down = machine("cordoned", closed=True, cpu="8"), machine("down", ready="False")
    machines = Machines.of([machine("a", cpu="8"), machine("b", cpu="2", gpu="1"), closed, down])
    one = pod(node, cpu="3", teaches=teaches)
    one["spec"]["containers"][0]["resources"]["requests"]["tape drives"] = "1"
    pool = machines.pool([one], lambda _: False)
    assert pool.capacity == {"cpu": 10.0, "gpu": 1.0}
    assert pool.reserved == ({"cpu": 3.0} if holds else {}), "nobody has tape drives"
