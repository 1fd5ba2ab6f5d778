"""DistillJobs on an API server: they grow and shrink, end, fail, and survive their operator."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.deploy.operator.jobs.trainings import Trainings
from edl.errors import ManifestRefused, RegistryUnavailable
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    DISTILL_JOB,
    JOB_LABEL,
    NODE,
    POD,
    TEACHER_SERVICE,
)
from edl.scheduler.elastic import ElasticConfig
from edl.scheduler.job_pods import PodsConfig, Progress
from edl.tests.deploy.kube_api.cluster import Cluster

from .jobs_world import JobsWorld
from .teachers_world import NAME, SPEC, CoordinatorNumbers, Operator


@pytest.fixture
def world(cluster: Cluster) -> JobsWorld:
    return JobsWorld(cluster)


def test_two_jobs_under_pressure(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="2")
    world.cluster.node("m2", cpu="2")
    world.submit("first", 1, 4)
    world.rest()
    assert world.nodes("first") == [1, 2, 3, 4]
    status = world.status("first")
    assert (status["state"], status["nodes"], status["ready"]) == ("running", 4, 4)
    assert status["selector"] == f"{JOB_LABEL}=first"
    assert status["observedGeneration"] == 1
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Ready": "True",
        "Progressing": "False",
        "Degraded": "False",
    }
    world.submit("second", 2, 4)
    world.turn()
    assert world.nodes("first") == [1, 2]
    assert world.status("first")["reason"] == "gives 2 nodes to make room for second"
    assert world.status("second")["reason"] == "waits for nodes that are leaving to make room"
    world.rest()
    assert world.nodes("second") == [1, 2]
    assert ("Scaled", "4 -> 2 nodes: gives 2 nodes to make room for second") in world.events(
        "first"
    )
    world.cluster.node("m3", cpu="2")
    world.rest()
    assert (len(world.nodes("first")), len(world.nodes("second"))) == (3, 3)
    world.submit("urgent", 2, 2, priority=10)
    world.rest()
    assert [len(world.nodes(name)) for name in ("first", "second", "urgent")] == [2, 2, 2]
    world.ask("urgent", stopped=True)
    world.rest()
    assert world.status("urgent")["state"] == "stopped"
    assert [len(world.nodes(name)) for name in ("first", "second")] == [3, 3]


def test_jobs_leave_room_for_other_pods_and_for_teachers(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 1, 9)
    world.rest()
    assert len(world.nodes("a")) == 4
    spec = {"containers": [{"name": "x", "image": "x", "resources": {"requests": {"cpu": "2"}}}]}
    labels = {"app.kubernetes.io/part-of": "edl-dist", "app.kubernetes.io/component": "teacher"}
    client = world.cluster.client
    client.create(POD, {"metadata": {"name": "stranger"}, "spec": spec})
    world.rest()
    assert len(world.nodes("a")) == 4, "what a stranger asks for in vain moves nobody"
    client.delete(POD, "stranger")
    client.create(POD, {"metadata": {"name": "teacher", "labels": labels}, "spec": spec})
    world.rest()
    assert len(world.nodes("a")) == 2
    assert client.get(POD, "teacher")["spec"]["nodeName"]
    client.delete(POD, "teacher", grace_s=0)
    world.rest()
    assert len(world.nodes("a")) == 4


def test_scaled_by_hand_as_kubectl_scale_does(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 2, 4)
    world.rest()
    scale = {"spec": {"replicas": 3}}
    world.cluster.client.patch(DISTILL_JOB, "a", scale, subresource="scale")
    world.rest()
    assert world.nodes("a") == [1, 2, 3]
    assert world.status("a")["observedGeneration"] == 2
    world.ask("a", nodes=1)
    world.rest()
    assert world.nodes("a") == [1, 2], "not below its fewest"
    world.ask("a", nodes=None)
    world.rest()
    assert world.nodes("a") == [1, 2, 5, 6]


def test_a_job_ends_well_and_its_pods_are_kept_to_be_read(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 1, 2)
    world.rest()
    world.cluster.end("a-1", 0)
    world.rest()
    assert world.nodes("a") == [2]
    world.cluster.end("a-2", 0)
    world.rest()
    status = world.status("a")
    assert (status["state"], status["nodes"], status["done"]) == ("succeeded", 0, True)
    assert status["endedAt"] >= status["startedAt"]
    assert len(world.pods("a")) == 2
    assert [word for word, _ in world.events("a")].count("Succeeded") == 1
    for pod in world.pods("a"):
        world.cluster.client.delete(POD, pod["metadata"]["name"])
    world.rest()
    assert world.status("a")["state"] == "succeeded"
    assert world.pods("a") == []


def test_a_failed_node_is_restarted_until_no_retries_are_left(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 1, 1, retries=1)
    world.rest()
    world.cluster.end("a-1", 7)
    world.turn(0.1)
    assert world.nodes("a") == []
    assert world.status("a")["reason"].startswith("a node is started again: node 1 ended with exit")
    world.rest()
    assert world.nodes("a") == [2]
    assert world.status("a")["failures"] == 1
    world.cluster.end("a-2", 7)
    world.rest()
    status = world.status("a")
    assert (status["state"], status["failures"]) == ("failed", 2)
    degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "Failed")
    assert [word for word, _ in world.events("a")].count("Failed") == 1


def test_a_training_that_can_never_work_fails_at_once(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 1, 2, train="job.py --epochs 3", retries=9)
    world.rest()
    world.cluster.end("a-2", 2)
    world.rest()
    assert world.status("a")["state"] == "failed"
    assert world.nodes("a") == []


def test_what_the_cluster_takes_away_is_replaced_and_counted_as_no_failure(
    world: JobsWorld,
) -> None:
    lost = world.cluster.node("m1", cpu="1")
    world.cluster.node("m2", cpu="2")
    world.cluster.node("m3", cpu="2")
    world.submit("a", 1, 4)
    world.rest()
    assert world.nodes("a") == [1, 2, 3, 4]
    world.cluster.client.delete(POD, "a-2")  # as an eviction does it
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    world.cluster.client.patch(POD, "a-3", {"status": evicted}, subresource="status")
    world.cluster.lose(lost)
    world.rest()
    assert len(world.nodes("a")) == 4
    assert world.nodes("a")[-1] >= 6
    status = world.status("a")
    assert (status["state"], status["failures"]) == ("running", 0)
    assert ("NodeLost", "node 3 was ended: Evicted: low on memory") in world.events("a")


def test_unschedulable_nodes_do_not_block_other_jobs(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="3")
    world.cluster.node("m2", cpu="3")  # 6 together, and room for one node of 2 on each
    world.submit("wide", 1, 3, cpu="2")
    world.turn()
    world.turn()
    assert len(world.nodes("wide")) == 3
    world.unplaced("wide-3", world.now)
    world.turn()
    assert "node 3 waits: 0/2 nodes are available" in world.status("wide")["reason"]
    world.rest()
    assert world.nodes("wide") == [1, 2, 3], "for a while it is waited for"
    world.now += 120
    world.rest()
    assert world.nodes("wide") == [1, 2]
    assert world.status("wide")["placeable"] == 2
    world.submit("small", 2, 2)
    world.rest()
    assert world.nodes("wide") == [1, 2]
    assert world.nodes("small") == [1, 2]
    assert "Unplaceable" in [word for word, _ in world.events("wide")]
    world.now += 300
    world.turn()
    assert "placeable" not in world.status("wide")


def test_a_job_recreated_under_its_name_gets_new_pods(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="9")
    world.submit("a", 1, 2)
    world.rest()
    world.cluster.client.delete(DISTILL_JOB, "a")
    world.submit("a", 1, 2)
    for _ in range(2):
        world.turn()
    own = world.cluster.client.get(DISTILL_JOB, "a")["metadata"]["uid"]
    world.cluster.collect_garbage()
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
    said = ""
    try:
        cluster.create(DISTILL_JOB, "a", {"image": "edl-dist", **spec})
    except ManifestRefused as error:
        said = str(error)
    if not said:  # servers before 1.25 know no rules
        assert cluster.server is None
        world = JobsWorld(cluster)
        world.turn()
        said = world.status("a")["reason"]
        says = "expects"
    assert says in said
    assert cluster.pods() == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"train": "job.py --nodes 3"}, "--nodes is what"),
        ({"command": "sh -c 'unbalanced"}, "No closing quotation"),
        ({"resources": {"requests": {"cpu": "1e999"}}}, "a pod cannot request inf cpu"),
        ({"podTemplate": {"spec": {"containers": {}}}}, "podTemplate is no template of a pod"),
        ({"podTemplate": {"spec": {"overhead": {"cpu": "-9"}}}}, "cannot request -8 cpu"),
    ],
)
def test_an_invalid_spec_is_reported_in_the_status_and_hinders_no_other_job(
    world: JobsWorld, spec: dict[str, Any], says: str
) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 1, 2, **spec)
    world.submit("b", 1, 2)
    world.rest()
    assert world.status("a")["state"] == "creating"
    assert says in world.status("a")["reason"]
    assert (world.nodes("a"), world.nodes("b")) == ([], [1, 2])
    valid = {"train": None, "command": "work", "podTemplate": None}
    world.ask("a", **valid, resources={"requests": {"cpu": "1"}})
    world.rest()
    assert world.nodes("a") == [1, 2]


def tainted_node(world: JobsWorld, cpu: str) -> list[dict[str, str]]:
    """Add a node that keeps pods away; returns the tolerations for it."""
    name = world.cluster.node("head", cpu=cpu)
    taint = {"key": "gpu", "effect": "NoSchedule"}
    world.cluster.client.patch(NODE, name, {"spec": {"taints": [taint]}})
    return [{"key": "gpu", "operator": "Exists"}]


def test_nodes_that_no_active_job_tolerates_are_not_counted(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="2")
    tolerations = tainted_node(world, cpu="8")
    world.submit("a", 1, 1, podTemplate={"spec": {"tolerations": tolerations}})
    world.rest()
    world.cluster.end("a-1", 0)
    world.rest()
    assert world.status("a")["state"] == "succeeded"
    world.submit("b", 1, 8)
    world.rest()
    assert len(world.nodes("b")) == 2
    world.ask("b", podTemplate={"spec": {"tolerations": tolerations}})
    world.rest()
    assert len(world.nodes("b")) == 8


def test_running_nodes_of_an_invalid_spec_keep_their_room(world: JobsWorld) -> None:
    world.cluster.node("m1", cpu="4")
    world.submit("a", 3, 3, train="job.py")
    world.rest()
    world.ask("a", train="job.py --nodes 3")
    world.submit("b", 1, 4)
    world.rest()
    assert "--nodes is what" in world.status("a")["reason"]
    assert len(world.nodes("a")) == 3
    assert len(world.nodes("b")) == 1
    world.submit("c", 3, 3, priority=9)
    world.rest()
    assert len(world.nodes("a")) == 3, "it is left alone, whoever wants its room"


def test_running_nodes_of_an_invalid_spec_stay_on_nodes_that_only_it_tolerates(
    world: JobsWorld,
) -> None:
    tolerations = tainted_node(world, cpu="4")
    world.submit("a", 3, 3, podTemplate={"spec": {"tolerations": tolerations}})
    world.rest()
    world.ask("a", podTemplate={"spec": {"containers": {}, "tolerations": tolerations}})
    world.rest()
    assert "podTemplate is no template" in world.status("a")["reason"]
    assert len(world.nodes("a")) == 3


URL = "redis://head:6379"


def test_a_training_tells_how_far_it_is() -> None:
    board = MemoryBoard()
    trainings = Trainings(lambda _: board)
    assert trainings.look(URL, "ctr", 1) == Progress(None, steady=False)
    board.join("ctr", "n1", {}, 10)
    assert board.lead("ctr", "n1", 10)
    assert board.publish("ctr", "n1", 1, {"nodes": ["n1"]})
    assert board.report("ctr", 1, 0, {"step": 30, "steps": 120})
    assert trainings.look(URL, "ctr", 1) == Progress(0.25, steady=True)
    assert trainings.look(URL, "ctr", 2) == Progress(0.25, steady=False)
    trainings.close()


def test_a_silent_redis_is_not_asked_again_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, now = [], [0.0]

    def opened(url: str) -> JobBoard:
        asked.append(url)
        raise RegistryUnavailable("Redis does not answer")

    trainings = Trainings(opened, lambda: now[0])
    with caplog.at_level(logging.WARNING):
        assert trainings.look(URL, "a", 1) == Progress()
        assert trainings.look(URL, "b", 1) == Progress()
        assert asked == [URL]
        now[0] = 31.0
        trainings.look(URL, "a", 1)
    assert len(asked) == 2
    assert len(caplog.records) == 1
    trainings.close()


def test_a_training_that_forms_its_world_or_is_nearly_done_does_not_grow(cluster: Cluster) -> None:
    world = JobsWorld(cluster, PodsConfig(ElasticConfig(freeze_s=0)))
    cluster.node("m1", cpu="1")
    world.trainings.progress = Progress(0.1, steady=False)
    world.submit("a", 1, 3, train="job.py")
    world.rest()
    cluster.node("m2", cpu="2")
    world.rest()
    assert world.nodes("a") == [1]
    assert world.status("a")["reason"] == "forms its world; it is not changed meanwhile"
    world.trainings.progress = Progress(0.97)
    world.rest()
    assert world.nodes("a") == [1]
    world.trainings.progress = Progress(0.5)
    world.rest()
    assert world.nodes("a") == [1, 2, 3]


class BothWorld(JobsWorld):
    """An operator's turns as its loop makes them: teachers first."""

    def __init__(self, cluster: Cluster, teachers: Operator) -> None:
        super().__init__(cluster)
        self.teachers = teachers

    def turn(self, seconds: float = 1.0) -> None:
        self.teachers.turn()
        super().turn(seconds)

    def ready(self) -> int:
        """Teachers that run."""
        status = self.cluster.client.get(DEPLOYMENT, NAME).get("status", {})
        return int(status.get("readyReplicas", 0))


def test_jobs_make_room_for_teachers_and_grow_when_these_go(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    said = CoordinatorNumbers(resnet101=0)
    world = BothWorld(cluster, Operator(cluster, said))
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "minReplicas": 0, "scaleToZero": True})
    world.submit("a", 1, 4)
    world.rest()
    assert len(world.nodes("a")) == 4
    said.numbers["resnet101"] = 2
    world.rest()
    assert (world.ready(), len(world.nodes("a"))) == (2, 2)
    said.numbers["resnet101"] = 8
    world.rest()
    assert world.ready() == 4
    assert world.nodes("a") == [], "below its fewest, if need be"
    assert world.status("a")["reason"].startswith("waits for online services to give back")
    said.numbers["resnet101"] = 1
    world.rest()
    assert (world.ready(), len(world.nodes("a"))) == (1, 3)
