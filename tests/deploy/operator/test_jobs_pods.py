"""The pod of a job's node: valid, non-root, told what it needs to know; and what is seen of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given

from edl.deploy.operator.capacity import Machines
from edl.deploy.operator.config import OperatorConfig
from edl.deploy.operator.jobs.decisions import decide_pods
from edl.deploy.operator.jobs.ledger import JobActions, ObservedJob, PodLedger
from edl.deploy.operator.jobs.node_pods import node_pod_of
from edl.deploy.operator.jobs.observe import wanted_of
from edl.deploy.operator.jobs.pods import needs_of, pod_of, tolerations_of
from edl.deploy.operator.jobs.status import ledger_of, status_of
from edl.deploy.operator.teachers.manifests import deployment_of
from edl.mesh.kubernetes.resources import Object, seconds_of
from edl.runtime.errors import UsageError
from edl.tests.deploy.command_lines import check

from .jobs_world import REDIS
from .teachers_world import JUNK, POD_SPECS, SPEC

READY = {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}


def job(**spec: Any) -> Object:
    meta = {"name": "ctr", "namespace": "lab", "uid": "12345678-9abc", "generation": 3}
    given = {"image": "edl-dist:1", "train": "job.py --epochs 3", "maxNodes": 4,
             "checkpoint": "shared", **spec}  # fmt: skip
    spec = {key: value for key, value in given.items() if value is not None}
    api_version = "edl-dist.io/v1alpha1"
    return {"apiVersion": api_version, "kind": "DistillJob", "metadata": meta, "spec": spec}


def valid_pod(resource: Object, node: int = 1, redis: str | None = REDIS) -> Object:
    """The pod of a node, which the oldest and the newest version of Kubernetes take."""
    pod = pod_of(resource, node, redis)
    for version in ("1.30", "1.37"):
        kubernetes_validate.validate(pod, version, strict=True)
    return pod


def teachers_at(url: str) -> Object:
    defaults = {"minReplicas": 0, "port": 8500, "graceSeconds": 30}
    spec = {**SPEC, **defaults, "coordinator": url}
    resource = {**job(), "kind": "TeacherService", "spec": spec}
    return deployment_of(resource, 1, None)


def container(pod: Object) -> Object:
    found: Object = pod["spec"]["containers"][0]
    return found


def env_of(pod: Object) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(pod)["env"]}


def test_a_node_of_a_training() -> None:
    resource = job(resources={"requests": {"cpu": "2"}})
    pod = valid_pod(resource, 3)
    assert pod["metadata"]["name"] == "ctr-3"
    assert pod["metadata"]["labels"]["edl-dist.io/node"] == "3"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "12345678-9abc"
    assert container(pod)["args"] == [
        "student", "train", "job.py", "--epochs", "3", "--job", "ctr", "--nodes", "1:4",
        "--checkpoint", "/var/lib/edl/checkpoints/ctr-12345678",
    ]  # fmt: skip
    check(["edl", *container(pod)["args"]], {"EDL_COORDINATOR": REDIS})
    env = env_of(pod)
    assert (env["EDL_JOB"], env["EDL_JOB_NODE"], env["EDL_COORDINATOR"]) == ("ctr", "3", REDIS)
    claims = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert needs_of(resource, REDIS) == {"cpu": 2.0, "pods": 1.0}


def test_any_other_program_and_words_in_which_kubernetes_finds_nothing() -> None:
    command = "sh -c 'echo $(date)'"
    resource = job(train=None, command=command, env={"A": "$(B)"}, graceSeconds=5)
    pod = valid_pod(resource, redis=None)
    assert container(pod)["command"] == ["sh", "-c", "echo $$(date)"]
    assert env_of(pod)["A"] == "$$(B)"
    assert "EDL_COORDINATOR" not in env_of(pod)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5
    assert pod["spec"]["restartPolicy"] == "Never"


def test_what_a_template_says_besides() -> None:
    secret = {"secretKeyRef": {"name": "redis", "key": "url"}}
    volume = {"name": "checkpoints", "nfs": {"server": "s", "path": "/"}}
    own = {
        "name": "node",
        "env": [{"name": "EDL_COORDINATOR", "valueFrom": secret}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    meta = {"labels": {"team": "ads", "edl-dist.io/job": "another"}, "annotations": {"note": "x"}}
    spec = {
        "nodeSelector": {"gpu": "t4"},
        "restartPolicy": "Always",
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "securityContext": {"fsGroup": 7},
        "volumes": [volume],
        "containers": [own, {"name": "beside", "image": "y"}],
    }
    template, limits = {"metadata": meta, "spec": spec}, {"limits": {"nvidia.com/gpu": 1}}
    resource = job(podTemplate=template, checkpoint=None, resources=limits)
    pod = valid_pod(resource, redis="redis://:s3cret@head")
    assert "s3cret" not in str(pod), "its template has the URL from a Secret"
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert (labels["team"], labels["edl-dist.io/job"]) == ("ads", "ctr")
    assert pod["metadata"]["annotations"] == {"note": "x"}
    assert (spec["restartPolicy"], spec["nodeSelector"]) == ("Never", {"gpu": "t4"})
    assert len(spec["tolerations"]) == 3
    assert spec["securityContext"].items() >= {"fsGroup": 7, "runAsNonRoot": True}.items()
    assert volume in spec["volumes"]
    assert [one["name"] for one in spec["containers"]] == ["node", "beside"]
    assert env_of(pod)["EDL_COORDINATOR"] == secret
    mounts = {one["mountPath"]: one["name"] for one in container(pod)["volumeMounts"]}
    assert (mounts["/data"], mounts["/tmp"]) == ("data", "tmp")


@pytest.mark.parametrize("spec", [{"maxNodes": 1}, {"train": "job.py --checkpoint=s3://runs/ctr"}])
def test_checkpoints_that_need_no_claim(spec: dict[str, Any]) -> None:
    pod = valid_pod(job(checkpoint=None, **spec))
    assert not [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"train": "job.py --nodes 2"}, "--nodes is set from"),
        ({"train": "--epochs 3"}, "expects the job file first"),
        ({"checkpoint": None}, "share their checkpoints: set spec.checkpoint"),
        ({"train": None, "command": "a 'b"}, "No closing quotation"),
        ({"podTemplate": {"spec": {"containers": [{"image": "nameless"}]}}}, "podTemplate"),
        ({"podTemplate": {"spec": {"overhead": {"cpu": "-9"}}}}, "cannot request"),
        ({"resources": {"requests": {"cpu": "1e999"}}}, "cannot request inf cpu"),
        ({"resources": {"requests": {"cpu": "much"}}}, "is no quantity"),
    ],
)
def test_what_cannot_be_run_says_why(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        needs_of(job(**spec), REDIS)


@given(POD_SPECS, JUNK, JUNK)
def test_any_template_can_be_scheduled_or_is_refused(
    spec: dict[str, Any], meta: Any, amount: Any
) -> None:
    template, resources = {"spec": spec, "metadata": meta}, {"requests": {"cpu": amount}}
    resource = job(podTemplate=template, resources=resources)
    resource["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    machine = {"key": "spot", "effect": "NoSchedule"}
    node = {"metadata": {"name": "m"}, "spec": {"taints": [machine]}, "status": READY}
    machines = Machines.of([node], [tolerations_of(resource, REDIS)])
    pool = machines.pool([], lambda _: False)
    decide_pods(pool, [ObservedJob("ctr", wanted_of(resource, REDIS))], 0.0, OperatorConfig())


def test_a_training_needs_a_coordinator() -> None:
    with pytest.raises(UsageError, match=r"spec\.coordinator"):
        pod_of(job(), 1, None)
    assert env_of(valid_pod(job(coordinator=REDIS), redis=None))["EDL_COORDINATOR"] == REDIS


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@head",
        "rediss://user:s3cret@head:1/2?ssl_ca_certs=/ca.pem",
        "redis://head?password=s3cret",
        "redis+sentinel://a,b/mesh?sentinel_password=s3cret",
    ],
)
@pytest.mark.parametrize("make", [lambda url: pod_of(job(), 1, url), teachers_at])
def test_a_password_of_redis_is_in_no_pod_but_by_a_secret(
    make: Callable[[str], Object], url: str
) -> None:
    with pytest.raises(UsageError, match=r"password.*Secret") as refused:
        make(url)
    assert "s3cret" not in str(refused.value)
    make("redis://user@head?password_file=/etc/edl/redis/password")


MACHINES = Machines({"m": {}}, frozenset())


def shown(
    phase: str, state: Object | None = None, meta: Object | None = None, **more: Any
) -> Object:
    statuses = [{"name": "node", "state": state}] if state is not None else []
    return {
        "metadata": {"labels": {"edl-dist.io/node": "4"}, **(meta or {})},
        "spec": {"nodeName": "m"},
        "status": {"phase": phase, "containerStatuses": statuses, **more},
    }


def over(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]


@pytest.mark.parametrize(
    ("pod", "code", "said"),
    [
        (shown("Succeeded", over(0)), 0, ""),
        (shown("Failed", over(1, message="a\nb\n\nc\nd")), 1, "b | c | d"),
        (shown("Failed", over(137, reason="OOMKilled")), 137, "OOMKilled"),
        (shown("Failed", reason="Evicted", message="disk is full"), None, "Evicted: disk is full"),
        (shown("Failed", over(143), conditions=DISRUPTED), None, ""),
        (shown("Failed", reason="OutOfcpu"), None, "OutOfcpu"),
    ],
)
def test_how_a_pod_has_ended(pod: Object, code: int | None, said: str) -> None:
    found = node_pod_of(pod, MACHINES)
    assert (found.number, found.ended, found.code, found.message) == (4, True, code, said)
    assert not found.stays


CREATED = {"creationTimestamp": "2026-01-01T00:00:00Z"}
CREATED_S = seconds_of(CREATED["creationTimestamp"])
STARTS = {"waiting": {"reason": "ContainerCreating"}}
PULLS = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


def test_what_a_pod_does() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    runs = node_pod_of(shown("Running", {"running": {}}, conditions=ready), MACHINES)
    assert (runs.runs, runs.ready, runs.machine, runs.stays) == (True, True, "counted", True)
    waits = node_pod_of(shown("Pending", PULLS, CREATED), MACHINES)
    assert (waits.runs, waits.message) == (False, "ImagePullBackOff: no such image")
    begins = node_pod_of(shown("Pending", STARTS, CREATED), MACHINES)
    assert (begins.message, begins.unplaced_since_s) == ("", None)
    told = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    leaves = node_pod_of(shown("Running", {"running": {}}, told), MACHINES)
    assert (leaves.leaves, leaves.stays) == (True, False)


PLACED = {"lastTransitionTime": "2026-01-01T01:00:00Z"}


@pytest.mark.parametrize(
    ("state", "placing", "since_s"),
    [
        (PULLS, {"status": "True", **PLACED}, CREATED_S + 3600),
        (PULLS, {"status": "True"}, CREATED_S),
        ({}, {"status": "True", **PLACED}, None),
        ({}, {"status": "False", "reason": "Unschedulable", **PLACED}, CREATED_S + 3600),
        ({}, {"status": "False", "reason": "SchedulingGated", **PLACED}, None),
    ],
)
def test_a_container_waits_since_its_pod_was_placed(
    state: Object, placing: dict[str, str], since_s: float | None
) -> None:
    pod = shown("Pending", state, CREATED, conditions=[{"type": "PodScheduled", **placing}])
    assert node_pod_of(pod, MACHINES).unplaced_since_s == since_s


def test_what_a_template_has_run_before_may_fail_or_not_begin() -> None:
    pod = shown("Failed", {"waiting": {"reason": "PodInitializing"}})
    assert node_pod_of(pod, MACHINES).code is None
    failed = {"name": "fetch", "state": {"terminated": {"exitCode": 2, "message": "no data"}}}
    pod["status"]["initContainerStatuses"] = [failed]
    found = node_pod_of(pod, MACHINES)
    assert (found.code, found.message) == (1, "no data"), "2 would be a word of our own program"
    pod = shown("Pending", {"waiting": {"reason": "PodInitializing"}}, CREATED)
    pod["status"]["initContainerStatuses"] = [{"name": "fetch", "state": PULLS}]
    found = node_pod_of(pod, MACHINES)
    assert found.message == "ImagePullBackOff: no such image"
    assert found.unplaced_since_s == CREATED_S


@pytest.mark.parametrize("code", [0, 3])
def test_a_node_has_ended_with_its_own_program(code: int) -> None:
    pod = shown("Running", {"terminated": {"exitCode": code}})
    assert not node_pod_of(pod, MACHINES).ended, "the pod is about to end"
    pod["status"]["containerStatuses"].append({"name": "beside", "state": {"running": {}}})
    found = node_pod_of(pod, MACHINES)
    assert (found.ended, found.code, found.sidecars_run) == (True, code, True)


def test_a_ledger_comes_back_as_it_was_written() -> None:
    ledger = PodLedger(
        target=3, next_number=7, failures=2, hopeless=True, counted=frozenset({2, 5}),
        changed_s=1700000000.123456, waiting_since_s=None, started_s=1700000001.5,
        retry_at_s=1700000002.25, placeable=2, placeable_until_s=1700000300.0,
        unplaced_since_s=1700000001.0, why="node 2 ...",
    )  # fmt: skip
    orders = JobActions("ctr", ledger, "running", "grows in 29 s", nodes=3, ready=2)
    status = status_of(job(), orders, 1700000003.0)
    resource = {**job(), "status": {k: v for k, v in status.items() if v is not None}}
    assert ledger_of(resource) == ledger
    later = JobActions("ctr", ledger, "running", "grows in 28 s", nodes=3, ready=2)
    assert status_of(resource, later, 1700000004.0) == status, "seconds that pass are not written"
    ended = {**resource, "status": {**resource["status"], "state": "failed"}}
    assert ledger_of(ended).end == "failed"
    with pytest.raises(UsageError, match="is damaged"):
        ledger_of({**resource, "status": {"counted": 5}})
