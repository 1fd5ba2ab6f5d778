"""Teachers of a TeacherService come to the same end after whatever happens to the operator."""

from __future__ import annotations

import logging
import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given

from edl.deploy.operator.capacity import checked_requests_of
from edl.deploy.operator.teachers.manifests import deployment_of, pod_spec_of
from edl.deploy.operator.teachers.reconciler import TeacherServiceReconciler
from edl.deploy.operator.templates import covers, with_hash
from edl.mesh.kubernetes.resources import DEPLOYMENT, TEACHER_SERVICE, Object
from edl.runtime.errors import Forbidden, KubernetesObjectChanged, ManifestRefused, UsageError
from edl.tests.deploy.kube_api.cluster import Cluster, KillBefore, Killed

from .jobs_world import REDIS, refusing
from .teachers_world import (
    JUNK,
    NAME,
    POD_SPECS,
    SPEC,
    CoordinatorNumbers,
    Operator,
    conditions,
    deployment,
    state,
)


# Dead after a call is dead before the next one, as far as the cluster can tell.
@pytest.mark.system
def test_killed_between_any_two_calls_it_comes_to_the_same_end(cluster: Cluster) -> None:
    cluster.node("m1", cpu="16", memory="64Gi")
    said = CoordinatorNumbers()
    story: tuple[tuple[int, Object], ...] = (
        (2, {}), (4, {"replicas": 1}), (4, {"args": []}),
        (3, {"args": ["--insecure"], "replicas": None}),
    )  # fmt: skip

    def end(kill: KillBefore) -> Object:
        """What has become of the service."""
        operator = Operator(cluster, said)
        cluster.create(TEACHER_SERVICE, NAME, SPEC)
        with cluster.calling(kill) as client:
            for number, change in story:
                said.numbers["resnet101"] = number
                if change:
                    operator.ask(**change)
                try:
                    operator.reconcile(None if kill.died else client)
                except Killed:
                    operator.reconcile()  # the next process
        operator.settle()
        found = state(cluster)
        cluster.client.delete(TEACHER_SERVICE, NAME)
        cluster.collect_garbage()
        return found

    calm = KillBefore(math.inf)
    expected = end(calm)
    assert expected["status"]["desired"] == 3
    assert expected["pods"] == ["Running"] * 3
    assert len(calm.requests) > 20
    for at, request in enumerate(calm.requests):
        kill = KillBefore(at)
        assert end(kill) == expected, f"killed before {request}"
        assert kill.died


@pytest.fixture
def both(cluster: Cluster) -> Operator:
    """An operator with two services, of which teachers are desired."""
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    cluster.create(TEACHER_SERVICE, "xother", {**SPEC, "service": "other"})
    return Operator(cluster, CoordinatorNumbers(resnet101=4, other=1))


def other_replicas(cluster: Cluster) -> int:
    return int(cluster.client.get(DEPLOYMENT, "xother")["spec"]["replicas"])


def test_a_quota_is_reported_and_does_not_block_other_services(
    cluster: Cluster, both: Operator
) -> None:
    hook = refusing("PATCH", f"/deployments/{NAME}", Forbidden("exceeded quota"))
    cluster.node("m1", cpu="4")  # no more than the first of them wants
    with cluster.calling(hook) as client:
        both.reconcile(client)
    assert "exceeded quota" in both.service()["status"]["reason"]
    assert other_replicas(cluster) == 1
    both.reconcile()
    assert "InvalidSpec" not in conditions(both.service())
    assert deployment(cluster)["spec"]["replicas"] == 4


