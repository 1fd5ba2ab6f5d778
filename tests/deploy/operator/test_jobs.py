"""DistillJobs on an API server: they grow and shrink, end, fail, and make room for others."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.deploy.operator.jobs.observe import ProgressReader
from edl.deploy.operator.jobs.reconciler import DistillJobReconciler
from edl.mesh.jobs.job_run import TrainingProgress
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    JOB_LABEL,
    NODE,
    POD,
    TEACHER_SERVICE,
    rfc3339_s,
)
from edl.runtime.errors import ManifestRefused, RedisUnavailable
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.stores import of_job

from .jobs_world import REDIS, running, submitted
from .teachers_world import NAME, SPEC, CoordinatorNumbers, Operator


def test_jobs_share_the_cluster_by_need_and_priority(cluster: Cluster) -> None:
    world = running(cluster, 1, 4)
    assert world.nodes("a") == [1, 2, 3, 4]
    status = world.status("a")
    assert (status["state"], status["nodes"], status["ready"]) == ("running", 4, 4)
    assert status["selector"] == f"{JOB_LABEL}=a"
    assert status["observedGeneration"] == 1
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions == {"Ready": "True", "Progressing": "False", "Degraded": "False"}
    world.submit("b", 2, 4)
    world.reconcile()
    assert world.nodes("a") == [1, 2]
    assert world.status("a")["reason"] == "gives 2 nodes to make room for b"
    assert world.status("b")["reason"] == "waits for nodes that are leaving to make room"
    world.rest()
    assert world.nodes("b") == [1, 2]
    assert ("Scaled", "4 -> 2 nodes: gives 2 nodes to make room for b") in cluster.events("a")
    cluster.node("m2", cpu="2")
    world.submit("urgent", 2, 2, priority=10)
    world.rest()
    assert [len(world.nodes(name)) for name in ("a", "b", "urgent")] == [2, 2, 2]
    world.ask("urgent", stopped=True)
    world.rest()
    assert world.status("urgent")["state"] == "stopped"
    assert [len(world.nodes(name)) for name in ("a", "b")] == [3, 3]
    scale = {"spec": {"replicas": 1}}  # as `kubectl scale` does
    cluster.client.patch(DISTILL_JOB, "b", scale, subresource="scale")
    world.rest()
    assert [len(world.nodes(name)) for name in ("a", "b")] == [4, 2], "its fewest"
    assert world.status("b")["observedGeneration"] == 2
    world.ask("b", nodes=None)
    world.rest()
    assert [len(world.nodes(name)) for name in ("a", "b")] == [3, 3]


def test_what_the_cluster_takes_away_is_replaced_and_counted_as_no_failure(
    cluster: Cluster,
) -> None:
    lost = cluster.node("m0", cpu="1")
    world = running(cluster, 1, 4)
    assert world.nodes("a") == [1, 2, 3, 4]
    cluster.client.delete(POD, "a-2")  # as an eviction does it
    cluster.patch_status(POD, "a-3", phase="Failed", reason="Evicted", message="low on memory")
    cluster.lose(lost)
    world.rest()
    assert len(world.nodes("a")) == 4
    assert world.nodes("a")[-1] >= 6
    status = world.status("a")
    assert (status["state"], status["failures"]) == ("running", 0)
    assert ("NodeLost", "the cluster ended node 3: Evicted: low on memory") in cluster.events("a")


def test_nodes_on_a_silent_machine_stay_for_a_while(cluster: Cluster) -> None:
    machine = cluster.node("m0", cpu="1")
    world = running(cluster, 1, 5)
    silent_s = int(world.now) + 60
    times = dict.fromkeys(("lastTransitionTime", "lastHeartbeatTime"), rfc3339_s(silent_s))
    silent = {"type": "Ready", "status": "Unknown", "reason": "Silent", "message": "", **times}
    cluster.patch_status(NODE, machine, conditions=[silent])
    for after_s, nodes in ((20, 5), (30, 4)):
        world.now = silent_s + after_s
        world.reconcile()
        assert len(world.nodes("a")) == nodes


def test_a_job_recreated_under_its_name_gets_new_pods(cluster: Cluster) -> None:
    world = running(cluster, 1, 2)
    cluster.client.delete(DISTILL_JOB, "a")
    world.submit("a", 1, 2)
    for _ in range(2):
        world.reconcile()
    own = cluster.client.get(DISTILL_JOB, "a")["metadata"]["uid"]
    cluster.collect_garbage()
    world.rest()
    assert world.nodes("a") == [3, 4]
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in world.pods("a")} == {own}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"train": "job.py", "command": "work"}, "expects one of train"),
        ({"command": "work", "minNodes": 3, "maxNodes": 2}, "expects spec.minNodes or more"),
        ({"command": "work", "minNodes": 0}, "minNodes"),
        ({"command": "work", "maxNodes": "many"}, "maxNodes"),
        ({"command": "work", "priority": 5000}, "priority"),
        ({"command": "work", "image": ""}, "image"),
        ({"command": "work", "coordinator": "head:6379"}, "coordinator"),
        ({"command": "work", "env": {"A": 1}}, "env"),
    ],
)
def test_what_the_schema_refuses(cluster: Cluster, spec: dict[str, object], says: str) -> None:
    if says.startswith("expects") and not cluster.knows_rules:
        pytest.skip("a server before 1.25")
    with pytest.raises(ManifestRefused, match=says):
        cluster.create(DISTILL_JOB, "a", {"image": "edl-dist", **spec})


def test_an_invalid_spec_is_reported_in_the_status_and_hinders_no_other_job(
    cluster: Cluster,
) -> None:
    world = running(cluster, 1, 2, train="job.py --nodes 3")
    world.submit("b", 1, 2)
    world.rest()
    assert world.status("a")["state"] == "creating"
    ((word, told),) = cluster.events("a")
    assert word == "InvalidSpec"
    assert "--nodes is set from" in told
    assert "--nodes is set from" in world.status("a")["reason"]
    assert (world.nodes("a"), world.nodes("b")) == ([], [1, 2])
    world.ask("a", train=None, command="work")
    world.rest()
    assert world.nodes("a") == [1, 2]


def tainted_node(cluster: Cluster, cpu: str) -> dict[str, Any]:
    """Add a node that keeps pods away; returns a template whose pods tolerate that."""
    name = cluster.node("head", cpu=cpu)
    cluster.client.patch(NODE, name, {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}})
    return {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}


def test_nodes_that_no_active_job_tolerates_are_not_counted(cluster: Cluster) -> None:
    template = tainted_node(cluster, cpu="8")
    world = running(cluster, 1, 1, cpu="2", podTemplate=template)
    cluster.end("a-1", 0)
    world.rest()
    status = world.status("a")
    assert (status["state"], status["nodes"], status["done"]) == ("succeeded", 0, True)
    assert status["endedAt"] >= status["startedAt"]
    assert [word for word, _ in cluster.events("a")].count("Succeeded") == 1
    cluster.client.delete(POD, "a-1")
    world.submit("b", 1, 8)
    world.rest()
    assert len(world.nodes("b")) == 2
    world.ask("b", podTemplate=template)
    world.rest()
    assert len(world.nodes("b")) == 8
    assert (world.status("a")["state"], world.pods("a")) == ("succeeded", [])


def test_running_nodes_of_a_spec_that_became_invalid_keep_their_room(cluster: Cluster) -> None:
    template = tainted_node(cluster, cpu="2")
    world = running(cluster, 3, 3, cpu="2", podTemplate=template)
    world.ask("a", podTemplate={"spec": {"containers": {}, **template["spec"]}})
    world.submit("b", 1, 4, podTemplate=template)
    world.submit("urgent", 3, 3, priority=9, podTemplate=template)
    world.rest()
    assert "podTemplate is not a valid pod template" in world.status("a")["reason"]
    assert [len(world.nodes(name)) for name in ("a", "b", "urgent")] == [3, 1, 0]


def test_how_far_a_training_is_comes_from_its_board() -> None:
    board = JobBoard(MemoryStore())
    trainings = ProgressReader(REDIS, lambda _: board)
    assert trainings.read(REDIS, "ctr", 1) == TrainingProgress(None, steady=False)
    board.join("ctr", "n1", {}, 10)
    assert board.lead("ctr", "n1", 10)
    assert board.publish("ctr", of_job(board, "ctr", "n1"), 1, {"nodes": ["n1"]})
    assert board.report("ctr", 1, 0, {"step": 30, "steps": 120})
    assert trainings.read(REDIS, "ctr", 1) == TrainingProgress(0.25, steady=True)
    assert trainings.read(REDIS, "ctr", 2) == TrainingProgress(0.25, steady=False)


def test_progress_is_read_only_by_the_operators_own_url(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    board = Mock(**{"reports.return_value": [], "generation.return_value": None})
    opened = Mock(return_value=board)
    thief = {"EDL_COORDINATOR": "redis://thief?password_file=/run/secrets/token"}
    hidden = {"name": "EDL_COORDINATOR", "valueFrom": {"secretKeyRef": {"name": "r", "key": "u"}}}
    template = {"spec": {"containers": [{"name": "node", "env": [hidden]}]}}
    world = submitted(cluster, 1, 1, train="job.py", env=thief, coordinator=REDIS)
    world.submit("b", 1, 1, train="job.py")
    same = "redis://me@HEAD/0?password_file=/of/the/node"
    world.submit("c", 1, 1, train="job.py", coordinator=same)
    world.submit("d", 1, 1, train="job.py", podTemplate=template)
    own = ProgressReader(REDIS, opened)
    world.jobs = DistillJobReconciler(cluster.client, world.config, own, cluster_s=0.0)
    with caplog.at_level(logging.WARNING):
        world.rest()
    opened.assert_called_once_with(REDIS)
    assert {one.args for one in board.reports.call_args_list} == {("b",), ("c",)}
    logged = sorted(one.getMessage().partition(",")[0] for one in caplog.records)
    assert logged == ["progress of job a: unknown", "progress of job d: unknown"]
    world.jobs.close()
    board.close.assert_called_once_with()


def test_a_silent_redis_is_not_asked_again_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    opened, now = Mock(side_effect=RedisUnavailable("Redis does not answer")), [0.0]
    trainings = ProgressReader(REDIS, opened, lambda: now[0])
    with caplog.at_level(logging.WARNING):
        unknown = TrainingProgress(steady=True)
        assert trainings.read(REDIS, "a", 1) == trainings.read(REDIS, "b", 1) == unknown
        opened.assert_called_once_with(REDIS)
        now[0] = 31.0
        trainings.read(REDIS, "a", 1)
    assert (opened.call_count, len(caplog.records)) == (2, 1)


def test_a_training_that_forms_its_world_or_is_nearly_done_does_not_grow(cluster: Cluster) -> None:
    world = running(cluster, 1, 3, cpu="1", train="job.py", checkpoint="shared")
    cluster.node("m2", cpu="2")
    for progress, nodes in (
        (TrainingProgress(0.1, steady=False), [1]),
        (TrainingProgress(0.97, steady=True), [1]),
        (TrainingProgress(0.5, steady=True), [1, 2, 3]),
    ):
        world.trainings.progress = progress
        world.rest()
        assert world.nodes("a") == nodes


def test_jobs_make_room_for_teachers_and_grow_when_these_go(cluster: Cluster) -> None:
    said = CoordinatorNumbers(resnet101=0)
    world, teachers = running(cluster, 1, 4), Operator(cluster, said)
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "minReplicas": 0, "scaleToZero": True})
    for number, ready, nodes in ((2, 2, 2), (8, 4, 0), (1, 1, 3)):
        said.numbers["resnet101"] = number
        for _ in range(4):
            teachers.reconcile()
            world.reconcile()
        world.rest()
        status = cluster.client.get(DEPLOYMENT, NAME)["status"]
        assert (status["readyReplicas"], len(world.nodes("a"))) == (ready, nodes)
        waits = world.status("a")["reason"].startswith("waits until online services give")
        assert waits == (nodes == 0)
