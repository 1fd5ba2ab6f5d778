"""Teachers of a TeacherService come to the same end after whatever happens to the operator."""

from __future__ import annotations

import itertools
import logging
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given

from edl.deploy.operator.capacity import checked_requests_of
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.teachers import TeacherServices
from edl.deploy.operator.teachers.manifests import deployment_of, pod_spec_of, service_manifest_of
from edl.deploy.operator.templates import covers, marked
from edl.errors import Forbidden, ManifestRefused, ObjectChanged, UsageError
from edl.mesh.kubernetes.resources import (
    DEPLOYMENT,
    TEACHER_SERVICE,
    Object,
)
from edl.tests.deploy.kube_api.cluster import Cluster, Killed
from edl.tests.deploy.operator.jobs_world import refusing
from edl.tests.deploy.operator.teachers_world import (
    JUNK,
    NAME,
    POD_SPECS,
    SPEC,
    CoordinatorNumbers,
    Operator,
    conditions,
    deployment,
    events,
    state,
)


# Dead after a call is dead before the next one, as far as the cluster can tell.
@pytest.mark.system
@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_killed_between_any_two_calls_it_comes_to_the_same_end(
    cluster: Cluster, after: bool
) -> None:
    cluster.node("m1", cpu="16", memory="64Gi")
    said = CoordinatorNumbers(resnet101=2)

    def story(operator: Operator, name: str, kill_at: int, after: bool) -> bool:
        """Created, scaled by its number, by hand, refused: at each a turn; whether one died."""
        died = False
        cluster.create(TEACHER_SERVICE, name, SPEC)
        with cluster.mortal(kill_at, after=after) as client:
            for change, number in (
                ({}, 2), ({"replicas": 1}, 4), ({"args": []}, 4),
                ({"args": ["--insecure"], "replicas": None}, 3),
            ):  # fmt: skip
                said.numbers["resnet101"] = number
                if change:
                    cluster.client.patch(TEACHER_SERVICE, name, {"spec": change})
                try:
                    if not died:
                        operator.turn(client)
                except Killed:
                    died = True
                if died:
                    operator.turn()  # the next process
        return died

    def end(kill_at: int) -> tuple[bool, Object]:
        operator = Operator(cluster, said)
        died = story(operator, NAME, kill_at, after)
        operator.settle()
        found = state(cluster)
        cluster.client.delete(TEACHER_SERVICE, NAME)
        cluster.collect_garbage()
        cluster.play()
        return died, found

    _, expected = end(10_000)
    assert expected["status"]["desired"] == 3
    assert expected["pods"] == ["Running"] * 3
    for calls in itertools.count():
        died, found = end(calls)
        assert found == expected, f"killed at call {calls}"
        if not died:
            break
    assert calls > 20


def test_a_quota_is_reported_and_does_not_block_other_services(cluster: Cluster) -> None:
    hook = refusing("PATCH", f"/deployments/{NAME}", Forbidden("exceeded quota"))
    cluster.node("m1", cpu="4")  # no more than the first of them wants
    operator = Operator(cluster, CoordinatorNumbers(resnet101=4, other=1))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    cluster.create(TEACHER_SERVICE, "xother", {**SPEC, "service": "other"})
    with cluster.calling(hook) as client:
        operator.turn(client)
    assert "exceeded quota" in operator.service()["status"]["reason"]
    assert cluster.client.get(DEPLOYMENT, "xother")["spec"]["replicas"] == 1
    operator.turn()
    assert "InvalidSpec" not in conditions(operator.service())
    assert deployment(cluster)["spec"]["replicas"] == 4


def test_a_former_leader_does_not_overwrite_its_successor(
    cluster: Cluster,
) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1), growing_cluster=True)
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    operator.turn()
    slept: list[str] = []

    def hook(method: str, path: str) -> None:
        if path.endswith("/status") and not slept:  # its successor works meanwhile
            slept.append(path)
            operator.said.numbers["resnet101"] = 4
            operator.turn()

    operator.said.numbers["resnet101"] = 2
    with cluster.calling(hook) as client:
        operator.turn(client)
    assert slept
    assert operator.service()["status"]["desired"] == 4
    assert deployment(cluster)["spec"]["replicas"] == 4


def test_no_event_is_sent_for_a_status_that_was_not_written(cluster: Cluster) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1), growing_cluster=True)
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    hook = refusing("PATCH", "/status", ObjectChanged("it has been changed"))
    with cluster.calling(hook) as client:
        operator.turn(client)
    assert events(cluster) == []
    operator.turn()
    assert [reason for reason, _ in events(cluster)] == ["Scaled"]


