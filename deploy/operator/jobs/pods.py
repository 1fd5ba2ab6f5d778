"""Manifest of the pod that runs one node of a DistillJob."""

from __future__ import annotations

import shlex
from typing import Final

from ....mesh.jobs.spec import QueuedJobSpec
from ....mesh.kubernetes.resources import NODE_CONTAINER, Object, labels_of, owner_reference
from ....runtime.errors import UsageError
from ..capacity import SILENT_S, checked_requests_of
from ..templates import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    check_coordinator,
    escaped,
    merged,
    unreachable_tolerations,
)

#: Folder of checkpoints in the container. It is on the volume claim that the job names, else on an
#: empty volume of the pod.
CHECKPOINTS: Final = "/var/lib/edl/checkpoints"


def spec_of(job: Object) -> QueuedJobSpec:
    """Return the validated spec of a DistillJob.

    Raises:
        UsageError: the spec is invalid; the message has the reason.
    """
    spec, meta = job.get("spec", {}), job["metadata"]
    try:
        return QueuedJobSpec(
            name=meta["name"],
            train=spec.get("train", ""),
            command=spec.get("command", ""),
            min_nodes=spec.get("minNodes", 1),
            max_nodes=spec.get("maxNodes", 1),
            env=spec.get("env") or {},
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(str(error)) from None


def pod_of(job: Object, number: int, coordinator: str | None) -> Object:
    """Return the manifest of a node's pod.

    Args:
        job: the DistillJob.
        number: number of the node.
        coordinator: Redis URL of the mesh, if the job names none.

    Raises:
        UsageError: the job is invalid; the message has the reason.
    """
    name, spec = job["metadata"]["name"], job["spec"]
    template = spec.get("podTemplate") or {}
    url = spec.get("coordinator") or coordinator
    try:
        pod_spec = merged(_pod_spec(job, number, url), template.get("spec") or {})
        meta = template.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), **labels_of("student", job=name, node=str(number))}
        annotations = dict(meta.get("annotations") or {})
        _check_training(job, pod_spec)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"podTemplate is not a valid pod template: {error}") from None
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{number}",
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(job)],
        },
        # The operator decides whether a node that has ended is replaced.
        "spec": {**pod_spec, "restartPolicy": "Never"},
    }


def needs_of(job: Object, coordinator: str | None) -> dict[str, float]:
    """Return the resources that a node requests; arguments and errors are those of `pod_of`."""
    return checked_requests_of(pod_of(job, 0, coordinator)["spec"])


def redis_url_of(job: Object, coordinator: str | None) -> str:
    """Return the Redis URL of a job's nodes; empty: not in the pod, so it is in a Secret.

    Arguments and errors are those of `pod_of`.
    """
    variables = _node_container(pod_of(job, 0, coordinator)["spec"])["env"]
    found = (each.get("value") for each in variables if each["name"] == "EDL_COORDINATOR")
    return str(next(found, "") or "")


def tolerations_of(job: Object, coordinator: str | None) -> list[Object]:
    """Return the tolerations of a job's nodes; empty if the job is invalid."""
    try:
        tolerations = pod_of(job, 0, coordinator)["spec"]["tolerations"]
    except UsageError:
        return []
    return [toleration for toleration in tolerations if isinstance(toleration, dict)]


def _pod_spec(job: Object, number: int, url: str | None) -> Object:
    spec = job["spec"]
    claim = spec.get("checkpoint")
    checkpoint_volume: Object = (
        {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    )
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The kernel drops SIGTERM for a process 1 without a handler, and a user's command may have
        # none. With a shared namespace, the command is not process 1.
        "shareProcessNamespace": not spec.get("train"),
        "terminationGracePeriodSeconds": spec.get("graceSeconds", 60),
        "securityContext": POD_SECURITY,
        "tolerations": unreachable_tolerations(SILENT_S),
        "containers": [
            {
                "name": NODE_CONTAINER,
                "image": spec["image"],
                **_program(job),
                "env": _env(job, number, url),
                "resources": spec.get("resources") or {},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "state", "mountPath": "/var/lib/edl"},
                    {"name": "checkpoints", "mountPath": CHECKPOINTS},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "state", "emptyDir": {}},
            {"name": "checkpoints", **checkpoint_volume},
            # Data loaders with workers keep batches here; a container has 64 MB by default.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _node_container(pod_spec: Object) -> Object:
    containers: list[Object] = pod_spec["containers"]
    return next(one for one in containers if one["name"] == NODE_CONTAINER)


def _check_training(job: Object, pod_spec: Object) -> None:
    """Check that the nodes of a training can reach the mesh's Redis and share checkpoints.

    Raises:
        UsageError: neither the job nor its template names a URL or a shared location, or the URL
            contains a password.
    """
    container = _node_container(pod_spec)
    coordinator_known = check_coordinator(container) or container.get("envFrom")
    if job["spec"].get("train") and not coordinator_known:
        raise UsageError(
            "the job's nodes meet in the mesh's Redis: set the URL of Redis as spec.coordinator, or"
            " start the operator with --redis"
        )
    volumes = [volume for volume in pod_spec["volumes"] if volume["name"] == "checkpoints"]
    shared = not any("emptyDir" in volume for volume in volumes)
    used = any(CHECKPOINTS in word for word in container.get("args") or ())
    if used and not shared and spec_of(job).max_nodes > 1:
        raise UsageError(
            "the job's nodes share their checkpoints: set spec.checkpoint to a volume claim that"
            " all of them can write, or let spec.train name a location that all of them reach, as"
            " in --checkpoint s3://..."
        )


def _program(job: Object) -> dict[str, list[str]]:
    """Return the arguments of the image's entry point, or the command that replaces it."""
    spec = spec_of(job)
    if not spec.trains:
        return {"command": [escaped(word) for word in shlex.split(spec.command)]}
    # The uid keeps a later job of the same name from resuming these checkpoints.
    folder = f"{CHECKPOINTS}/{spec.name}-{job['metadata']['uid'][:8]}"
    return {"args": [escaped(word) for word in spec.training_arguments(folder)]}


def _env(job: Object, number: int, url: str | None) -> list[Object]:
    variables = {"EDL_JOB": job["metadata"]["name"], "EDL_JOB_NODE": str(number), "HOME": "/tmp"}
    if url:
        variables["EDL_COORDINATOR"] = url
    variables |= {key: escaped(value) for key, value in spec_of(job).env.items()}
    return [{"name": key, "value": value} for key, value in variables.items()]
