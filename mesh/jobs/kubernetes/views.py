"""Conversion of DistillJob resources to the jobs and events that commands show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ....coordinator.job_queue import DesiredJobState, JobProgress, QueuedJob
from ....coordinator.store.records import TimelineEntry
from ....runtime.errors import UsageError
from ...kubernetes.resources import Object, seconds_of
from .resource import facts_of

_UNSEEN: Final = "no operator has seen it yet: docs/how-to/kubernetes.md says how one is run"


def job_of(resource: Object, number: int = 1) -> QueuedJob:
    """Return the job of a resource.

    Args:
        resource: a DistillJob from the API server.
        number: position of the job among all jobs.
    """
    meta, spec = resource["metadata"], resource.get("spec") or {}
    facts = {"min_nodes": 1, "max_nodes": 1, **facts_of(resource)}
    facts |= {"namespace": meta.get("namespace", ""), "uid": meta.get("uid", "")}
    wish = DesiredJobState.from_json({"nodes": spec.get("nodes"), "stop": spec.get("stopped")})
    submitted_ms = _ms(meta.get("creationTimestamp"))
    return QueuedJob(meta["name"], number, facts, submitted_ms, wish, _progress(resource))


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
    nodes = int(status.get("nodes") or 0)
    return JobProgress.from_json(
        {
            "state": status.get("state", "creating"),
            "target": int(status.get("target", nodes)),
            "running": nodes + int(status.get("leaving") or 0),
            "reason": str(status.get("reason", "")),
            "first_ms": _ms(status.get("startedAt")),
            "ended_ms": _ms(status.get("endedAt")),
            "failures": int(status.get("failures") or 0),
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
    kept = list(events)
    found = [_of_event(one) for one in kept]
    seen = {(entry.body["job"], one.get("message")) for entry, one in zip(found, kept, strict=True)}
    for one in resources:
        name = one["metadata"]["name"]
        found.append(_entry(one["metadata"].get("creationTimestamp"), name, "was submitted"))
        for condition in (one.get("status") or {}).get("conditions", ()):
            message = str(condition.get("message", ""))
            if condition["status"] == "True" and (name, message) not in seen:
                text = f"{condition['type']}{_after_colon(message)}"
                found.append(_entry(condition.get("lastTransitionTime"), name, text))
    return sorted(found, key=lambda entry: (entry.at_ms, int(entry.entry_id)))


def _of_event(event: Object) -> TimelineEntry:
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
    """Return an entry; its id, the resource version, orders events of the same second."""
    order = version if version.isdecimal() else "0"
    return TimelineEntry(order, _ms(at), {"kind": "job", "job": job, "what": what})


def _ms(time: Any) -> int:
    """Return milliseconds since 1970; 0: unknown."""
    try:
        return int(seconds_of(time) * 1000)
    except UsageError:
        return 0