def test_a_repeated_error_of_a_service_is_logged_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1, other=1))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    cluster.create(TEACHER_SERVICE, "xother", {**SPEC, "service": "other"})

    def refuse(method: str, path: str) -> None:
        if path.endswith(f"/{NAME}/status"):
            raise ManifestRefused("its status is none")
        if path.endswith("/nodes"):
            raise Forbidden("nodes is forbidden")

    with cluster.calling(refuse) as client, caplog.at_level(logging.WARNING):
        services = TeacherServices(client, operator.config, operator.said)
        for now in range(3):
            operator.said.numbers["resnet101"] = now + 1
            operator.said.numbers["other"] = now + 1
            services.turn(operator.now + now)
    assert [one.getMessage() for one in caplog.records] == [
        "how much room there is may not be known: nodes is forbidden",
        f"service {NAME}: its status is none",
    ]
    assert cluster.client.get(DEPLOYMENT, "xother")["spec"]["replicas"] == 3


def test_a_service_that_never_was_valid_is_not_available(cluster: Cluster) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=0), growing_cluster=True)
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "args": []})
    operator.turn()
    assert conditions(operator.service())["Available"] == ("False", "InvalidSpec")
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"args": ["--insecure"]}})
    assert conditions(operator.settle())["Available"] == ("True", "ScaledToZero")
    cluster.client.patch(TEACHER_SERVICE, NAME, {"spec": {"args": []}})
    operator.turn()
    found = conditions(operator.service())
    assert found["InvalidSpec"] == ("True", "InvalidSpec")
    assert found["Available"] == ("True", "ScaledToZero"), "as was decided before"


def test_without_the_right_to_read_nodes_room_is_unlimited(cluster: Cluster) -> None:
    def hook(method: str, path: str) -> None:
        if path.endswith(("/nodes", "/pods")):
            raise Forbidden("nodes is forbidden")

    operator = Operator(cluster, CoordinatorNumbers(resnet101=6))
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    with cluster.calling(hook) as client:
        operator.turn(client)
    assert deployment(cluster)["spec"]["replicas"] == 6


@given(POD_SPECS, JUNK, JUNK)
@example(pod={"resources": {"env": [1, 2]}}, meta=None, found=None)
def test_any_template_is_accepted_or_refused(pod: dict[str, Any], meta: Any, found: Any) -> None:
    own = {"name": NAME, "namespace": "lab", "uid": "u"}
    spec = {**SPEC, "minReplicas": 0, "port": 1, "graceSeconds": 1, "scaleToZero": True}
    template = {"metadata": meta, "spec": pod}
    resource = {
        "apiVersion": "edl-dist.io/v1alpha1", "kind": "TeacherService", "metadata": own,
        "spec": {**spec, "podTemplate": template},
    }  # fmt: skip
    try:
        made = deployment_of(resource, 1, "redis://head:6379")
        checked_requests_of(pod_spec_of(made))
    except UsageError:
        return
    wanted = marked(made)
    assert covers(wanted, wanted)
    there = deepcopy(wanted)
    there["spec"]["template"]["spec"] |= dict.fromkeys(pod, found)
    covers(there, wanted)


def test_an_unexpected_error_does_not_block_other_services(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(resource: Object) -> Object:
        if resource["metadata"]["name"] == "a":
            raise AttributeError("no such thing")
        return service_manifest_of(resource)

    monkeypatch.setattr(f"{TeacherServices.__module__}.service_manifest_of", odd)
    cluster.node("m1")
    for name in ("a", "b"):
        cluster.create(TEACHER_SERVICE, name, {**SPEC, "service": name})
    said = CoordinatorNumbers(a=1, b=1)
    services = TeacherServices(
        cluster.client, OperatorConfig(cluster.namespace, "redis://head:6379"), said
    )
    for now in (1_900_000_000.0, 1_900_000_001.0):
        services.turn(now)
    assert cluster.client.get(DEPLOYMENT, "b")["spec"]["replicas"] == 1
    warned = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.getMessage() for one in warned] == ["service a: no such thing"]
    assert warned[0].exc_info
    cluster.client.delete(TEACHER_SERVICE, "b")
    with pytest.raises(AttributeError):  # a turn in which nothing went well is none that did
        services.turn(1_900_000_002.0)
