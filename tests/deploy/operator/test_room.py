"""How many teachers a cluster carries, of several services, beside others' pods."""

from __future__ import annotations

from edl.mesh.kubernetes.resources import POD, TEACHER_SERVICE, Object, labels_of
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.deploy.operator.teaching import NAME, SPEC, Operator, Said, conditions


def holder(cluster: Cluster, name: str, cpu: str, labels: dict[str, str]) -> None:
    """A pod of somebody."""
    container: Object = {"resources": {"requests": {"cpu": cpu}}, "name": "node", "image": "x"}
    meta = {"name": name, "labels": labels}
    cluster.client.create(POD, {"metadata": meta, "spec": {"containers": [container]}})


def desired(operator: Operator, *names: str) -> list[int]:
    return [operator.service(name)["status"]["desired"] for name in names]


def test_two_services_are_not_promised_the_same_room(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    operator = Operator(cluster, Said(one=3, two=3))
    for name in ("one", "two"):
        cluster.create(TEACHER_SERVICE, name, {**SPEC, "service": name})
    operator.turn()
    assert desired(operator, "one", "two") == [3, 1]
    operator.turn()  # no pod is there yet
    assert desired(operator, "one", "two") == [3, 1]
    two = operator.settle("two")
    assert (two["status"]["readyReplicas"], conditions(two)["ScalingActive"][1]) == (1, "NoRoom")
    operator.said.numbers["one"] = 1
    operator.settle("one")
    operator.settle("two")
    assert desired(operator, "one", "two") == [1, 3]


def test_nodes_of_elastic_jobs_leave_room_for_teachers(cluster: Cluster) -> None:
    cluster.node("m1", cpu="2")
    holder(cluster, "j-1", "2", labels_of("student", job="j", node="1"))
    cluster.play()
    operator = Operator(cluster, Said(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (2, 0)
    assert conditions(service)["Available"] == ("False", "NoneReady")


def test_students_that_no_operator_moves_keep_their_room(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    holder(cluster, "plain-job", "3", {"edl-dist.io/job": "plain"})
    cluster.play()
    operator = Operator(cluster, Said(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (1, 1)
    assert conditions(service)["ScalingActive"] == ("True", "NoRoom")
