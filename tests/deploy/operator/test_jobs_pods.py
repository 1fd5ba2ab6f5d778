"""The pod of a job's node: valid, non-root, told what it needs to know; and what is seen of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from edl.deploy.operator.capacity import Machines
from edl.deploy.operator.jobs.observe import wanted_of
from edl.deploy.operator.jobs.pods import needs_of, pod_of, tolerations_of
from edl.deploy.operator.jobs.seeing import seen
from edl.deploy.operator.jobs.status import ledger_of, status_of
from edl.errors import UsageError
from edl.mesh.kubernetes.resources import Object, seconds_of
from edl.scheduler.job_pods import JobSeen, Ledger, Orders, PodsConfig, decide_pods
from edl.tests.deploy.command_lines import check
from edl.tests.deploy.operator.teachers_world import JUNK, POD_SPECS

REDIS = "redis://head:6379"
READY = {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}


def job(**spec: Any) -> Object:
    meta = {"name": "ctr", "namespace": "lab", "uid": "12345678-9abc", "generation": 3}
    given = {"image": "edl-dist:1", "train": "job.py --epochs 3", "maxNodes": 4, **spec}
    return {
        "apiVersion": "edl-dist.io/v1alpha1",
        "kind": "DistillJob",
        "metadata": meta,
        "spec": {key: value for key, value in given.items() if value is not None},
    }


def container(pod: Object) -> Object:
    found: Object = pod["spec"]["containers"][0]
    return found


def env_of(pod: Object) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(pod)["env"]}


def test_a_node_of_a_training() -> None:
    pod = pod_of(job(resources={"requests": {"cpu": "2"}}, checkpoint="shared"), 3, REDIS)
    assert pod["metadata"]["name"] == "ctr-3"
    assert pod["metadata"]["labels"]["edl-dist.io/node"] == "3"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "12345678-9abc"
    assert container(pod)["args"] == [
        "student", "train", "job.py", "--epochs", "3", "--job", "ctr", "--nodes", "1:4",
        "--coordinator", "$(EDL_COORDINATOR)",
        "--checkpoint", "/var/lib/edl/checkpoints/ctr-12345678",
    ]  # fmt: skip
    check(["edl", *container(pod)["args"]], {"EDL_COORDINATOR": REDIS})
    env = env_of(pod)
    assert (env["EDL_JOB"], env["EDL_JOB_NODE"], env["EDL_COORDINATOR"]) == ("ctr", "3", REDIS)
    claims = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert needs_of(job(resources={"requests": {"cpu": "2"}}), REDIS) == {"cpu": 2.0, "pods": 1.0}


def test_any_other_program_and_words_in_which_kubernetes_finds_nothing() -> None:
    pod = pod_of(
        job(train=None, command="sh -c 'echo $(date)'", env={"A": "$(B)"}, graceSeconds=5), 1, None
    )
    assert container(pod)["command"] == ["sh", "-c", "echo $$(date)"]
    assert env_of(pod)["A"] == "$$(B)"
    assert "EDL_COORDINATOR" not in env_of(pod)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5
    assert pod["spec"]["restartPolicy"] == "Never"


def test_what_a_template_says_besides() -> None:
    secret = {"secretKeyRef": {"name": "redis", "key": "url"}}
    template = {
        "metadata": {
            "labels": {"team": "ads", "edl-dist.io/job": "another"},
            "annotations": {"note": "x"},
        },
        "spec": {
            "nodeSelector": {"gpu": "t4"},
            "restartPolicy": "Always",
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "securityContext": {"fsGroup": 7},
            "volumes": [{"name": "checkpoints", "nfs": {"server": "s", "path": "/"}}],
            "containers": [
                {
                    "name": "node",
                    "env": [{"name": "EDL_COORDINATOR", "valueFrom": secret}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                },
                {"name": "beside", "image": "y"},
            ],
        },
    }
    pod = pod_of(job(podTemplate=template), 1, REDIS)
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert (labels["team"], labels["edl-dist.io/job"]) == ("ads", "ctr")
    assert pod["metadata"]["annotations"] == {"note": "x"}
    assert spec["restartPolicy"] == "Never"
    assert spec["nodeSelector"] == {"gpu": "t4"}
    assert len(spec["tolerations"]) == 3
    assert spec["securityContext"]["fsGroup"] == 7
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert {"name": "checkpoints", "nfs": {"server": "s", "path": "/"}} in spec["volumes"]
    assert [one["name"] for one in spec["containers"]] == ["node", "beside"]
    assert env_of(pod)["EDL_COORDINATOR"] == secret
    mounts = {one["mountPath"]: one["name"] for one in container(pod)["volumeMounts"]}
    assert mounts["/data"] == "data"
    assert mounts["/tmp"] == "tmp"


@pytest.mark.parametrize("spec", [{}, {"train": None, "command": "work"}, {"checkpoint": "c"}])
@pytest.mark.parametrize("version", ["1.30", "1.35"])
def test_kubernetes_takes_it(spec: dict[str, Any], version: str) -> None:
    import kubernetes_validate

    pod = pod_of(job(resources={"limits": {"nvidia.com/gpu": 1}}, **spec), 1, REDIS)
    kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"train": "job.py --nodes 2"}, "--nodes is what"),
        ({"train": "--epochs 3"}, "expects the job file first"),
        ({"train": None, "command": "a 'b"}, "No closing quotation"),
        ({"podTemplate": {"spec": {"containers": [{"image": "nameless"}]}}}, "podTemplate"),
        ({"podTemplate": {"spec": {"containers": "none"}}}, "podTemplate"),
        ({"podTemplate": {"spec": "none"}}, "podTemplate"),
        ({"podTemplate": {"metadata": {"labels": "none"}}}, "podTemplate"),
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
    resource = job(
        podTemplate={"spec": spec, "metadata": meta}, resources={"requests": {"cpu": amount}}
    )
    resource["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    machine = {"key": "spot", "effect": "NoSchedule"}
    node = {"metadata": {"name": "m"}, "spec": {"taints": [machine]}, "status": READY}
    machines = Machines.of([node], [tolerations_of(resource, REDIS)])
    pool = machines.pool([], lambda _: False)
    decide_pods(pool, [JobSeen("ctr", wanted_of(resource, REDIS))], 0.0, PodsConfig())


def test_a_training_needs_a_coordinator() -> None:
    with pytest.raises(UsageError, match=r"spec\.coordinator"):
        pod_of(job(), 1, None)
    assert env_of(pod_of(job(coordinator=REDIS), 1, None))["EDL_COORDINATOR"] == REDIS


MACHINES = Machines({"m": {}}, frozenset())


def shown(
    phase: str, state: dict[str, Any] | None = None, meta: dict[str, Any] | None = None, **more: Any
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
    found = seen(pod, MACHINES)
    assert (found.number, found.ended, found.code, found.said) == (4, True, code, said)
    assert not found.stays


def test_what_a_pod_does() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    runs = seen(shown("Running", {"running": {}}, conditions=ready), MACHINES)
    assert (runs.runs, runs.ready, runs.machine, runs.stays) == (True, True, "counted", True)
    pulls = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    since = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    waits = seen(shown("Pending", pulls, since), MACHINES)
    assert (waits.runs, waits.said) == (False, "ImagePullBackOff: no such image")
    assert waits.unplaced_since_s == seconds_of("2026-01-01T00:00:00Z")
    begins = seen(shown("Pending", {"waiting": {"reason": "ContainerCreating"}}), MACHINES)
    assert (begins.said, begins.unplaced_since_s) == ("", None)
    leaves = seen(
        shown("Running", {"running": {}}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}), MACHINES
    )
    assert leaves.leaves
    assert not leaves.stays


def test_a_container_waits_since_its_pod_was_placed() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    created = {"creationTimestamp": "2026-01-01T00:00:00Z"}

    def since_s(state: dict[str, Any], **placing: str) -> float | None:
        conditions = [{"type": "PodScheduled", **placing}]
        return seen(
            shown("Pending", state, created, conditions=conditions), MACHINES
        ).unplaced_since_s

    at = {"lastTransitionTime": "2026-01-01T01:00:00Z"}
    placed_s = seconds_of(at["lastTransitionTime"])
    assert since_s(waiting, status="True", **at) == placed_s
    assert since_s(waiting, status="True") == seconds_of(created["creationTimestamp"])
    assert since_s({}, status="True", **at) is None
    assert since_s({}, status="False", reason="Unschedulable", **at) == placed_s
    assert since_s({}, status="False", reason="SchedulingGated", **at) is None


def test_what_a_template_has_run_before_may_fail_or_not_begin() -> None:
    before = {"name": "fetch", "state": {"terminated": {"exitCode": 2, "message": "no data"}}}
    pod = shown("Failed", {"waiting": {"reason": "PodInitializing"}})
    assert seen(pod, MACHINES).code is None
    pod["status"]["initContainerStatuses"] = [before]
    found = seen(pod, MACHINES)
    assert (found.code, found.said) == (1, "no data"), "2 would be a word of our own program"
    pod = shown(
        "Pending",
        {"waiting": {"reason": "PodInitializing"}},
        {"creationTimestamp": "2026-01-01T00:00:00Z"},
    )
    pulls = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    pod["status"]["initContainerStatuses"] = [{"name": "fetch", "state": pulls}]
    found = seen(pod, MACHINES)
    assert found.said == "ErrImagePull: not found"
    assert found.unplaced_since_s == seconds_of("2026-01-01T00:00:00Z")


@pytest.mark.parametrize("code", [0, 3])
def test_a_node_has_ended_with_its_own_program(code: int) -> None:
    pod = shown("Running", {"terminated": {"exitCode": code}})
    assert not seen(pod, MACHINES).ended, "the pod is about to end"
    beside = {"name": "beside", "state": {"running": {}}}
    pod["status"]["containerStatuses"].append(beside)
    found = seen(pod, MACHINES)
    assert (found.ended, found.code, found.lingers) == (True, code, True)


def test_a_ledger_comes_back_as_it_was_written() -> None:
    ledger = Ledger(
        target=3, next_number=7, failures=2, hopeless=True, counted=frozenset({2, 5}),
        changed_s=1700000000.123456, waiting_since_s=None, started_s=1700000001.5,
        retry_s=1700000002.25, fits=2, fits_until_s=1700000300.0, why="node 2 ...",
    )  # fmt: skip
    orders = Orders("ctr", ledger, "running", "grows in 29 s", nodes=3, ready=2)
    status = status_of(job(), orders, 1700000003.0)
    resource = {**job(), "status": {k: v for k, v in status.items() if v is not None}}
    assert ledger_of(resource) == ledger
    later = Orders("ctr", ledger, "running", "grows in 28 s", nodes=3, ready=2)
    assert status_of(resource, later, 1700000004.0) == status, "seconds that pass are not written"
    ended = {**resource, "status": {**resource["status"], "state": "failed"}}
    assert ledger_of(ended).end == "failed"
    with pytest.raises(UsageError, match="is damaged"):
        ledger_of({**resource, "status": {"counted": 5}})


def test_the_example_of_the_manifests_gives_such_a_pod() -> None:
    import kubernetes_validate

    folder = Path(__file__).parents[3] / "deploy" / "kubernetes" / "examples"
    resource = yaml.safe_load((folder / "distilljob.yaml").read_text())
    resource["metadata"] |= {"namespace": "edl-dist", "uid": "12345678-9abc"}
    pod = pod_of(resource, 1, None)
    kubernetes_validate.validate(pod, "1.30", strict=True)
    check(["edl", *container(pod)["args"]], {"EDL_COORDINATOR": env_of(pod)["EDL_COORDINATOR"]})
    assert needs_of(resource, None) == {"cpu": 2.0, "GiB of memory": 2.0, "pods": 1.0}
