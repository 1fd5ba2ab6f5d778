"""Converts job files to DistillJob resources, and resources to jobs and timeline entries."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...coordinator.job_queue import DesiredJobState, JobProgress, QueuedJob
from ...coordinator.store.records import Facts, TimelineEntry
from ...coordinator.store.redis_url import holds_password
from ...runtime.errors import UsageError
from ..kubernetes.resources import DISTILL_JOB, GPU, Object, seconds_of
from .spec import QueuedJobSpec

#: Names that the schema of the resource allows; names of pods append a number.
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
#: Keys of a job's file by keys of the resource.
_KEYS: Final = {
    "image": "image",
    "train": "train",
    "command": "command",
    "minNodes": "min_nodes",
    "maxNodes": "max_nodes",
    "priority": "priority",
    "retries": "retries",
    "graceSeconds": "grace_s",
    "env": "env",
    "checkpoint": "checkpoint_claim",
    "coordinator": "coordinator",
}


def to_resource(spec: QueuedJobSpec, namespace: str = "") -> Object:
    """Return the resource of a job.

    Args:
        spec: the job; its `folder` does not apply to a cluster and is left out.
        namespace: namespace of the resource; empty: none is set.

    Raises:
        UsageError: the name is invalid on a cluster, the image is missing, or the coordinator's URL
            has a password.
    """
    if not NAME.fullmatch(spec.name):
        raise UsageError(
            "name: on Kubernetes a name is 1 to 52 small letters, digits or '-', beginning and"
            f" ending with a letter or digit, not {spec.name!r}"
        )
    if not spec.image:
        raise UsageError(
            "image: a job on Kubernetes needs a container image that has its program and data:"
            " docs/how-to/elastic-jobs.md shows one"
        )
    if holds_password(spec.coordinator):
        raise UsageError(
            "coordinator: the URL contains a password, which the resource would show: mount a"
            " Secret in the job's pods (docs/how-to/kubernetes.md), and name its file in the URL"
            " as ?password_file=FILE"
        )
    values: Object = {key: getattr(spec, name) for key, name in _KEYS.items()}
    values["graceSeconds"] = math.ceil(spec.grace_s)  # grace periods of pods are whole seconds
    values["env"] = dict(spec.env)
    values["resources"] = _container_resources(spec.resources)
    return {
        "apiVersion": DISTILL_JOB.api_version,
        "kind": DISTILL_JOB.kind,
        "metadata": {"name": spec.name, **({"namespace": namespace} if namespace else {})},
        "spec": {key: value for key, value in values.items() if value or value == 0},
    }


def _container_resources(needs: Mapping[str, Any]) -> Object:
    """Return requests and limits of a container.

    The limit of each resource except `cpu` is its request. Cores are not limited: a node may use
    idle cores beyond its request.
    """
    requests = {GPU if name == "gpu" else name: str(amount) for name, amount in needs.items()}
    limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def facts_of(resource: Object) -> Facts:
    """Return the values of a resource, unchecked, by the keys of a job's file.

    Keys without a value are left out. `QueuedJobSpec(**facts)` equals the argument of
    `to_resource`, with three exceptions: `folder` is missing, `grace_s` is rounded up, and
    "nvidia.com/gpu" has become `gpu`.
    """
    spec = resource.get("spec") or {}
    facts: dict[str, Any] = {"name": resource["metadata"]["name"]}
    facts |= {name: spec[key] for key, name in _KEYS.items() if key in spec}
    claims = spec.get("resources") or {}
    # A limit without a request is also the request.
    needs = {**(claims.get("limits") or {}), **(claims.get("requests") or {})}
    if needs:
        facts["resources"] = {("gpu" if name == GPU else name): needs[name] for name in needs}
    return facts


def manifest(spec: QueuedJobSpec, namespace: str) -> Iterator[str]:
    """Yield the lines of a YAML document for `kubectl apply -f -`, with notes as comments.

    Args:
        spec: the job.
        namespace: namespace of the resource; empty: none is set.

    Raises:
        UsageError: as for `to_resource`.
    """
    import yaml

    yield "---"
    for note in notes(spec):
        yield f"# {note}"
    resource = to_resource(spec, namespace)
    # Without allow_unicode, YAML escapes characters that it treats as line breaks.
    yield from yaml.safe_dump(resource, sort_keys=False, width=100).rstrip("\n").split("\n")


def notes(spec: QueuedJobSpec) -> list[str]:
    """Return hints about keys that a cluster ignores or needs, one sentence each."""
    hints = []
    if spec.folder != Path():
        hints.append(
            "folder is ignored: nodes on Kubernetes run in the working directory of their image"
        )
    if not spec.resources.keys() - {"memory", "ephemeral-storage"}:
        hints.append(
            "resources name neither cpu nor gpu: the job seems to need nothing, and grows to"
            " max_nodes"
        )
    return hints


_UNSEEN: Final = "no operator has seen it yet: docs/how-to/kubernetes.md shows how to run one"


def job_of(resource: Object, number: int = 1) -> QueuedJob:
    """Return the job of a resource.

    Args:
        resource: a DistillJob from the API server.
        number: position of the job among all jobs.
    """
    meta, spec = resource["metadata"], resource.get("spec") or {}
    facts = {"min_nodes": 1, "max_nodes": 1, **facts_of(resource)}
    facts |= {"namespace": meta.get("namespace", ""), "uid": meta.get("uid", "")}
    desired = DesiredJobState.from_json({"nodes": spec.get("nodes"), "stop": spec.get("stopped")})
    submitted_ms = _ms(meta.get("creationTimestamp"))
    return QueuedJob(meta["name"], number, facts, submitted_ms, desired, _progress(resource))


def jobs_of(resources: Iterable[Object]) -> list[QueuedJob]:
    """Return the jobs of resources, in the order of submission."""
    ordered = sorted(
        resources,
        key=lambda one: (_ms(one["metadata"].get("creationTimestamp")), one["metadata"]["name"]),
    )
    return [job_of(one, number) for number, one in enumerate(ordered, start=1)]


def _progress(resource: Object) -> JobProgress:
    status: Mapping[str, Any] = resource.get("status") or {}
    if "observedGeneration" not in status:
        return JobProgress(reason=_UNSEEN)
    state = status.get("state", "creating")
    if state == "stopped" and not (resource.get("spec") or {}).get("stopped"):
        return JobProgress(reason="it is to continue, which no operator has seen yet")
    nodes = int(status.get("nodes") or 0)
    return JobProgress.from_json(
        {
            "state": state,
            "target": int(status.get("target", nodes)),
            "running": nodes + int(status.get("leaving") or 0),
            "reason": str(status.get("reason", "")),
            "first_ms": _ms(status.get("startedAt")),
            "ended_ms": _ms(status.get("endedAt")),
            "failures": int(status.get("failures") or 0),
            "done": status.get("done"),
            "hopeless": status.get("hopeless"),
        }
    )


def entries_of(resources: Iterable[Object], events: Iterable[Object]) -> list[TimelineEntry]:
    """Return the timeline of jobs, oldest first: submissions, Events and conditions.

    A cluster keeps Events for about an hour. Conditions stay in the status of their resource, so
    they replace Events that are gone.

    Args:
        resources: DistillJobs.
        events: Events about them.
    """
    entries: list[TimelineEntry] = []
    described: set[tuple[Any, Any]] = set()  # job and message of each Event
    for event in events:
        entry = _event_entry(event)
        entries.append(entry)
        described.add((entry.body["job"], event.get("message")))
    for resource in resources:
        name = resource["metadata"]["name"]
        entries.append(_entry(resource["metadata"].get("creationTimestamp"), name, "was submitted"))
        for condition in (resource.get("status") or {}).get("conditions", ()):
            message = str(condition.get("message", ""))
            if condition["status"] == "True" and (name, message) not in described:
                text = f"{condition['type']}{_after_colon(message)}"
                entries.append(_entry(condition.get("lastTransitionTime"), name, text))
    return sorted(entries, key=lambda entry: (entry.at_ms, int(entry.entry_id)))


def _event_entry(event: Object) -> TimelineEntry:
    at = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    message, count = str(event.get("message", "")).strip(), int(event.get("count") or 1)
    text = f"{event.get('reason', '')}{_after_colon(message)}"
    if count > 1:
        text += f" ({count} times)"
    version = str(event["metadata"].get("resourceVersion", ""))
    return _entry(at, event["involvedObject"]["name"], text, version)


def _after_colon(message: str) -> str:
    return f": {message}" if message else ""


def _entry(at: Any, job: str, what: str, version: str = "") -> TimelineEntry:
    """Return an entry. Its id is the resource version, which orders events of the same second."""
    order = version if version.isdecimal() else "0"
    return TimelineEntry(order, _ms(at), {"kind": "job", "job": job, "what": what})


def _ms(time: Any) -> int:
    """Return milliseconds since 1970; 0: unknown."""
    try:
        return int(seconds_of(time) * 1000)
    except UsageError:
        return 0
