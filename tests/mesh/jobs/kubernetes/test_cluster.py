"""`edl job` on a cluster: manifests that an API server takes, and what is said where it refuses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import edl
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.turning import DistillJobs
from edl.errors import (
    Forbidden,
    KubernetesUnavailable,
    ManifestRefused,
    ObjectMissing,
    UsageError,
)
from edl.mesh.jobs.backend import Where
from edl.mesh.jobs.cli import app
from edl.mesh.jobs.kubernetes.backend import KubernetesJobs
from edl.mesh.jobs.kubernetes.translate import to_resource
from edl.mesh.jobs.spec import JobSpec
from edl.mesh.kubernetes.resources import DISTILL_JOB, POD, labels_of, owner_reference
from edl.scheduler.elastic import ElasticConfig
from edl.tests.deploy.kube_api.cluster import Emulated, emulated_in
from edl.tests.deploy.kube_api.store import Refusal
from edl.tests.waiting import wait_until

EXAMPLE = Path(edl.__file__).resolve().parent / "examples" / "jobs" / "ctr.yaml"
Edl = Callable[..., str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Emulated]:
    with emulated_in(tmp_path) as found:
        yield found


@pytest.fixture
def edl_job(cluster: Emulated, monkeypatch: pytest.MonkeyPatch) -> Edl:
    monkeypatch.setenv("EDL_JOBS_ON", f"kubernetes:{cluster.namespace}")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return run


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_dry_run_is_what_kubectl_may_apply(cluster: Emulated, edl_job: Edl) -> None:
    printed = edl_job("submit", EXAMPLE, "--dry-run")
    assert printed.startswith("# folder is of a fleet's machine")
    assert cluster.client.list(DISTILL_JOB) == []
    manifest = yaml.safe_load(printed)
    made = cluster.client.create(DISTILL_JOB, manifest)
    assert made["spec"].items() >= manifest["spec"].items(), "nothing was pruned"
    listed = json.loads(edl_job("list", "--json"))["jobs"][0]
    assert (listed["name"], listed["spec"]["resources"]["cpu"]) == ("ctr", "2")
    assert "no operator has seen it yet" in listed["reason"]
    assert "no operator has seen it yet" in edl_job("list")


def test_the_dry_run_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    manifest = yaml.safe_load(run("submit", EXAMPLE, "--dry-run", "--on", "kubernetes"))
    assert manifest["metadata"] == {"name": "ctr"}


def test_nodes_are_told_a_redis_that_was_named_here(
    edl_job: Edl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_COORDINATOR", "redis://127.0.0.1:1")  # how this machine reaches it
    dry = ("submit", EXAMPLE, "--dry-run")
    assert "coordinator" not in yaml.safe_load(edl_job(*dry))["spec"]
    told = yaml.safe_load(edl_job(*dry, "--coordinator", "redis://redis:6379"))
    assert told["spec"]["coordinator"] == "redis://redis:6379"


def test_a_spec_that_the_server_refuses_is_said_in_a_line(
    cluster: Emulated, edl_job: Edl, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: a\ncommand: x\nimage: {'x' * 2000}\n")
    with pytest.raises(ManifestRefused, match=r"spec\.image.*too long") as caught:
        edl_job("submit", file)
    assert "\n" not in str(caught.value)


def test_a_spec_that_is_refused_takes_no_former_job_away(
    cluster: Emulated, edl_job: Edl, tmp_path: Path
) -> None:
    cluster.client.create(DISTILL_JOB, to_resource(JobSpec("a", command="x", image="i")))
    ended = {"status": {"observedGeneration": 1, "state": "succeeded"}}
    former = cluster.client.patch(DISTILL_JOB, "a", ended, subresource="status")
    file = tmp_path / "job.yaml"
    file.write_text(f"name: a\ncommand: x\nimage: {'x' * 2000}\n")
    with pytest.raises(ManifestRefused, match=r"spec\.image"):
        edl_job("submit", file)
    assert cluster.client.get(DISTILL_JOB, "a") == former
    file.write_text("name: a\ncommand: x\nimage: i\n")
    edl_job("submit", file)
    assert cluster.client.get(DISTILL_JOB, "a")["metadata"]["uid"] != former["metadata"]["uid"]


def test_who_is_faster_has_the_name(cluster: Emulated) -> None:
    spec = JobSpec("a", command="x", image="i")
    cluster.client.create(DISTILL_JOB, to_resource(spec))
    ended = {"status": {"observedGeneration": 1, "state": "succeeded"}}
    cluster.client.patch(DISTILL_JOB, "a", ended, subresource="status")
    gone: list[str] = []

    def hook(method: str, path: str) -> None:
        if method == "POST" and cluster.client.find(DISTILL_JOB, "a") is None:
            cluster.client.create(DISTILL_JOB, to_resource(spec))
            gone.append(path)

    refused = pytest.raises(UsageError, match="there is a job a that has not ended")
    with cluster.calling(hook) as client, refused:
        KubernetesJobs(client, "here").submit(spec)
    assert len(gone) == 1


def test_a_job_that_came_since_stays_as_it_is(cluster: Emulated) -> None:
    resource = to_resource(JobSpec("a", command="x", image="i", max_nodes=3))
    cluster.client.create(DISTILL_JOB, resource)

    def hook(method: str, path: str) -> None:
        if method == "PATCH":  # it ends, and another one is submitted, just before
            cluster.client.delete(DISTILL_JOB, "a")
            cluster.client.create(DISTILL_JOB, resource)

    with cluster.calling(hook) as client:
        jobs = KubernetesJobs(client, "here")
        for change in (lambda job: jobs.scale(job, 2), jobs.stop):
            assert change(jobs.find("a")) is False
    spec = cluster.client.get(DISTILL_JOB, "a")["spec"]
    assert not {"nodes", "stopped"} & {key for key, value in spec.items() if value}


def test_a_change_that_is_refused_says_why(cluster: Emulated) -> None:
    cluster.client.create(DISTILL_JOB, to_resource(JobSpec("a", command="x", image="i")))
    jobs = KubernetesJobs(cluster.client, "here")
    with pytest.raises(ManifestRefused, match=r"spec\.nodes"):
        jobs.scale(jobs.find("a"), -1)


def test_a_cluster_without_our_definitions(cluster: Emulated, edl_job: Edl) -> None:
    del cluster.server.store.known[DISTILL_JOB.api_version, DISTILL_JOB.plural]
    for words in (("list",), ("submit", EXAMPLE), ("logs", "a"), ("events",), ("stop", "a")):
        with pytest.raises(ObjectMissing, match="kubectl apply -k deploy/operator/crds"):
            edl_job(*words)


def test_a_namespace_that_is_not_there(cluster: Emulated, edl_job: Edl) -> None:
    with pytest.raises(UsageError, match='namespaces "nowhere" not found'):
        edl_job("submit", EXAMPLE, "--on", "kubernetes:nowhere")


def test_a_right_that_is_missing_is_named(cluster: Emulated, edl_job: Edl) -> None:
    says = 'distilljobs.edl-dist.io is forbidden: User "u" cannot list resource "distilljobs"'
    forbidden = cluster.server.refusing(Refusal(403, "Forbidden", says))
    with forbidden, pytest.raises(Forbidden, match=says):
        edl_job("list")


def test_no_cluster_to_talk_to(
    cluster: Emulated, edl_job: Edl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"no Kubernetes to talk to.*--context"):
        edl_job("list", "--context", "nowhere")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no Kubernetes to talk to"):
        edl_job("list")
    for text in ("a: [", "hello", "[1, 2]", "contexts: 5\ncurrent-context: a"):
        (tmp_path / "odd").write_text(text)
        with pytest.raises(UsageError, match=r"no kubeconfig|no Kubernetes to talk to") as caught:
            edl_job("list", "--kubeconfig", tmp_path / "odd")
        assert "\n" not in str(caught.value)
    away = cluster.kubeconfig.read_text().replace(
        cluster.connection.configuration.host, "http://127.0.0.1:1"
    )
    (tmp_path / "away").write_text(away)
    with pytest.raises(KubernetesUnavailable, match=r"127\.0\.0\.1:1 does not answer"):
        edl_job("list", "--kubeconfig", tmp_path / "away")


def test_nothing_is_reserved_on_a_cluster(edl_job: Edl) -> None:
    with pytest.raises(UsageError, match=r"no slots to reserve.*priorityClassName"):
        edl_job("reserve", 1)


def test_conditions_tell_what_events_have_forgotten(cluster: Emulated, edl_job: Edl) -> None:
    cluster.client.create(DISTILL_JOB, to_resource(JobSpec("a", command="x", image="i")))
    condition = {
        "type": "Ready", "status": "True", "reason": "Running", "message": "has all it can use",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    other = {**condition, "type": "Degraded", "status": "False"}
    status = {"observedGeneration": 1, "state": "running", "conditions": [condition, other]}
    cluster.client.patch(DISTILL_JOB, "a", {"status": status}, subresource="status")
    told = edl_job("events").splitlines()
    assert told[0].endswith("  a: Ready: has all it can use")
    assert told[1].endswith("  a: was submitted")
    assert edl_job("events", "--last", 1).splitlines() == told[1:]


def test_who_follows_outlives_an_api_server_that_is_away_for_a_while(
    cluster: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.mesh.jobs.kubernetes.backend._LOOK_S", 0.01)
    cluster.client.create(DISTILL_JOB, to_resource(JobSpec("a", command="x", image="i")))
    requests = cluster.server.requests
    where = Where.of(f"kubernetes:{cluster.namespace}", "", cluster.kubeconfig, "main", "")
    with closing(where.open()) as backend, ThreadPoolExecutor(1) as pool:
        job = backend.find("a")
        with cluster.server.outage():
            lines = pool.submit(lambda: list(backend.log_lines(job, follow=True)))
            asked = len(requests)
            wait_until(lambda: len(requests) > asked + 3)
        status = {"observedGeneration": 1, "state": "succeeded"}
        cluster.client.patch(DISTILL_JOB, "a", {"status": status}, subresource="status")
        assert lines.result(20) == []
        monkeypatch.setattr("edl.mesh.jobs.kubernetes.backend._AWAY_S", 0.0)
        with cluster.server.outage(), pytest.raises(KubernetesUnavailable):
            list(backend.log_lines(job, follow=True))


class World:
    """A cluster with two cores, an operator, and whoever calls `edl job`."""

    def __init__(self, cluster: Emulated, folder: Path) -> None:
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
def world(cluster: Emulated, tmp_path: Path) -> World:
    return World(cluster, tmp_path)


@pytest.mark.system
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


PAGE = Path(edl.__file__).resolve().parent / "docs" / "elastic-jobs.md"
Right = tuple[str, str, str]
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


def granted() -> set[Right]:
    """API group, resource and verb of each right that the page grants."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    role = next(yaml.safe_load(block) for block in blocks if "kind: Role" in block)
    return {
        right
        for rule in role["rules"]
        for right in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def used(method: str, path: str, namespace: str) -> Right:
    """The right that a request needs, as RBAC has it."""
    before, _, behind = path.partition(f"/namespaces/{namespace}/")
    assert behind, f"{path} is of another namespace, or of the whole cluster"
    group = "" if before == "/api/v1" else before.split("/")[2]
    resource, *rest = behind.split("/")
    verb = VERBS.get(method, "get" if rest else "list")
    return group, "/".join([resource, *rest[1:]]), verb


def test_the_role_of_the_page_is_enough_and_no_more(cluster: Emulated, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("name: a\ncommand: x\nimage: i\nmax_nodes: 2\n")
    asked: set[Right] = set()

    def run(*words: str) -> None:
        where = ("--on", f"kubernetes:{cluster.namespace}", "--kubeconfig", str(cluster.kubeconfig))
        before = len(cluster.server.requests)
        result = CliRunner().invoke(app, [*words, *where], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        for method, path in cluster.server.requests[before:]:
            asked.add(used(method, path, cluster.namespace))

    run("submit", str(file))
    job = cluster.client.get(DISTILL_JOB, "a")
    labels = labels_of("student", job="a", node="1")
    meta = {"name": "a-1", "labels": labels, "ownerReferences": [owner_reference(job)]}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "node", "image": "i"}]}}
    cluster.client.create(POD, pod)
    cluster.say("a-1", "Running")
    cluster.server.store.logs[cluster.namespace, "a-1"] = "2026-01-01T00:00:00Z up\n"
    for words in (("list",), ("events",), ("logs", "a"), ("scale", "a", "1"), ("stop", "a")):
        run(*words)
    status = {"observedGeneration": 1, "state": "stopped"}
    cluster.client.patch(DISTILL_JOB, "a", {"status": status}, subresource="status")
    run("logs", "a", "--follow")
    run("submit", str(file))  # in the place of the one that has ended
    assert asked == granted()
