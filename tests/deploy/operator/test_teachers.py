"""A TeacherService becomes teachers: as many as are desired, and again after whatever happens."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from edl.coordinator.manager.overview import ADMITTED
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.teachers.coordinator_counts import CoordinatorCounts
from edl.deploy.operator.teachers.reconciler import TeacherServiceReconciler
from edl.mesh.kubernetes.resources import DEPLOYMENT, POD, SERVICE, TEACHER_SERVICE, Object
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import ManifestRefused
from edl.scheduler.elastic_values import ElasticConfig
from edl.tests.coordinator.scripted_manager import served
from edl.tests.deploy import command_lines
from edl.tests.deploy.kube_api.cluster import Cluster
from edl.tests.waiting import wait_until

from .teachers_world import (
    NAME,
    SPEC,
    CoordinatorNumbers,
    Operator,
    conditions,
    deployment,
    serving,
)


def replicas(cluster: Cluster) -> int:
    return int(deployment(cluster)["spec"]["replicas"])


def test_a_service_becomes_a_deployment_that_a_cluster_takes(cluster: Cluster) -> None:
    operator = serving(cluster, 2, spot=True)
    service = operator.service()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (2, 2)
    assert service["status"]["observedGeneration"] == service["metadata"]["generation"]
    assert conditions(service) == {
        "Available": ("True", "AllReady"),
        "Progressing": ("False", "Settled"),
        "ScalingActive": ("True", "FollowsCoordinator"),
    }
    assert [reason for reason, _ in cluster.events()] == ["Scaled", "Ready"]
    for kind in (DEPLOYMENT, SERVICE):
        found = cluster.client.get(kind, NAME)
        owner = found["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (service["metadata"]["uid"], True)
        for version in ("1.30", "1.37"):
            kubernetes_validate.validate(found, version, strict=True)
    pod = deployment(cluster)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    variables = {one["name"]: one.get("value", "value") for one in container["env"]}
    ours = {name: value for name, value in variables.items() if name.startswith("EDL_")}
    values = command_lines.check(["edl", *container["args"]], ours)
    assert ours["EDL_COORDINATOR"] == "redis://head:6379"
    assert pod["terminationGracePeriodSeconds"] > values["grace"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"key": "spot", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert len(cluster.client.list(POD, service["status"]["selector"])) == 2
    asked: list[str] = []
    with cluster.calling(lambda method, _: asked.append(method)) as client:
        operator.reconcile(client)
    assert asked == ["GET"] * 3, "services, what was made of them; no look at machines"
    cluster.client.delete(TEACHER_SERVICE, NAME)
    cluster.collect_garbage()
    operator.reconcile()
    assert cluster.client.list(DEPLOYMENT) == cluster.client.list(SERVICE) == []


def test_a_hand_wins_over_the_number_until_it_lets_go(cluster: Cluster) -> None:
    operator = serving(cluster, 2)
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"replicas": 5}}, subresource="scale")
    service = operator.settle()
    assert (service["status"]["desired"], service["status"]["readyReplicas"]) == (5, 5)
    assert conditions(service)["ScalingActive"] == ("False", "ByHand")
    assert operator.said.asked == set()
    operator.ask(replicas=None)
    assert operator.settle()["status"]["readyReplicas"] == 2
    texts = [text for reason, text in cluster.events() if reason == "Scaled"]
    assert texts == ["2 teachers: 2 desired", "5 teachers instead of 2: by hand",
                     "2 teachers instead of 5: 2 desired"]  # fmt: skip


def test_the_coordinators_number_is_followed_within_bounds(cluster: Cluster) -> None:
    operator = serving(cluster, None, minReplicas=2, maxReplicas=4)
    assert operator.service()["status"]["desired"] == 2
    assert conditions(operator.service())["ScalingActive"] == ("False", "NoNumber")
    for number, expected in ((9, 4), (0, 0), (None, 0)):
        operator.said.numbers["resnet101"] = number
        service = operator.settle()
        assert service["status"]["desired"] == service["status"]["readyReplicas"] == expected
    assert operator.said.asked == {("redis://head:6379", "resnet101")}


def test_teachers_are_limited_by_the_room_of_the_cluster(cluster: Cluster) -> None:
    other: Object = {"resources": {"requests": {"cpu": "1500m"}}, "name": "x", "image": "x"}
    # Of another controller: a node of an elastic job would make room.
    meta = {"name": "other", "labels": {"edl-dist.io/job": "plain"}}
    cluster.client.create(POD, {"metadata": meta, "spec": {"containers": [other]}})
    cluster.node("m0", cpu="1500m")
    cluster.play()
    operator = serving(cluster, 6, cpu="2500m")
    service = operator.service()
    assert service["status"]["desired"] == service["status"]["readyReplicas"] == 2
    assert "room for 2" in service["status"]["reason"]
    assert conditions(service)["ScalingActive"] == ("True", "NoRoom")
    cluster.client.delete(POD, "other", grace_s=0)
    assert operator.settle()["status"]["desired"] == 4
    cluster.node("m2", cpu="4")
    careful = Operator(cluster, operator.said, elastic=ElasticConfig(max_load=0.5))
    assert careful.settle()["status"]["desired"] == 4, "running teachers stay"
    growing = Operator(cluster, operator.said, growing_cluster=True)
    growing.reconcile()
    assert growing.service()["status"]["desired"] == 6


def test_changes_by_others_are_reverted_but_their_own_fields_stay(cluster: Cluster) -> None:
    operator = serving(cluster, 2)
    was = deployment(cluster)["spec"]["template"]["spec"]["containers"]
    template = {"spec": {"containers": [*was, {"name": "sidecar", "image": "s"}]}}
    theirs = {"annotations": {"team": "vision"}}
    changes = {"metadata": theirs, "spec": {"replicas": 7, "template": template}}
    cluster.client.patch(DEPLOYMENT, NAME, changes)
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
    assert replicas(cluster) == 2


def test_a_changed_spec_is_applied_and_removed_fields_go(cluster: Cluster) -> None:
    mount = {"name": "models", "mountPath": "/models"}
    spec: Object = {
        "nodeSelector": {"gpu": "yes"},
        "volumes": [{"name": "models", "emptyDir": {}}],
        "containers": [{"name": "teacher", "volumeMounts": [mount]}],
    }
    template = {"metadata": {"annotations": {"a": "1"}}, "spec": spec}
    operator = serving(cluster, 1, env={"A": "1"}, podTemplate=template)

    def made() -> tuple[Object, list[str], list[str]]:
        spec: Object = deployment(cluster)["spec"]["template"]["spec"]
        volumes = [one["name"] for one in spec["volumes"]]
        mounts = [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]]
        return spec, volumes, mounts

    spec, volumes, mounts = made()
    assert spec["nodeSelector"] == {"gpu": "yes"}
    assert volumes == ["tmp", "state", "models"]
    assert mounts == ["/tmp", "/var/lib/edl", "/models"]
    assert deployment(cluster)["spec"]["template"]["metadata"]["annotations"]["a"] == "1"
    operator.ask(env=None, podTemplate=None, image="edl-dist:2")
    operator.reconcile()
    spec, volumes, mounts = made()
    assert "nodeSelector" not in spec
    assert (volumes, mounts) == (["tmp", "state"], ["/tmp", "/var/lib/edl"])
    container = spec["containers"][0]
    assert container["image"] == "edl-dist:2"
    assert "A" not in {one["name"] for one in container["env"]}
    assert operator.service()["status"]["observedGeneration"] == 2


def test_a_change_is_progressing_until_its_rollout_is_complete(cluster: Cluster) -> None:
    operator = serving(cluster, 2)

    def progress(**status: int) -> tuple[str, str]:
        if status:
            cluster.patch_status(DEPLOYMENT, NAME, **status)
        operator.reconcile()
        return conditions(operator.service())["Progressing"]

    assert progress() == ("False", "Settled")
    operator.ask(image="edl-dist:2")
    assert progress() == ("True", "Updating")
    assert progress() == ("True", "Updating"), "its controller has not looked yet"
    rolling = {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2}
    seen = deployment(cluster)["metadata"]["generation"]
    assert progress(observedGeneration=seen, **rolling) == ("True", "Starting")
    assert progress(updatedReplicas=2) == ("True", "Leaving")
    assert conditions(operator.settle())["Progressing"] == ("False", "Settled")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"args": []}, "callers are not authenticated"),
        ({"args": ["--tls=cert=/c,key=/k"]}, "callers are not authenticated"),
        ({"args": ["--tls=cert=/c,key=/k,ca=/ca"]}, "--insecure concerns only metrics and health"),
        ({"args": ["--insecure", "--listen=1"]}, "spec.args: --listen is set by the operator"),
        ({"args": ["--coordinator=redis://x"]}, "spec.args: --coordinator is set by the operator"),
        ({"resources": {"requests": {"cpu": "much"}}}, "spec.resources.requests.cpu"),
        ({"podTemplate": {"spec": {"containers": {}}}}, "containers: expects a list"),
        ({"podTemplate": {"spec": {"overhead": "x"}}}, "podTemplate is not a valid pod template"),
        ({"podTemplate": {"spec": {"overhead": {"cpu": "-9"}}}}, "cannot request -8 cpu"),
    ],
)
def test_an_invalid_spec_is_reported_and_running_teachers_stay(
    cluster: Cluster, changes: Object, words: str
) -> None:
    operator = serving(cluster, 1)
    running = deployment(cluster)["spec"]
    operator.ask(**changes)
    told = {one["type"]: one for one in operator.settle()["status"]["conditions"]}
    assert told["InvalidSpec"]["status"] == "True"
    assert words in told["InvalidSpec"]["message"]
    assert told["Available"]["status"] == "True"
    assert ("InvalidSpec", told["InvalidSpec"]["message"]) in cluster.events()
    assert deployment(cluster)["spec"] == running
    operator.ask(args=["--insecure"], resources=SPEC["resources"], podTemplate=None)
    assert "InvalidSpec" not in conditions(operator.settle())


@pytest.mark.parametrize(
    "args", [["--tls=ca=/ca,cert=/c,key=/k", "--insecure"], ["--tokens", "/t"]]
)
def test_credentials_are_seen_in_the_arguments(cluster: Cluster, args: list[str]) -> None:
    operator = serving(cluster, 1)
    operator.ask(args=args)
    assert "InvalidSpec" not in conditions(operator.settle())


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        (NAME, {"minReplicas": 5, "maxReplicas": 4}, r"maxReplicas: expects spec\.minReplicas"),
        ("0.dotted", {}, "a Service and pods are named after it"),
    ],
)
def test_rules_between_fields(
    cluster: Cluster, name: str, spec: dict[str, Any], words: str
) -> None:
    if not cluster.knows_rules:
        pytest.skip("a server before 1.25")
    with pytest.raises(ManifestRefused, match=words):
        cluster.create(TEACHER_SERVICE, name, {**SPEC, **spec})


def test_a_deployment_of_somebody_else_is_not_changed(cluster: Cluster) -> None:
    template = {"metadata": {"labels": {"a": "1"}},
                "spec": {"containers": [{"name": "x", "image": "x"}]}}  # fmt: skip
    selector = {"matchLabels": {"a": "1"}}
    theirs = {"replicas": 3, "selector": selector, "template": template}
    cluster.create(DEPLOYMENT, NAME, theirs)
    operator = serving(cluster, 1, cpu="4")
    found = deployment(cluster)
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (3, 1)
    (message,) = (text for reason, text in cluster.events() if reason == "InvalidSpec")
    assert "not this service's" in message
    cluster.client.delete(DEPLOYMENT, NAME)
    operator.settle()
    assert replicas(cluster) == 1


def test_two_services_are_not_promised_the_same_room(cluster: Cluster) -> None:
    cluster.node("m1", cpu="4")
    operator = Operator(cluster, CoordinatorNumbers(one=3, two=3))
    for name in ("one", "two"):
        cluster.create(TEACHER_SERVICE, name, {**SPEC, "service": name})

    def desired() -> list[int]:
        return [operator.service(name)["status"]["desired"] for name in ("one", "two")]

    for _ in range(2):  # no pod is there yet
        operator.reconcile()
        assert desired() == [3, 1]
    assert conditions(operator.settle("two"))["ScalingActive"] == ("True", "NoRoom")
    operator.said.numbers["one"] = 1
    operator.settle("one")
    operator.settle("two")
    assert desired() == [1, 3]


def test_a_fleet_of_pods_follows_a_coordinator_and_its_silence(cluster: Cluster) -> None:
    cluster.node("m1", cpu="32", memory="64Gi")
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    with served() as mesh:
        numbers = CoordinatorCounts()
        config = OperatorConfig(cluster.namespace, mesh.url)
        operator = TeacherServiceReconciler(cluster.client, config, numbers)

        def tell(desired: int, *others: str) -> None:
            teachers = [pb.Teacher(teacher_id=one, admission=ADMITTED) for one in others]
            status = pb.ServiceStatus(name="resnet101", desired_teachers=desired, teachers=teachers)
            mesh.manager.mesh = pb.MeshStatus(services=[status])

        def follows(expected: int) -> bool:
            operator.reconcile(1_900_000_000.0)
            return replicas(cluster) == expected

        def silent() -> bool:
            operator.reconcile(1_900_000_000.0)
            service = cluster.client.get(TEACHER_SERVICE, NAME)
            return conditions(service)["ScalingActive"] == ("False", "NoNumber")

        try:
            tell(3)
            assert follows(3), "the first answer counts, not a guess"
            tell(5, "fleet-of-ours", "by-hand")
            wait_until(lambda: follows(4))
            mesh.retire()
            wait_until(silent)
            assert replicas(cluster) == 4
            cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"replicas": 1}})
            assert follows(1)
        finally:
            numbers.stop()
