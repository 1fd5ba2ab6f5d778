"""The number that a coordinator tells over gRPC is the number of teachers that there are."""

from __future__ import annotations

from contextlib import closing

from edl.coordinator.manager.summary import ADMITTED
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.teachers import TeacherServices
from edl.deploy.operator.teachers.numbers import Numbers
from edl.mesh.kubernetes.resources import DEPLOYMENT, TEACHER_SERVICE
from edl.proto import coordinator_pb2 as pb
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.deploy.operator.teaching import NAME, SPEC, conditions
from edl.tests.ground.programs import wait_for


def _tell(mesh: Served, desired: int, *others: str) -> None:
    teachers = [pb.Teacher(teacher_id=one, admission=ADMITTED) for one in others]
    status = pb.ServiceStatus(name="resnet101", desired_teachers=desired, teachers=teachers)
    mesh.manager.mesh = pb.MeshStatus(services=[status])


def test_a_fleet_of_pods_follows_a_coordinator_and_its_silence(cluster: Cluster) -> None:
    cluster.node("m1", cpu="32", memory="64Gi")
    cluster.create(TEACHER_SERVICE, NAME, SPEC)

    def replicas() -> int:
        found = cluster.client.find(DEPLOYMENT, NAME)
        return -1 if found is None else int(found["spec"]["replicas"])

    with served() as mesh:
        numbers = Numbers()

        class Closing:
            close = staticmethod(numbers.stop)

        with closing(Closing()):
            config = OperatorConfig(cluster.namespace, mesh.url)
            operator = TeacherServices(cluster.client, config, numbers)

            def follows(expected: int) -> bool:
                operator.turn(1_900_000_000.0)
                return replicas() == expected

            _tell(mesh, 3)
            operator.turn(1_900_000_000.0)
            assert replicas() == 3  # of the first answer, not of a guess
            _tell(mesh, 5, "fleet-of-ours", "by-hand")
            wait_for(lambda: follows(4))
            mesh.retire()

            def silent() -> bool:
                operator.turn(1_900_000_000.0)
                service = cluster.client.get(TEACHER_SERVICE, NAME)
                return conditions(service)["ScalingActive"] == ("False", "NoNumber")

            wait_for(silent)
            assert replicas() == 4
            cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"replicas": 1}})
            operator.turn(1_900_000_000.0)
            assert replicas() == 1
