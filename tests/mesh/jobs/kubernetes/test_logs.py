"""What pods print, read in pieces: every line once, in its order, whatever a server repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import pytest

from edl.mesh.jobs.kubernetes_backend import TAIL, PodLogs
from edl.mesh.kubernetes.client import Client
from edl.mesh.kubernetes.resources import JOB_LABEL, NODE_LABEL, seconds_of
from edl.runtime.errors import (
    KubernetesObjectMissing,
    KubernetesUnavailable,
    ManifestRefused,
    UsageError,
)


class Cluster:
    """Pods of one job, and what they have printed; logs are cut at whole seconds."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.printed: dict[str, list[str]] = {}
        self.asked: list[dict[str, Any]] = []
        self.refuses: dict[str, Exception] = {}

    def pod(
        self, name: str, *printed: str, node: int = 1, phase: str = "Running", owner: str = "u-1"
    ) -> None:
        labels = {JOB_LABEL: "a", NODE_LABEL: str(node)}
        owners = [{"uid": owner, "controller": True}]
        self.pods[name] = {
            "metadata": {"name": name, "uid": name, "labels": labels, "ownerReferences": owners},
            "spec": {"containers": [{"name": "mesh-proxy"}, {"name": "node"}]},
            "status": {"phase": phase},
        }
        self.printed[name] = list(printed)

    def list(self, kind: object, labels: str) -> list[dict[str, Any]]:
        assert labels == f"{JOB_LABEL}=a"
        return list(self.pods.values())

    def pod_log(self, pod: str, **query: Any) -> Iterator[str]:
        self.asked.append({"pod": pod, **query})
        if pod in self.refuses:
            raise self.refuses[pod]
        lines = self.printed[pod]
        if query["since_time"]:
            since_s = seconds_of(query["since_time"])
            lines = [line for line in lines if _second_of(line) >= since_s]
        return iter(lines[-(query["tail_lines"] or len(lines) or 1) :])

    @property
    def logs(self) -> PodLogs:
        return PodLogs(cast(Client, self), "a", "u-1")


def _second_of(line: str) -> float:
    try:
        return int(seconds_of(line.split(" ")[0]))
    except UsageError:  # the server's own words
        return math.inf


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_lines_of_all_nodes_come_as_they_were_printed_each_once(cluster: Cluster) -> None:
    cluster.pod("a-1", "2026-01-01T10:00:00.5Z one", "2026-01-01T10:00:02.25Z three")
    cluster.pod("a-2", "2026-01-01T12:00:01+02:00 two", node=2)
    logs = cluster.logs
    assert logs.read_new() == ["node 1 | one", "node 2 | two", "node 1 | three"]
    assert logs.read_new() == []
    same = "2026-01-01T10:00:02.25Z"  # a clock that did not move between two lines
    cluster.printed["a-1"] += [f"{same} four", f"{same} five"]
    cluster.printed["a-2"] += ["2026-01-01T12:00:01.000000001+02:00  indented "]
    assert logs.read_new() == ["node 2 |  indented ", "node 1 | four", "node 1 | five"]
    cluster.printed["a-1"] += [f"{same} six"]
    assert logs.read_new() == ["node 1 | six"]
    assert {one["container"] for one in cluster.asked} == {"node"}


def test_the_last_lines_of_a_long_log_and_words_of_the_server_are_shown_once(
    cluster: Cluster,
) -> None:
    cluster.pod("a-1", *(f"2026-01-01T10:00:00.{n:09}Z {n}" for n in range(TAIL + 6)), "it is gone")
    logs = cluster.logs
    numbers = [f"node 1 | {number}" for number in range(7, TAIL + 6)]
    assert logs.read_new() == [*numbers, "node 1 | it is gone"]
    assert logs.read_new() == []


def test_pods_that_have_not_begun_or_have_gone_or_are_of_another_job_say_nothing(
    cluster: Cluster,
) -> None:
    for name, phase, owner in (
        ("waits", "Pending", "u-1"), ("gone", "Running", "u-1"), ("begins", "Running", "u-1"),
        ("former", "Succeeded", "u-0"), ("by-hand", "Running", ""),
    ):  # fmt: skip
        cluster.pod(name, f"2026-01-01T10:00:00Z {name}", phase=phase, owner=owner)
    cluster.pods["by-hand"]["metadata"]["ownerReferences"] = []
    cluster.refuses = {
        "gone": KubernetesObjectMissing("gone"),
        "begins": ManifestRefused("creating"),
    }
    logs = cluster.logs
    assert logs.read_new() == []
    cluster.refuses.clear()
    assert logs.read_new() == ["node 1 | gone", "node 1 | begins"]


def test_a_silent_machine_hides_no_other_and_a_pod_that_has_ended_is_read_once_more(
    cluster: Cluster,
) -> None:
    cluster.pod("a-1", "2026-01-01T10:00:01Z line 1")
    cluster.pod("a-2", "2026-01-01T10:00:02Z line 2", node=2)
    cluster.refuses = {"a-2": KubernetesUnavailable("away")}
    logs = cluster.logs
    assert logs.read_new() == ["node 1 | line 1", "node 2 | (its log cannot be read: away)"]
    assert logs.read_new() == []
    cluster.refuses.clear()
    assert logs.read_new() == ["node 2 | line 2"]
    for pod in cluster.pods.values():
        pod["status"]["phase"] = "Failed"
    cluster.printed["a-1"] += ["2026-01-01T10:00:03Z bye"]
    assert logs.read_new() == ["node 1 | bye"]
    asked = len(cluster.asked)
    assert logs.read_new() == []
    assert len(cluster.asked) == asked
