"""Elastic jobs on a cluster: manifests that an API server takes, and its refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import edl
from edl.cli import command_line
from edl.coordinator.contexts import ContextFile, MeshContext
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.reconciler import DistillJobReconciler
from edl.mesh.jobs.backend import open_backend
from edl.mesh.jobs.kubernetes_backend import KubernetesBackend
from edl.mesh.jobs.kubernetes_resource import to_resource
from edl.mesh.jobs.spec import QueuedJobSpec
from edl.mesh.kubernetes.resources import DISTILL_JOB, POD, Object, labels_of, owner_reference
from edl.runtime.errors import (
    Forbidden,
    KubernetesObjectMissing,
    KubernetesUnavailable,
    ManifestRefused,
    UsageError,
)
from edl.scheduler.elastic_values import ElasticConfig
from edl.tests.cli_output import output_of
from edl.tests.deploy.kube_api.cluster import Emulated, emulated_in
from edl.tests.deploy.kube_api.store import Refusal
from edl.tests.deploy.kubernetes import Right, granted
from edl.tests.waiting import DEADLINE_S, wait_until

ROOT = Path(edl.__file__).resolve().parent
EXAMPLE = ROOT / "examples" / "jobs" / "ctr.yaml"
JOB = QueuedJobSpec("a", command="x", image="i", max_nodes=3)
Edl = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Emulated]:
    with emulated_in(tmp_path) as found:
        yield found


@pytest.fixture
def edl_job(cluster: Emulated, monkeypatch: pytest.MonkeyPatch) -> Edl:
    monkeypatch.setenv("EDL_JOBS_ON", f"kubernetes:{cluster.namespace}")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return lambda verb, *words: output_of(command_line(verb), verb, *words)


def submitted(cluster: Emulated, state: str = "", **status: Any) -> Object:
    """The resource of `JOB`, after an operator has written this status."""
    made = cluster.client.create(DISTILL_JOB, to_resource(JOB))
    if not state:
        return made
    return cluster.patch_status(DISTILL_JOB, "a", observedGeneration=1, state=state, **status)


def job_file(folder: Path, **more: Any) -> Path:
    file = folder / "a.yaml"
    document = {"kind": "job", "name": "a", "command": "x", "image": "i", **more}
    file.write_text(yaml.safe_dump(document))
    return file


def test_dry_run_prints_manifests_that_kubectl_can_apply(
    cluster: Emulated, edl_job: Edl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dry = ("apply", "-f", EXAMPLE, "--dry-run")
    monkeypatch.setenv("EDL_COORDINATOR", "redis://127.0.0.1:1")  # how this machine reaches it
    told = job_file(tmp_path, coordinator="redis://redis:6379")
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("""kind: mesh\nstudents: {quick: {command: "printf 'a:\\nb'"}}""")
    manifest, named = yaml.safe_load_all(edl_job(*dry, "-f", mesh, "-f", told))
    assert cluster.client.list(DISTILL_JOB) == []
    assert "coordinator" not in manifest["spec"]
    assert named["spec"]["coordinator"] == "redis://redis:6379"
    made = cluster.client.create(DISTILL_JOB, manifest)
    assert made["spec"].items() >= manifest["spec"].items(), "nothing was pruned"
    listed = json.loads(edl_job("get", "jobs", "--json"))["jobs"][0]
    assert (listed["name"], listed["spec"]["resources"]["cpu"]) == ("ctr", "2")
    assert "no operator has seen it yet" in listed["reason"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("EDL_JOBS_ON", "kubernetes")
    anywhere = yaml.safe_load(edl_job(*dry))
    assert anywhere["metadata"] == {"name": "ctr"}, "no API server is asked"


def test_a_refused_spec_replaces_no_former_job_and_submits_no_earlier_one(
    cluster: Emulated, edl_job: Edl, tmp_path: Path
) -> None:
    former = submitted(cluster, "succeeded")
    with pytest.raises(ManifestRefused, match=r"spec\.image.*too long") as caught:
        edl_job("apply", "-f", job_file(tmp_path, image="x" * 2000))
    assert "\n" not in str(caught.value)
    later = tmp_path / "later.yaml"
    later.write_text("{kind: job, name: b, command: x}")
    with pytest.raises(UsageError, match="needs a container image"):
        edl_job("apply", "-f", job_file(tmp_path), "-f", later)
    assert cluster.client.list(DISTILL_JOB) == [former]
    edl_job("apply", "-f", job_file(tmp_path))
    assert cluster.client.get(DISTILL_JOB, "a")["metadata"]["uid"] != former["metadata"]["uid"]


def test_a_job_that_is_resumed_meanwhile_is_not_replaced(cluster: Emulated) -> None:
    submitted(cluster, "stopped")
    cluster.client.patch(DISTILL_JOB, "a", {"spec": {"stopped": True}})

    def hook(method: str, path: str) -> None:
        if method == "DELETE":
            cluster.client.patch(DISTILL_JOB, "a", {"spec": {"stopped": False}})

    with cluster.calling(hook) as client, pytest.raises(UsageError, match="a that has not ended"):
        KubernetesBackend(client, "here").submit(JOB)
    assert cluster.client.find(DISTILL_JOB, "a")


def test_a_newer_job_is_left_alone_by_submit_scale_and_stop(cluster: Emulated) -> None:
    submitted(cluster, "succeeded")

    def hook(method: str, path: str) -> None:
        nobody_has_the_name = cluster.client.find(DISTILL_JOB, "a") is None
        if method == "PATCH":  # it ends just before
            cluster.client.delete(DISTILL_JOB, "a")
        if method == "PATCH" or (method == "POST" and nobody_has_the_name):
            submitted(cluster)

    with cluster.calling(hook) as client:
        jobs = KubernetesBackend(client, "here")
        with pytest.raises(UsageError, match="there is a job a that has not ended"):
            jobs.submit(JOB)
        for change in (lambda job: jobs.scale(job, 2), jobs.stop):
            assert change(jobs.listing().find("a")) is False
    spec = cluster.client.get(DISTILL_JOB, "a")["spec"]
    assert not {"nodes", "stopped"} & {key for key, value in spec.items() if value}


def test_refusals_of_the_server_are_reported(
    cluster: Emulated, edl_job: Edl, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(cluster)
    jobs = KubernetesBackend(cluster.client, "here")
    with pytest.raises(ManifestRefused, match=r"spec\.nodes"):
        jobs.scale(jobs.listing().find("a"), -1)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("EDL_JOBS_ON", "kubernetes:nowhere")
        with pytest.raises(UsageError, match='namespaces "nowhere" not found'):
            edl_job("apply", "-f", EXAMPLE)
    with pytest.raises(UsageError, match=r"no slots to reserve.*priorityClassName"):
        edl_job("reserve", 1)
    says = 'distilljobs.edl-dist.io is forbidden: User "u" cannot list resource "distilljobs"'
    forbidden = cluster.server.refusing(Refusal(403, "Forbidden", says))
    with forbidden, pytest.raises(Forbidden, match=says):
        edl_job("get", "jobs")
    del cluster.server.store.known[DISTILL_JOB.api_version, DISTILL_JOB.plural]
    commands = [one.split() for one in ("get jobs", "logs job a", "events --jobs", "delete job a")]
    for words in (*commands, ("apply", "-f", EXAMPLE)):
        with pytest.raises(KubernetesObjectMissing, match="kubectl apply -k deploy/operator/crds"):
            edl_job(*words)


def test_bad_kubeconfigs_are_reported(
    cluster: Emulated, edl_job: Edl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ContextFile(tmp_path / "contexts.yaml")
    monkeypatch.setenv("EDL_CONFIG", str(file.path))
    mesh = MeshContext(jobs_on="kubernetes", kubeconfig=cluster.kubeconfig, kube_context="nowhere")
    file.change(lambda contexts: contexts.add("b", mesh))
    with pytest.raises(UsageError, match=r"no Kubernetes cluster is configured.*nowhere"):
        edl_job("get", "jobs", "--context", "b")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no Kubernetes cluster is configured"):
        edl_job("get", "jobs")
    for text in ("a: [", "hello", "[1, 2]", "contexts: 5\ncurrent-context: a"):
        (tmp_path / "odd").write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "odd"))
        says = "no kubeconfig|no Kubernetes cluster is configured"
        with pytest.raises(UsageError, match=says) as caught:
            edl_job("get", "jobs")
        assert "\n" not in str(caught.value)


def test_events_include_conditions(cluster: Emulated, edl_job: Edl) -> None:
    at, why = {"lastTransitionTime": "2026-01-01T00:00:00Z"}, {"reason": "R", "message": "has all"}
    conditions = [
        {"type": "Ready", "status": "True", **why, **at},
        {"type": "Degraded", "status": "False", **why, **at},
    ]
    submitted(cluster, "running", conditions=conditions)
    told = edl_job("events", "--jobs").splitlines()
    assert [line.split("  ")[-1] for line in told] == ["a: Ready: has all", "a: was submitted"]
    assert edl_job("events", "--jobs", "--last", 1).splitlines() == told[1:]
    assert edl_job("events", "--jobs", "--last", 0).splitlines() == told, "all"


def test_following_logs_survives_an_outage_of_the_api_server(
    cluster: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.mesh.jobs.kubernetes_backend._POLL_S", 0.01)
    submitted(cluster)
    requests = cluster.server.requests
    mesh = MeshContext(jobs_on=f"kubernetes:{cluster.namespace}", kubeconfig=cluster.kubeconfig)
    with closing(open_backend(mesh)) as backend, ThreadPoolExecutor(1) as pool:
        job = backend.listing().find("a")
        with cluster.server.outage():
            lines = pool.submit(lambda: list(backend.log_lines(job, follow=True)))
            asked = len(requests)
            wait_until(lambda: len(requests) > asked + 3)
        cluster.patch_status(DISTILL_JOB, "a", observedGeneration=1, state="succeeded")
        assert lines.result(DEADLINE_S) == []
        monkeypatch.setattr("edl.mesh.jobs.backend.AWAY_S", 0.0)
        with cluster.server.outage(), pytest.raises(KubernetesUnavailable):
            list(backend.log_lines(job, follow=True))


@pytest.mark.system
def test_the_operator_carries_out_the_commands(
    cluster: Emulated, edl_job: Edl, tmp_path: Path
) -> None:
    cluster.node("m", cpu="2")
    config = OperatorConfig(cluster.namespace, elastic=ElasticConfig(freeze_s=0.0))
    operator, now = DistillJobReconciler(cluster.client, config), time.time()

    def becomes(**jobs: tuple[str, int]) -> None:
        nonlocal now
        for _ in range(4):
            now += 40.0
            operator.reconcile(now)
            cluster.play()
        listed: list[dict[str, Any]] = json.loads(edl_job("get", "jobs", "--json"))["jobs"]
        assert {one["name"]: (one["state"], one["running"]) for one in listed} == jobs

    cpu = {"cpu": 1}
    edl_job("apply", "-f", job_file(tmp_path, max_nodes=2, resources=cpu))
    becomes(a=("running", 2))
    edl_job("apply", "-f", job_file(tmp_path, name="b", resources=cpu))
    becomes(a=("running", 1), b=("running", 1))
    assert "b: was submitted" in edl_job("events", "--jobs")
    assert "is to stop" in edl_job("delete", "job", "b")
    becomes(a=("running", 2), b=("stopped", 0))
    edl_job("scale", "job", "a", 1)
    becomes(a=("running", 1), b=("stopped", 0))
    for pod in cluster.client.list(POD):
        cluster.end(pod["metadata"]["name"], 0)
    becomes(a=("succeeded", 0), b=("stopped", 0))


VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


def used(method: str, path: str, namespace: str) -> Right:
    """The right that a request needs, as RBAC has it."""
    before, _, behind = path.partition(f"/namespaces/{namespace}/")
    assert behind, f"{path} is of another namespace, or of the whole cluster"
    group = "" if before == "/api/v1" else before.split("/")[2]
    resource, *rest = behind.split("/")
    verb = VERBS.get(method, "get" if rest else "list")
    return group, "/".join([resource, *rest[1:]]), verb


def test_commands_need_exactly_the_documented_role(
    cluster: Emulated, edl_job: Edl, tmp_path: Path
) -> None:
    asked: set[Right] = set()

    def note(*words: object) -> None:
        before = len(cluster.server.requests)
        edl_job(*words)
        asked.update(used(*one, cluster.namespace) for one in cluster.server.requests[before:])

    note("apply", "-f", job_file(tmp_path, max_nodes=2))
    job = cluster.client.get(DISTILL_JOB, "a")
    labels = labels_of("student", job="a", node="1")
    meta = {"name": "a-1", "labels": labels, "ownerReferences": [owner_reference(job)]}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "node", "image": "i"}]}}
    cluster.client.create(POD, pod)
    cluster.say("a-1", "Running")
    cluster.server.store.logs[cluster.namespace, "a-1"] = "2026-01-01T00:00:00Z up\n"
    for words in ("get jobs", "events --jobs", "logs job a", "scale job a 1", "delete job a"):
        note(*words.split())
    cluster.patch_status(DISTILL_JOB, "a", observedGeneration=1, state="stopped")
    note("logs", "job", "a", "--follow")
    note("apply", "-f", job_file(tmp_path))  # in the place of the one that has ended
    role = ROOT / "deploy" / "kubernetes" / "components" / "operator" / "submitters.yaml"
    assert asked == granted(yaml.safe_load(role.read_text()))
