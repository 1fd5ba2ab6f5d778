"""The API server of these tests does what a real one does, where the operator depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from edl.errors import (
    KubernetesUnavailable,
    ManifestRefused,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    Unauthenticated,
    UsageError,
)
from edl.mesh.kubernetes.client import Client, connect
from edl.mesh.kubernetes.resources import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISTILL_JOB,
    POD,
    TEACHER_SERVICE,
    Kind,
    Object,
)
from edl.tests.deploy.kube_api.cluster import Cluster, Killed

SPEC = {"image": "edl-dist", "model": "/models/m"}
_POD = {
    "containers": [{"name": "one", "image": "x", "resources": {"requests": {"cpu": "1"}}}],
    "terminationGracePeriodSeconds": 30,
}


def test_objects_are_made_changed_and_gone(cluster: Cluster) -> None:
    client = cluster.client
    made = client.create(CONFIG_MAP, {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {}})
    assert made["metadata"]["namespace"] == cluster.namespace
    with pytest.raises(ObjectExists, match="already exists"):
        client.create(CONFIG_MAP, {"metadata": {"name": "a"}})
    changed = client.patch(CONFIG_MAP, "a", {"data": {"k": "v"}})
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    again = client.patch(CONFIG_MAP, "a", {"data": {"k": "v"}})
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    with pytest.raises(ObjectChanged, match="modified"):
        client.patch(
            CONFIG_MAP, "a", {"data": None}, resource_version=made["metadata"]["resourceVersion"]
        )
    assert [one["metadata"]["name"] for one in client.list(CONFIG_MAP, "x=1")] == ["a"]
    assert client.list(CONFIG_MAP, "x=2") == []
    with pytest.raises(ManifestRefused, match=r"metadata\.uid.*immutable"):
        client.patch(CONFIG_MAP, "a", {"metadata": {"uid": "another"}, "data": {"k": "w"}})
    assert client.get(CONFIG_MAP, "a")["data"] == {"k": "v"}
    client.patch(CONFIG_MAP, "a", {"metadata": {"uid": made["metadata"]["uid"]}})
    assert client.delete(CONFIG_MAP, "a", uid="another") is False
    assert client.delete(CONFIG_MAP, "a") is True
    assert client.delete(CONFIG_MAP, "a") is False
    with pytest.raises(ObjectMissing, match="not found") as caught:
        client.get(CONFIG_MAP, "a")
    assert not caught.value.unknown_kind
    with pytest.raises(ObjectMissing) as caught:
        client.list(Kind("edl-dist.io/v1", "Nothing", "nothings"))
    assert caught.value.unknown_kind


def test_long_lists_come_in_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from edl.mesh.kubernetes import client as module

    monkeypatch.setattr(module, "_PAGE", 2)
    for number in range(5):
        cluster.client.create(CONFIG_MAP, {"metadata": {"name": f"c{number}", "labels": {"p": ""}}})
    found = cluster.client.list(CONFIG_MAP, "p")
    assert [one["metadata"]["name"] for one in found] == [f"c{number}" for number in range(5)]
    assert {one["kind"] for one in found} == {"ConfigMap"}


def test_a_definition_gives_defaults_and_prunes_and_keeps_status_apart(cluster: Cluster) -> None:
    client = cluster.client
    made = cluster.create(TEACHER_SERVICE, "a", {**SPEC, "unknown": 1}, status={"desired": 3})
    assert made["spec"] == {
        **SPEC, "minReplicas": 0, "maxReplicas": 1, "scaleToZero": True, "port": 8500,
        "spot": False, "graceSeconds": 30,
    }  # fmt: skip
    assert "status" not in made
    told = client.patch(TEACHER_SERVICE, "a", {"status": {"desired": 3}}, subresource="status")
    assert told["status"] == {"desired": 3}
    assert told["metadata"]["generation"] == 1
    other = client.patch(
        TEACHER_SERVICE, "a", {"spec": {"maxReplicas": 4}, "status": {"desired": 9}}
    )
    assert (other["metadata"]["generation"], other["status"]["desired"]) == (2, 3)


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        (TEACHER_SERVICE, {"image": "x"}, "spec.model: Required value"),
        (TEACHER_SERVICE, {**SPEC, "replicas": "two"}, "spec.replicas.*must be of type integer"),
        (TEACHER_SERVICE, {**SPEC, "replicas": -1}, "spec.replicas.*greater than or equal to 0"),
        (TEACHER_SERVICE, {**SPEC, "maxReplicas": 99999}, "less than or equal to 10000"),
        (TEACHER_SERVICE, {**SPEC, "coordinator": "head:6379"}, "spec.coordinator.*should match"),
        (TEACHER_SERVICE, {**SPEC, "args": "--verbose"}, "spec.args.*must be of type array"),
        (DISTILL_JOB, {"image": "x", "train": "a.py", "priority": 2000}, "spec.priority"),
        (DISTILL_JOB, {"image": "", "train": "a.py"}, "spec.image.*at least 1 chars long"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(
    cluster: Cluster, kind: Kind, spec: Object, words: str
) -> None:
    with pytest.raises(ManifestRefused, match=words):
        cluster.create(kind, "a", spec)
    other = {"image": "x", "train": "a.py"} if kind is DISTILL_JOB else SPEC
    cluster.create(kind, "a", other)
    with pytest.raises(ManifestRefused, match=words):  # before it is looked who has the name
        cluster.create(kind, "a", spec)
    with pytest.raises(ObjectExists):
        cluster.create(kind, "a", other)


def test_scaling_by_hand_sets_the_field_of_the_definition(cluster: Cluster) -> None:
    cluster.create(TEACHER_SERVICE, "a", SPEC)
    cluster.client.patch(TEACHER_SERVICE, "a", {"spec": {"replicas": 5}}, subresource="scale")
    assert cluster.client.get(TEACHER_SERVICE, "a")["spec"]["replicas"] == 5
    cluster.create(DISTILL_JOB, "j", {"image": "x", "train": "job.py", "maxNodes": 4})
    cluster.client.patch(DISTILL_JOB, "j", {"spec": {"replicas": 2}}, subresource="scale")
    assert cluster.client.get(DISTILL_JOB, "j")["spec"]["nodes"] == 2
    freed = cluster.client.patch(DISTILL_JOB, "j", {"spec": {"nodes": None}})
    assert freed["spec"].get("nodes") is None


def test_a_pod_that_runs_leaves_after_its_grace_period(cluster: Cluster) -> None:
    cluster.node("m1", cpu="1")
    cluster.create(POD, "a", _POD)
    cluster.create(POD, "b", _POD)
    cluster.play()
    phases = {one["metadata"]["name"]: one["status"]["phase"] for one in cluster.pods()}
    assert phases == {"a": "Running", "b": "Pending"}
    assert cluster.client.delete(POD, "a")
    assert cluster.client.delete(POD, "b")
    left = cluster.pods()
    assert [one["metadata"]["name"] for one in left] == ["a"]
    assert left[0]["metadata"]["deletionGracePeriodSeconds"] == 30
    cluster.play()
    assert cluster.pods() == []


def test_fields_have_owners(cluster: Cluster) -> None:
    client = cluster.client
    template: Object = {
        "metadata": {"labels": {"a": "1"}},
        "spec": {"containers": [{"name": "one", "image": "x", "env": [{"name": "A"}]}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "1"}}, "template": template}
    body: Object = {"metadata": {"name": "d", "labels": {"mine": "1", "other": "1"}}, "spec": spec}
    first = client.apply(DEPLOYMENT, body)
    assert client.apply(DEPLOYMENT, body)["metadata"]["generation"] == 1
    client.patch(DEPLOYMENT, "d", {"metadata": {"annotations": {"theirs": "1"}}})
    client.patch(DEPLOYMENT, "d", {"spec": {"replicas": 7}})
    with pytest.raises(ObjectChanged, match=r"conflict.*replicas"):
        client.apply(DEPLOYMENT, body, force=False)
    del body["metadata"]["labels"]["other"]
    template["spec"]["containers"][0].pop("env")
    after = client.apply(DEPLOYMENT, body)
    assert after["spec"]["replicas"] == 1
    assert after["metadata"]["labels"] == {"mine": "1"}
    assert after["metadata"]["annotations"]["theirs"] == "1"
    assert "env" not in after["spec"]["template"]["spec"]["containers"][0]
    assert after["metadata"]["uid"] == first["metadata"]["uid"]


def test_a_process_dies_before_its_call_or_after_it(cluster: Cluster) -> None:
    for after in (False, True):
        with cluster.mortal(1, after=after) as client:
            client.create(CONFIG_MAP, {"metadata": {"name": f"first-{after}".lower()}})
            with pytest.raises(Killed):
                client.create(CONFIG_MAP, {"metadata": {"name": f"second-{after}".lower()}})
        assert cluster.client.find(CONFIG_MAP, f"first-{after}".lower()) is not None
        assert (cluster.client.find(CONFIG_MAP, f"second-{after}".lower()) is not None) is after


def _changed(cluster: Cluster, folder: Path, what: str, /, **changes: Object) -> Path:
    """The cluster's kubeconfig with something else in it."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for key, values in changes.items():
        config[what][0][key] |= values
    path = folder / "changed"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_server_that_is_away_is_said_to_be(cluster: Cluster, tmp_path: Path) -> None:
    away = _changed(cluster, tmp_path, "clusters", cluster={"server": "http://127.0.0.1:1"})
    with Client(connect(away)) as client, pytest.raises(KubernetesUnavailable, match="answer"):
        client.list(POD)


def test_who_is_not_known_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    stranger = _changed(cluster, tmp_path, "users", user={"token": "wrong"})
    with Client(connect(stranger)) as client, pytest.raises(Unauthenticated, match="who we are"):
        client.list(POD)


def test_what_does_not_lead_anywhere_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Kubernetes to talk to"):
        connect(tmp_path / "missing")
