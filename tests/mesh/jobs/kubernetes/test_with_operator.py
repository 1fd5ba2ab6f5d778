"""`edl job` and the operator's own turns on one API server: what is asked is done, and shown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.turning import DistillJobs
from edl.mesh.jobs.cli import app
from edl.mesh.kubernetes.resources import POD
from edl.scheduler.elastic import ElasticConfig
from edl.tests.deploy.kube_api.cluster import Cluster, cluster_in


class World:
    """A cluster with two cores, an operator, and whoever calls `edl job`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        cluster.node("m", cpu="2")
        config = OperatorConfig(cluster.namespace, elastic=ElasticConfig(freeze_s=0.0))
        self._operator = DistillJobs(cluster.client, config)
        self._now = time.time()

    def edl(self, *words: object) -> str:
        where = ("--on", f"kubernetes:{self.cluster.namespace}")
        argv = [*words, *where, "--kubeconfig", self.cluster.kubeconfig]
        result = CliRunner().invoke(app, list(map(str, argv)), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def submit(self, name: str, nodes: int) -> None:
        file = self._folder / f"{name}.yaml"
        file.write_text(
            f"name: {name}\ncommand: work\nimage: x:1\nmax_nodes: {nodes}\nresources: {{cpu: 1}}\n"
        )
        self.edl("submit", file)

    def passes(self) -> None:
        """Time passes: whoever has something to do does it."""
        for _ in range(4):
            self._now += 40.0
            self._operator.turn(self._now)
            self.cluster.play()

    def jobs(self) -> dict[str, tuple[str, int]]:
        listed: list[dict[str, Any]] = json.loads(self.edl("list", "--json"))["jobs"]
        return {one["name"]: (one["state"], one["running"]) for one in listed}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with cluster_in(tmp_path) as cluster:
        yield World(cluster, tmp_path)


def test_two_jobs_share_a_cluster_as_they_share_a_fleet(world: World) -> None:
    world.submit("both", 2)
    world.passes()
    assert world.jobs() == {"both": ("running", 2)}
    world.submit("one", 1)
    world.passes()
    assert world.jobs() == {"both": ("running", 1), "one": ("running", 1)}
    events = world.edl("events")
    assert "one: was submitted" in events
    assert "both: " in events.replace("both: was submitted", "")

    assert "is to stop" in world.edl("stop", "one")
    world.passes()
    assert world.jobs() == {"both": ("running", 2), "one": ("stopped", 0)}
    world.edl("scale", "both", 1)
    world.passes()
    assert world.jobs()["both"] == ("running", 1)
    world.edl("scale", "both", "auto")
    world.passes()
    assert world.jobs()["both"] == ("running", 2)
    for pod in world.cluster.client.list(POD):
        world.cluster.end(pod["metadata"]["name"], 0)
    world.passes()
    assert world.jobs()["both"] == ("succeeded", 0)

    world.submit("both", 1)  # and again under the same name
    world.passes()
    assert world.jobs()["both"] == ("running", 1)
