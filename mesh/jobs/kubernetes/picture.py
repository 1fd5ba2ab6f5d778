"""A resource as `edl job` shows jobs: what was asked, what its operator says has become of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ....coordinator.queue import Entry, Progress, QueuedJob, Wish
from ....errors import UsageError
from ...kubernetes.resources import Object, seconds_of
from .translate import facts_of

_UNSEEN: Final = "no operator has seen it yet: docs/operator.md says how one is run"


def job_of(resource: Object, number: int = 1) -> QueuedJob:
    """One job.

    Args:
        resource: a DistillJob, as the API server gives it.
        number: of its place among all.
    """
    meta, spec = resource["metadata"], resource.get("spec") or {}
    told = {"min_nodes": 1, "max_nodes": 1, **facts_of(resource)}
    told |= {"namespace": meta.get("namespace", ""), "uid": meta.get("uid", "")}
    wish = Wish.from_json({"nodes": spec.get("nodes"), "stop": spec.get("stopped")})
    submitted_ms = _ms(meta.get("creationTimestamp"))
    return QueuedJob(meta["name"], number, told, submitted_ms, wish, _progress(resource))


def jobs_of(resources: Iterable[Object]) -> list[QueuedJob]:
    """All, in the order of their submission."""
    ordered = sorted(
        resources,
        key=lambda one: (_ms(one["metadata"].get("creationTimestamp")), one["metadata"]["name"]),
    )
    return [job_of(one, number) for number, one in enumerate(ordered, start=1)]


def _progress(resource: Object) -> Progress:
    status: Mapping[str, Any] = resource.get("status") or {}
    if "observedGeneration" not in status:
        return Progress(reason=_UNSEEN)
    nodes = int(status.get("nodes") or 0)
    return Progress.from_json(
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


def entries_of(resources: Iterable[Object], events: Iterable[Object]) -> list[Entry]:
    """The timeline of jobs, oldest first: when they came, their Events, how their status changed.

    An Event is gone after a while (an hour, in most clusters); a condition of the status stays with
    its resource, and tells since when it has been so.

    Args:
        resources: the jobs.
        events: those about them.
    """
    told = list(events)
    found = [_of_event(one) for one in told]
    said = {(entry.body["job"], one.get("message")) for entry, one in zip(found, told, strict=True)}
    for one in resources:
        name = one["metadata"]["name"]
        found.append(_entry(one["metadata"].get("creationTimestamp"), name, "was submitted"))
        for condition in (one.get("status") or {}).get("conditions", ()):
            message = str(condition.get("message", ""))
            if condition["status"] == "True" and (name, message) not in said:
                words = f"{condition['type']}{_behind(message)}"
                found.append(_entry(condition.get("lastTransitionTime"), name, words))
    return sorted(found, key=lambda entry: (entry.at_ms, int(entry.entry_id)))


def _of_event(event: Object) -> Entry:
    at = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    message, count = str(event.get("message", "")).strip(), int(event.get("count") or 1)
    words = f"{event.get('reason', '')}{_behind(message)}"
    if count > 1:
        words += f" ({count} times)"
    version = str(event["metadata"].get("resourceVersion", ""))
    return _entry(at, event["involvedObject"]["name"], words, version)


def _behind(message: str) -> str:
    return f": {message}" if message else ""


def _entry(at: Any, job: str, what: str, version: str = "") -> Entry:
    """One entry; times are by the second, so versions say what of a second came first."""
    order = version if version.isdecimal() else "0"
    return Entry(order, _ms(at), {"kind": "job", "job": job, "what": what})


def _ms(time: Any) -> int:
    """Milliseconds since 1970; 0: it was not said."""
    try:
        return int(seconds_of(time) * 1000)
    except UsageError:
        return 0
