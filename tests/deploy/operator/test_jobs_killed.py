"""An operator of DistillJobs that is killed between any two calls, refused, or overtaken."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from edl.mesh.kubernetes.resources import DISTILL_JOB, POD, rfc3339_s
from edl.runtime.errors import Forbidden, KubernetesUnavailable, ManifestRefused
from edl.tests.deploy.kube_api.cluster import Cluster, KillBefore, Killed, cluster_in
from edl.tests.deploy.kube_api.kinds import NAMESPACE

from .jobs_world import JobsWorld, refusing, running, submitted


class MortalWorld(JobsWorld):
    """After its operator was killed, the next reconcile starts another one."""

    pods_seen: frozenset[tuple[str, str]] = frozenset()

    def reconcile(self) -> None:
        self.now += 1
        try:
            self.jobs.reconcile(self.now)
        except Killed:
            self.jobs = self.operator(self.cluster.client)
        metas = [pod["metadata"] for pod in self.cluster.pods()]
        self.pods_seen |= {(meta["name"], meta["uid"]) for meta in metas}
        self.cluster.play()


def life(folder: Path, kill: KillBefore) -> tuple[MortalWorld, list[object]]:
    """Two jobs come, grow, make room, lose a node, are scaled, and end; what the statuses say."""
    folder.mkdir()
    with cluster_in(folder) as cluster, cluster.calling(kill) as client:
        world = MortalWorld(cluster)
        world.jobs = world.operator(client)
        cluster.node("m1", cpu="3")
        world.submit("a", 1, 3, retries=1)
        world.rest()
        world.submit("b", 1, 1, retries=0, priority=1)
        world.rest()
        cluster.end(f"a-{world.nodes('a')[0]}", 3)
        world.rest()
        cluster.end(f"b-{world.nodes('b')[0]}", 0)
        world.ask("a", nodes=2)
        world.rest()
        keys = ("state", "nodes", "ready", "leaving", "target", "failures", "done")
        told: list[object] = []
        for name in ("a", "b"):
            status = world.status(name)
            told.append(tuple(status.get(key) for key in keys))
            assert len(world.nodes(name)) == status["target"]
        return world, told


@pytest.mark.system
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_killed_before_any_write_it_comes_to_the_same_end(tmp_path: Path, step: int) -> None:
    calm = KillBefore(math.inf, writes_only=True)
    _, told = life(tmp_path / "calm", calm)
    assert told == [("running", 2, 2, 0, 2, 1, False), ("succeeded", 0, 0, 0, 0, 0, True)]
    for at in range(0, len(calm.requests), step):
        kill = KillBefore(at, writes_only=True)
        world, found = life(tmp_path / f"at-{at}", kill)
        assert found == told, f"killed before {calm.requests[at]}"
        assert kill.died
        names = [name for name, _ in world.pods_seen]
        assert len(names) == len({*names}), "two pods had one name"


def test_a_job_that_is_changed_meanwhile_is_looked_at_again(cluster: Cluster) -> None:
    world = submitted(cluster, 1, 4)
    changed: list[str] = []

    def change(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/status") and not changed:
            changed.append(path)
            world.ask("a", nodes=2)

    with cluster.calling(change) as client:
        world.operator(client).reconcile(world.now)
    assert world.nodes("a") == [1, 2]
    assert len(changed) == 1


def test_a_node_that_ends_while_it_is_deleted_counts_as_done(cluster: Cluster) -> None:
    world = running(cluster, 1, 2)
    world.ask("a", nodes=1)

    def end(method: str, path: str) -> None:
        if method == "DELETE":
            cluster.end("a-2", 0)

    with cluster.calling(end) as client:
        world.operator(client).reconcile(world.now)
    world.rest()
    assert world.status("a")["done"] is True
    assert world.nodes("a") == [1]


def test_a_refused_pod_fails_the_job_after_its_retries(cluster: Cluster) -> None:
    world = submitted(cluster, 2, 2, retries=1)
    error = ManifestRefused("volumes[0].name: Required value")
    with cluster.calling(refusing("POST", "/pods", error)) as client:
        world.jobs = world.operator(client)
        world.rest()
    status = world.status("a")
    assert (status["state"], status["failures"]) == ("failed", 2)
    assert status["reason"].endswith("cannot be started: volumes[0].name: Required value")
    degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "Failed")
    words = [word for word, _ in cluster.events("a")]
    assert "NodeRefused" in words
    assert words.count("Failed") == 1


def test_a_quota_delays_a_node_and_is_no_failure(cluster: Cluster) -> None:
    world = submitted(cluster, 1, 2)
    quota = refusing("POST", "/pods", Forbidden("exceeded quota: pods"))
    with cluster.calling(quota) as client:
        world.jobs = world.operator(client)
        world.reconcile()
        world.reconcile()
        assert "exceeded quota" in world.status("a")["reason"]
        world.now += 300
        world.rest()
        assert (world.nodes("a"), world.status("a")["failures"]) == ([], 0)
        told = [message for word, message in cluster.events("a") if word == "NodeRefused"]
        assert told == ["node 1 cannot be started: exceeded quota: pods"], "said once"
    world.jobs = world.operator(cluster.client)
    world.rest()
    assert world.nodes("a") == []
    world.now += 300
    world.rest()
    assert len(world.nodes("a")) == 2


def test_a_webhook_that_fails_delays_one_job_only(cluster: Cluster) -> None:
    world = submitted(cluster, 1, 1)
    world.submit("b", 1, 1)
    failures = [KubernetesUnavailable("failed calling webhook", answered=True)]

    def fail_once(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/pods") and failures:
            raise failures.pop()

    with cluster.calling(fail_once) as client:
        world.jobs = world.operator(client)
        world.reconcile()
        world.reconcile()
        assert world.nodes("b") == [1]
        assert "failed calling webhook" in world.status("a")["reason"]
        assert world.status("a")["nextNode"] == 2, "it pauses"
        world.now += 30
        world.rest()
    assert (world.nodes("a"), world.status("a")["failures"]) == ([2], 0)
    assert [word for word, _ in cluster.events("a")].count("NodeRefused") == 1


def test_a_reconcile_without_an_api_server_fails_and_the_next_continues(cluster: Cluster) -> None:
    world = submitted(cluster, 1, 2)

    def away(method: str, path: str) -> None:
        if method == "POST" and world.nodes("a"):
            raise KubernetesUnavailable("nobody answers")

    with cluster.calling(away) as client, pytest.raises(KubernetesUnavailable):
        world.operator(client).reconcile(world.now)
    assert world.nodes("a") == [1]
    world.rest()
    assert world.nodes("a") == [1, 3], "the number that was given out is used up"


def test_jobs_of_one_name_in_two_namespaces_are_two(cluster: Cluster) -> None:
    world = JobsWorld(cluster, namespace="")
    cluster.node("m1", cpu="4")
    world.submit("a", 1, 2)
    other = "edl-other"
    cluster.client.create(NAMESPACE, {"metadata": {"name": other}})
    spec = {"image": "x", "command": "work", "maxNodes": 2}
    cluster.client.create(DISTILL_JOB, {"metadata": {"name": "a"}, "spec": spec}, other)
    world.reconcile()
    assert world.nodes("a") == [1, 2]
    pods = cluster.client.list(POD, namespace=other)
    assert [one["metadata"]["name"] for one in pods] == ["a-1", "a-2"]
    world.rest()
    assert world.status("a")["state"] == "running"
    cluster.client.delete(NAMESPACE, other)


def test_a_cluster_that_grows_gets_pods_that_wait_and_a_patience(cluster: Cluster) -> None:
    world = running(cluster, 1, 3, cpu="2", grows=True)
    assert world.nodes("a") == [1, 2, 3]
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
                "lastTransitionTime": rfc3339_s(world.now - 120)}  # fmt: skip
    cluster.patch_status(POD, "a-3", phase="Pending", conditions=[unplaced])
    world.rest()
    assert world.nodes("a") == [1, 2]


def test_jobs_are_read_each_time_and_other_objects_at_intervals(cluster: Cluster) -> None:
    world = submitted(cluster, 1, 2, cpu="1")
    jobs = world.operator(cluster.client, cluster_s=5.0)
    jobs.reconcile(world.now)
    cluster.play()
    cluster.node("m2", cpu="1")
    jobs.reconcile(world.now + 4)
    assert world.nodes("a") == [1]
    assert world.status("a")["ready"] == 1
    jobs.reconcile(world.now + 5)
    assert world.nodes("a") == [1, 2]
    cluster.play()
    cluster.node("m3", cpu="1")
    world.ask("a", maxNodes=3)
    jobs.reconcile(world.now + 6)
    assert world.nodes("a") == [1, 2, 3], "a changed spec is decided on a fresh look"
    jobs.close()


def test_without_jobs_nothing_else_is_read(cluster: Cluster) -> None:
    world, asked = running(cluster, 1, 1), list[str]()
    cluster.client.delete(DISTILL_JOB, "a")
    with cluster.calling(lambda method, path: asked.append(path.rpartition("/")[2])) as client:
        world.operator(client).reconcile(world.now)
    assert asked == ["distilljobs"]
    cluster.collect_garbage()


def test_an_error_of_one_job_is_logged_once_and_does_not_block_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    world = submitted(cluster, 1, 1)
    world.submit("b", 1, 1)
    hook = refusing("PATCH", "/a/status", Forbidden("no right"))
    with cluster.calling(hook) as client, caplog.at_level(logging.WARNING):
        world.jobs = world.operator(client)
        for _ in range(3):
            world.reconcile()
        assert [one.getMessage() for one in caplog.records] == ["job a: no right"]
        assert world.nodes("b") == [1]
        cluster.client.delete(DISTILL_JOB, "b")
        with pytest.raises(Forbidden):  # a reconcile in which every job failed
            world.reconcile()
