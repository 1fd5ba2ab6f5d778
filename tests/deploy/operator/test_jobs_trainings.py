"""How far trainings are, of a Redis that answers or does not; what follows for their nodes."""

from __future__ import annotations

import logging

import pytest

from edl.coordinator.jobs import JobBoard
from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.deploy.operator.jobs.trainings import Trainings
from edl.errors import RegistryUnavailable
from edl.scheduler.elastic import ElasticConfig
from edl.scheduler.job_pods import PodsConfig, Progress
from edl.tests.deploy.kube_api.cluster import Cluster

from .jobs_world import JobsWorld

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


def test_a_redis_that_is_silent_is_left_alone_for_a_while(
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
