"""DistillJobs and TeacherServices of one cluster: jobs get out of the teachers' way."""

from __future__ import annotations

from edl.mesh.kubernetes.resources import DEPLOYMENT, TEACHER_SERVICE
from edl.tests.deploy.kube_api.cluster import Cluster

from .jobs_world import JobsWorld
from .teaching import NAME, SPEC, Operator, Said


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
    said = Said(resnet101=0)
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
