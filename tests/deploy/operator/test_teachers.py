"""A TeacherService becomes teachers: as many as are desired, and again after whatever happens."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from edl.coordinator.manager.summary import ADMITTED
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.teachers import TeacherServices
from edl.deploy.operator.teachers.numbers import Numbers
from edl.errors import ManifestRefused
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    POD,
    SERVICE,
    TEACHER_SERVICE,
    Object,
    labels_of,
)
from edl.proto import coordinator_pb2 as pb
from edl.scheduler.elastic import ElasticConfig
from edl.tests.coordinator.scripted_manager import Served, served
from edl.tests.deploy import command_lines
from edl.tests.deploy.kube_api.cluster import Cluster, definitions
from edl.tests.deploy.operator.teachers_world import (
    NAME,
    SPEC,
    CoordinatorNumbers,
    Operator,
    conditions,
    deployment,
    events,
)
from edl.tests.waiting import wait_until


def test_a_service_becomes_a_deployment_that_a_cluster_takes(cluster: Cluster) -> None:
    cluster.node("m1")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    made = cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "spot": True})
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (2, 2)
    assert service["status"]["observedGeneration"] == made["metadata"]["generation"]
    assert conditions(service) == {
        "Available": ("True", "AllReady"),
        "Progressing": ("False", "Settled"),
        "ScalingActive": ("True", "FollowsCoordinator"),
    }
    assert [reason for reason, _ in events(cluster)] == ["Scaled", "Ready"]
    for kind in (DEPLOYMENT, SERVICE):
        found = cluster.client.get(kind, NAME)
        owner = found["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        for version in ("1.30", "1.37"):
            kubernetes_validate.validate(found, version, strict=True)
    pod = deployment(cluster)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    variables = {one["name"]: one.get("value", "value") for one in container["env"]}
    command_lines.check(
        ["edl", *container["args"]],
        {name: value for name, value in variables.items() if name.startswith("EDL_")},
    )
    assert variables["EDL_COORDINATOR"] == "redis://head:6379"
    assert pod["terminationGracePeriodSeconds"] > SPEC.get("graceSeconds", 30)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"key": "spot", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    selector = service["status"]["selector"]
    assert len(cluster.client.list(POD, selector)) == 2
    cluster.client.delete(TEACHER_SERVICE, NAME)
    cluster.collect_garbage()
    operator.turn()
    assert cluster.client.list(DEPLOYMENT) == cluster.client.list(SERVICE) == []


def test_nothing_is_written_while_nothing_changes(cluster: Cluster) -> None:
    cluster.node("m1")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    operator.settle()
    seen: list[str] = []
    with cluster.calling(lambda method, _: seen.append(method)) as client:
        operator.turn(client)
        operator.turn(client)
    assert set(seen) == {"GET"}
    assert len(seen) == 6  # services, what was made of them; no look at machines


def test_a_hand_wins_over_the_number_until_it_lets_go(cluster: Cluster) -> None:
    cluster.node("m1", cpu="16", memory="64Gi")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    operator.settle()
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"replicas": 5}}, subresource="scale")
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (5, 5)
    assert conditions(service)["ScalingActive"] == ("False", "ByHand")
    assert operator.said.asked == set()
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"replicas": None}})
    assert operator.settle()["status"]["readyReplicas"] == 2
    texts = [text for reason, text in events(cluster) if reason == "Scaled"]
    assert texts == ["2 teachers: 2 desired", "5 teachers, not 2: by hand",
                     "2 teachers, not 5: 2 desired"]  # fmt: skip


def test_the_coordinators_number_is_followed_within_bounds(cluster: Cluster) -> None:
    cluster.node("m1", cpu="16", memory="64Gi")
    said = CoordinatorNumbers()
    operator = Operator(cluster, said)
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "minReplicas": 2, "maxReplicas": 4})
    assert operator.settle()["status"]["desired"] == 2
    assert conditions(operator.service())["ScalingActive"] == ("False", "NoNumber")
    for number, expected in ((3, 3), (9, 4), (1, 2), (0, 0), (None, 0), (4, 4), (None, 4)):
        said.numbers["resnet101"] = number
        service = operator.settle()
        assert service["status"]["desired"] == service["status"]["readyReplicas"] == expected
    assert conditions(service)["ScalingActive"] == ("False", "NoNumber")
    said.numbers["resnet101"] = 0
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"scaleToZero": False}})
    assert operator.settle()["status"]["desired"] == 2
    assert operator.said.asked == {("redis://head:6379", "resnet101")}


def test_teachers_are_limited_by_the_room_of_the_cluster(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    other: Object = {"resources": {"requests": {"cpu": "1500m"}}, "name": "x", "image": "x"}
    cluster.create(POD, "other", {"containers": [other]})
    cluster.play()
    said = CoordinatorNumbers(resnet101=6)
    operator = Operator(cluster, said)
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    service = operator.settle()
    assert service["status"]["desired"] == service["status"]["readyReplicas"] == 2
    assert "room for 2" in service["status"]["reason"]
    assert conditions(service)["ScalingActive"] == ("True", "NoRoom")
    cluster.client.delete(POD, "other", grace_s=0)
    assert operator.settle()["status"]["desired"] == 4
    careful = Operator(cluster, said, elastic=ElasticConfig(max_load=0.5))
    assert careful.settle()["status"]["desired"] == 4  # what there is stays
    cluster.node("m2", cpu="4")
    assert careful.settle()["status"]["desired"] == 4
    growing = Operator(cluster, said, growing_cluster=True)
    growing.turn()
    assert growing.service()["status"]["desired"] == 6


def test_changes_by_others_are_reverted_but_their_own_fields_stay(cluster: Cluster) -> None:
    cluster.node("m1", cpu="16", memory="64Gi")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    operator.settle()
    was = deployment(cluster)["spec"]
    theirs = {"metadata": {"annotations": {"team": "vision"}}}
    sidecar = [*was["template"]["spec"]["containers"], {"name": "sidecar", "image": "s"}]
    cluster.client.patch(
        DEPLOYMENT,
        NAME,
        {**theirs, "spec": {"replicas": 7, "template": {"spec": {"containers": sidecar}}}},
    )
    cluster.client.patch(SERVICE, NAME, {"spec": {"selector": {"app": "wrong"}}})
    operator.settle()
    found = deployment(cluster)
    assert found["spec"]["replicas"] == 2
    assert found["metadata"]["annotations"]["team"] == "vision"
    names = [one["name"] for one in found["spec"]["template"]["spec"]["containers"]]
    assert names == ["teacher", "sidecar"]
    assert "app.kubernetes.io/instance" in cluster.client.get(SERVICE, NAME)["spec"]["selector"]
    cluster.client.delete(DEPLOYMENT, NAME)
    operator.settle()
    assert deployment(cluster)["spec"]["replicas"] == 2


def test_a_changed_spec_is_applied_and_removed_fields_go(cluster: Cluster) -> None:
    cluster.node("m1")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1))
    extras: Object = {
        "metadata": {"annotations": {"a": "1"}},
        "spec": {
            "nodeSelector": {"gpu": "yes"},
            "volumes": [{"name": "models", "emptyDir": {}}],
            "containers": [
                {"name": "teacher", "volumeMounts": [{"name": "models", "mountPath": "/models"}]}
            ],
        },
    }
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "env": {"A": "1"}, "podTemplate": extras})
    operator.turn()
    spec = deployment(cluster)["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"gpu": "yes"}
    assert [one["name"] for one in spec["volumes"]] == ["tmp", "state", "models"]
    assert len(spec["containers"][0]["volumeMounts"]) == 3
    changes = {"env": None, "podTemplate": None, "image": "edl-dist:2"}
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": changes})
    operator.turn()
    spec = deployment(cluster)["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert [one["name"] for one in spec["volumes"]] == ["tmp", "state"]
    container = spec["containers"][0]
    assert container["image"] == "edl-dist:2"
    assert "A" not in {one["name"] for one in container["env"]}
    assert operator.service()["status"]["observedGeneration"] == 2


def test_a_change_is_progressing_until_its_rollout_is_complete(cluster: Cluster) -> None:
    cluster.node("m1", cpu="16", memory="64Gi")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)

    def progress() -> tuple[str, str]:
        operator.turn()
        return conditions(operator.service())["Progressing"]

    assert conditions(operator.settle())["Progressing"] == ("False", "Settled")
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"image": "edl-dist:2"}})
    assert progress() == ("True", "Updating")
    assert progress() == ("True", "Updating"), "its controller has not looked yet"
    found = deployment(cluster)["metadata"]["generation"]
    rolling = {"observedGeneration": found, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 2}
    cluster.client.patch(DEPLOYMENT, NAME, {"status": rolling}, subresource="status")
    assert progress() == ("True", "Starting"), "one of this spec is there beside the former two"
    rolling |= {"updatedReplicas": 2}
    cluster.client.patch(DEPLOYMENT, NAME, {"status": rolling}, subresource="status")
    assert progress() == ("True", "Leaving")
    assert conditions(operator.settle())["Progressing"] == ("False", "Settled")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"args": []}, "nothing asks who calls"),
        ({"args": ["--insecure", "--port=1"]}, "spec.args: --port is said by the operator"),
        ({"resources": {"requests": {"cpu": "much"}}}, "spec.resources.requests.cpu"),
        ({"podTemplate": {"spec": {"containers": "none"}}}, "spec.podTemplate"),
        ({"podTemplate": {"spec": {"containers": {}}}}, "containers: expects a list"),
        (
            {"podTemplate": {"spec": {"initContainers": {"name": "x"}}}},
            "podTemplate is no template",
        ),
        ({"podTemplate": {"spec": {"overhead": "x"}}}, "podTemplate is no template"),
        ({"podTemplate": {"spec": {"overhead": {"cpu": "-9"}}}}, "cannot request -8 cpu"),
    ],
)
def test_an_invalid_spec_is_reported_and_running_teachers_stay(
    cluster: Cluster, changes: Object, words: str
) -> None:
    cluster.node("m1")
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    operator.settle()
    running = deployment(cluster)["spec"]
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": changes})
    service = operator.settle()
    told = {one["type"]: one for one in service["status"]["conditions"]}
    assert told["InvalidSpec"]["status"] == "True"
    assert words in told["InvalidSpec"]["message"]
    assert told["Available"]["status"] == "True"
    assert ("InvalidSpec", told["InvalidSpec"]["message"]) in events(cluster)
    assert deployment(cluster)["spec"] == running
    back = {"args": ["--insecure"], "resources": SPEC["resources"], "podTemplate": None}
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": back})
    assert "InvalidSpec" not in conditions(operator.settle())


def test_rules_between_fields(cluster: Cluster) -> None:
    wrong = {**SPEC, "minReplicas": 5, "maxReplicas": 4}
    if cluster.knows_rules:
        with pytest.raises(ManifestRefused, match=r"maxReplicas: expects spec\.minReplicas"):
            cluster.create(TEACHER_SERVICE, NAME, wrong)
        with pytest.raises(ManifestRefused, match="a Service and pods are called so"):
            cluster.create(TEACHER_SERVICE, "0.dotted", SPEC)
    else:
        cluster.create(TEACHER_SERVICE, NAME, wrong)
        operator = Operator(cluster, CoordinatorNumbers())
        operator.turn()
        assert conditions(operator.service())["InvalidSpec"] == ("True", "InvalidSpec")


def test_a_deployment_of_somebody_else_is_not_changed(cluster: Cluster) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1))
    theirs: Object = {
        "replicas": 3,
        "selector": {"matchLabels": {"a": "1"}},
        "template": {
            "metadata": {"labels": {"a": "1"}},
            "spec": {"containers": [{"name": "x", "image": "x"}]},
        },
    }
    cluster.create(DEPLOYMENT, NAME, theirs)
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    for _ in range(3):
        operator.turn()
    found = deployment(cluster)
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (3, 1)
    messages = [text for reason, text in events(cluster) if reason == "InvalidSpec"]
    assert len(messages) == 1
    assert "not this service's" in messages[0]
    cluster.client.delete(DEPLOYMENT, NAME)
    operator.turn()
    assert deployment(cluster)["spec"]["replicas"] == 0  # there is no machine


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("which", ["page", "example"])
def test_the_examples_become_teachers(cluster: Cluster, which: str) -> None:
    example = (ROOT / "deploy" / "kubernetes" / "examples" / "teacherservice.yaml").read_text()
    page = (ROOT / "docs" / "operator.md").read_text()
    shown = re.findall(r"```yaml\n(apiVersion: edl.*?)```", page, re.S)[0]
    resource = yaml.safe_load(shown if which == "page" else example)
    assert resource["kind"] == "TeacherService"
    name = resource["metadata"]["name"]
    known = definitions()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(resource["spec"]) <= set(known["properties"]["spec"]["properties"])
    cluster.create(TEACHER_SERVICE, name, resource["spec"])
    cluster.node("m1", cpu="8", memory="64Gi")
    operator = Operator(cluster, CoordinatorNumbers(**{name: 1}))
    operator.turn()
    assert "InvalidSpec" not in conditions(operator.service(name))
    made = cluster.client.get(DEPLOYMENT, name)
    kubernetes_validate.validate(made, "1.30", strict=True)
    pod = made["spec"]["template"]["spec"]
    mounted = [one["name"] for one in pod["containers"][0]["volumeMounts"]]
    assert set(mounted) <= {one["name"] for one in pod["volumes"]}
    assert "models" in mounted


def holder(cluster: Cluster, name: str, cpu: str, labels: dict[str, str]) -> None:
    """A pod of somebody."""
    container: Object = {"resources": {"requests": {"cpu": cpu}}, "name": "node", "image": "x"}
    meta = {"name": name, "labels": labels}
    cluster.client.create(POD, {"metadata": meta, "spec": {"containers": [container]}})


def desired(operator: Operator, *names: str) -> list[int]:
    return [operator.service(name)["status"]["desired"] for name in names]


def test_two_services_are_not_promised_the_same_room(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    operator = Operator(cluster, CoordinatorNumbers(one=3, two=3))
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
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (2, 0)
    assert conditions(service)["Available"] == ("False", "NoneReady")


def test_pods_of_other_controllers_keep_their_room(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    holder(cluster, "plain-job", "3", {"edl-dist.io/job": "plain"})
    cluster.play()
    operator = Operator(cluster, CoordinatorNumbers(resnet101=2))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (1, 1)
    assert conditions(service)["ScalingActive"] == ("True", "NoRoom")


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
        with ExitStack() as undo:
            undo.callback(numbers.stop)
            config = OperatorConfig(cluster.namespace, mesh.url)
            operator = TeacherServices(cluster.client, config, numbers)

            def follows(expected: int) -> bool:
                operator.turn(1_900_000_000.0)
                return replicas() == expected

            _tell(mesh, 3)
            operator.turn(1_900_000_000.0)
            assert replicas() == 3  # of the first answer, not of a guess
            _tell(mesh, 5, "fleet-of-ours", "by-hand")
            wait_until(lambda: follows(4))
            mesh.retire()

            def silent() -> bool:
                operator.turn(1_900_000_000.0)
                service = cluster.client.get(TEACHER_SERVICE, NAME)
                return conditions(service)["ScalingActive"] == ("False", "NoNumber")

            wait_until(silent)
            assert replicas() == 4
            cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"replicas": 1}})
            operator.turn(1_900_000_000.0)
            assert replicas() == 1
