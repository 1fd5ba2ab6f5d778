"""Jobs as tables, lines and JSON for commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...coordinator.job_queue import QueuedJob
from ...coordinator.store.records import TimelineEntry
from .spec import QueuedJobSpec

if TYPE_CHECKING:
    from rich.table import Table

    from .backend import Listing

_COLORS = {
    "creating": "yellow",
    "running": "green",
    "scaling": "cyan",
    "failed": "red",
    "lost": "red",
    "stopped": "dim",
}


def table(listing: Listing) -> Table:
    """Return a table with a row for each job."""
    from rich.markup import escape
    from rich.table import Table

    rows = Table("job", "state", "nodes", "min:max", "priority", "waited", "failures", "why")
    for job in listing.jobs:
        progress, (state, reason) = job.progress, _state(job, listing)
        color = _COLORS.get(state, "default")
        limit = "" if job.desired.nodes is None else f" (at most {job.desired.nodes})"
        rows.add_row(
            job.name,
            f"[{color}]{state}",
            _nodes(job),
            f"{job.spec.get('min_nodes', '?')}:{job.spec.get('max_nodes', '?')}{limit}",
            str(job.spec.get("priority", "")),
            f"{job.pending_s(listing.now_ms):.1f} s",
            str(progress.failures),
            escape(reason),
        )
    return rows


def _state(job: QueuedJob, listing: Listing) -> tuple[str, str]:
    """Return the state of a job, which is "lost" if its fleet does not answer, and the reason."""
    if job.name in listing.lost:
        return (
            "lost",
            "its fleet does not answer any more: the next 'edl agent jobs' starts the job again",
        )
    return job.progress.state, job.progress.reason


def _nodes(job: QueuedJob) -> str:
    progress = job.progress
    if progress.ended or progress.running == progress.target:
        return str(progress.running)
    return f"{progress.running} -> {progress.target}"


def to_json(listing: Listing) -> dict[str, Any]:
    """Return the listing as JSON values."""
    return {
        **listing.more,
        "jobs": [
            {
                "name": job.name,
                "number": job.number,
                "spec": dict(job.spec),
                "asked_nodes": job.desired.nodes,
                "asked_to_stop": job.desired.stop,
                "submitted_ms": job.submitted_ms,
                "pending_s": round(job.pending_s(listing.now_ms), 3),
                **job.progress.to_json(),
                **dict(zip(("state", "reason"), _state(job, listing), strict=True)),
            }
            for job in listing.jobs
        ],
    }


def event_line(event: TimelineEntry) -> str:
    """Describe an entry of the timeline."""
    at = datetime.fromtimestamp(event.at_ms / 1000).strftime("%H:%M:%S")
    body = event.body
    match body.get("kind"):
        case "job":
            return f"{at}  {body.get('job')}: {body.get('what')}"
        case "kept":
            slots = ", ".join(map(str, body.get("slots", ())))
            return f"{at}  reservation {body.get('reservation')} has slots {slots}"
        case "runner":
            return f"{at}  {body.get('host')} runs jobs on {body.get('slots')} slots"
    return f"{at}  {dict(body)}"


def plan(spec: QueuedJobSpec) -> Iterator[str]:
    """Yield lines that describe what a fleet would run."""
    least, most = spec.min_nodes, spec.max_nodes
    nodes = f"{least} nodes" if least == most else f"{least} to {most} nodes"
    yield f"job {spec.name}: {nodes}, priority {spec.priority}"
    yield f"each node: {shlex.join(spec.arguments(Path('FOLDER-OF-THE-FLEET')))}"
    yield f"in {spec.folder}"
    for name, value in spec.env.items():
        yield f"with {name}={value}"
    yield f"grace period {spec.grace_s:g} s; up to {spec.retries} failures"
    if note := spec.fleet_note():
        yield note
    yield "nothing was submitted"