@pytest.mark.parametrize("error", [ManifestRefused("its status is none"), AttributeError("odd")])
def test_an_error_of_one_service_is_logged_once_and_does_not_block_others(
    cluster: Cluster, both: Operator, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(method: str, path: str) -> None:
        if path.endswith(f"/{NAME}/status"):
            raise error
        if path.endswith("/nodes"):
            raise Forbidden("nodes is forbidden")

    with cluster.calling(refuse) as client, caplog.at_level(logging.WARNING):
        services = TeacherServiceReconciler(client, both.config, both.said)
        for number in (1, 2, 3):
            both.said.numbers.update(resnet101=number, other=number)
            services.reconcile(both.now + number)
        nodes = "cannot read the capacity of the cluster: nodes is forbidden"
        said = [one.getMessage() for one in caplog.records]
        assert said == [nodes, f"service {NAME}: {error}"]
        unexpected = isinstance(error, AttributeError)
        assert bool(caplog.records[1].exc_info) == unexpected, "where is it from?"
        assert other_replicas(cluster) == 3, "without the right to read nodes there is room for all"
        cluster.client.delete(TEACHER_SERVICE, "xother")
        with pytest.raises(type(error)):  # a reconcile in which every service failed
            services.reconcile(both.now + 4)


def test_a_former_leader_does_not_overwrite_its_successor(cluster: Cluster) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1), growing_cluster=True)
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    operator.reconcile()
    slept = False

    def hook(method: str, path: str) -> None:
        nonlocal slept
        if path.endswith("/status") and not slept:  # its successor works meanwhile
            slept = True
            operator.said.numbers["resnet101"] = 4
            operator.reconcile()

    operator.said.numbers["resnet101"] = 2
    with cluster.calling(hook) as client:
        operator.reconcile(client)
    assert slept
    assert operator.service()["status"]["desired"] == 4
    assert deployment(cluster)["spec"]["replicas"] == 4


def test_no_event_is_sent_for_a_status_that_was_not_written(cluster: Cluster) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=1), growing_cluster=True)
    cluster.create(TEACHER_SERVICE, NAME, SPEC)
    hook = refusing("PATCH", "/status", KubernetesObjectChanged("it has been changed"))
    with cluster.calling(hook) as client:
        operator.reconcile(client)
    assert cluster.events() == []
    operator.reconcile()
    assert [reason for reason, _ in cluster.events()] == ["Scaled"]


def test_a_service_that_never_was_valid_is_not_available(cluster: Cluster) -> None:
    operator = Operator(cluster, CoordinatorNumbers(resnet101=0), growing_cluster=True)
    cluster.create(TEACHER_SERVICE, NAME, {**SPEC, "args": []})
    operator.reconcile()
    assert conditions(operator.service())["Available"] == ("False", "InvalidSpec")
    operator.ask(args=["--insecure"])
    assert conditions(operator.settle())["Available"] == ("True", "ScaledToZero")
    operator.ask(args=[])
    operator.reconcile()
    assert conditions(operator.service())["Available"] == ("True", "ScaledToZero"), "as before"


@given(POD_SPECS, JUNK, JUNK)
@example(pod={"resources": {"env": [1, 2]}}, meta=None, found=None)
@example(pod={"tolerations": [{"key": "gpu"}]}, meta=None, found=None)
@example(pod={"resources": {"limits": {"cpu": "1"}}}, meta=None, found={"limits": {"cpu": "much"}})
def test_any_template_is_accepted_or_refused(pod: dict[str, Any], meta: Any, found: Any) -> None:
    own = {"name": NAME, "namespace": "lab", "uid": "u"}
    spec = {**SPEC, "minReplicas": 0, "port": 1, "graceSeconds": 1, "scaleToZero": True}
    template = {"metadata": meta, "spec": pod}
    resource = {
        "apiVersion": "edl-dist.io/v1alpha1", "kind": "TeacherService", "metadata": own,
        "spec": {**spec, "podTemplate": template},
    }  # fmt: skip
    try:
        made = deployment_of(resource, 1, REDIS)
        checked_requests_of(pod_spec_of(made))
    except UsageError:
        return
    wanted = with_hash(made)
    assert covers(wanted, wanted)
    there = deepcopy(wanted)
    there["spec"]["template"]["spec"] |= dict.fromkeys(pod, found)
    covers(there, wanted)
