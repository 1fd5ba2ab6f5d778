"""What a turn of DistillJobs reads of a cluster, and what of it is said each time."""

from __future__ import annotations

import logging

import pytest

from edl.deploy.operator.jobs import DistillJobs
from edl.errors import Forbidden
from edl.mesh.kubernetes.resources import DISTILL_JOB
from edl.tests.deploy.kube_api.cluster import Cluster

from .jobs_world import JobsWorld


def test_others_are_read_now_and_then_and_jobs_each_time(cluster: Cluster) -> None:
    world = JobsWorld(cluster)
    cluster.node("m1", cpu="1")
    world.submit("a", 1, 2)
    jobs = DistillJobs(cluster.client, world.config, world.pods_config, world.trainings, 5.0)
    jobs.turn(world.now)
    cluster.play()
    cluster.node("m2", cpu="1")
    jobs.turn(world.now + 4)
    assert world.nodes("a") == [1]
    assert world.status("a")["ready"] == 1
    jobs.turn(world.now + 5)
    assert world.nodes("a") == [1, 2]
    cluster.play()
    cluster.node("m3", cpu="1")
    world.ask("a", maxNodes=3)
    jobs.turn(world.now + 6)
    assert world.nodes("a") == [1, 2, 3], "what is asked anew is decided on a fresh look"
    jobs.close()


def test_without_a_job_nothing_else_is_looked_at(cluster: Cluster) -> None:
    world = JobsWorld(cluster)
    asked: list[str] = []

    def note(method: str, path: str) -> None:
        asked.append(path.rpartition("/")[2])

    with cluster.calling(note) as client:
        world.jobs = world.operator(client)
        world.turn()
        assert asked == ["distilljobs"]
        world.submit("a", 1, 1)
        world.turn()
        assert {"nodes", "pods"} <= set(asked)
        cluster.client.delete(DISTILL_JOB, "a")
        asked.clear()
        world.turn()
        assert asked == ["distilljobs"]
    cluster.collect_garbage()


def test_what_hinders_one_job_again_and_again_is_said_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    world = JobsWorld(cluster)
    world.submit("a", 1, 1)
    world.submit("b", 1, 1)
    troubles = ["no right", "no right", "a quota", "", "a quota", "a quota"]

    def refuse(method: str, path: str) -> None:
        if troubles[0] and path.endswith("/a/status"):
            raise Forbidden(troubles[0])

    with cluster.calling(refuse) as client, caplog.at_level(logging.WARNING):
        world.jobs = world.operator(client)
        while troubles:
            world.ask("a", priority=len(troubles))
            world.turn()
            del troubles[0]
    told = [one.getMessage() for one in caplog.records]
    assert told == ["job a: no right", "job a: a quota", "job a: a quota"]
    troubles = ["no right"]
    cluster.client.delete(DISTILL_JOB, "b")
    with cluster.calling(refuse) as client, pytest.raises(Forbidden):
        world.operator(client).turn(world.now)  # nothing went well: that is no good turn
