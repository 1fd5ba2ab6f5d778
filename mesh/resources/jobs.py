"""Elastic jobs, in a queue or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ...coordinator.job_queue import QueuedJob
from ...coordinator.store.records import TimelineEntry
from ...runtime.errors import UsageError
from ..jobs import views
from ..jobs.backend import JobBackend, cluster_namespace, open_backend, wait_for_end
from ..jobs.spec import QueuedJobSpec
from .resource_kind import ResourceKind, ResourceList, facts_table

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Number of latest events in which `edl describe` looks for events of a job.
_EVENTS = 1000


class JobKind(ResourceKind):
    name = "job"
    alternatives: ClassVar = {"drain": "'edl delete job NAME' stops it at a safe point"}

    def get(self, name: str, service: str) -> ResourceList:
        from rich.console import Group
        from rich.text import Text

        if service:
            raise UsageError("jobs have no service: 'edl get students --service NAME' shows those")
        with self.backend() as backend:
            listing = backend.listing()
        if name:
            listing = replace(listing, jobs=[listing.find(name)])
        no_job = Text(f"no job in {listing.location}: 'edl apply -f JOB.yaml' adds one")
        table = views.table(listing) if listing.jobs else no_job
        return ResourceList(views.to_json(listing), Group(Text(listing.head), table))

    def describe(self, name: str) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        (facts,) = self.get(name, "").body["jobs"]
        spec = facts.pop("spec")
        history = [one for one in self.events(_EVENTS) if one.body.get("job") == name]
        return Group(facts_table(facts | spec), *(Text(views.event_line(one)) for one in history))

    def logs(self, name: str, follow: bool) -> Iterator[str]:
        with self.backend() as backend:
            yield from backend.log_lines(backend.listing().find(name), follow)

    def scale(self, name: str, size: str) -> str:
        if size != "auto" and not size.isdecimal():
            raise UsageError(f"expects a number of nodes or 'auto', got {size!r:.40}")
        count = None if size == "auto" else int(size)
        with self.backend() as backend:
            job = backend.listing().find(name)
            _check_limits(job, count)
            _check_accepted(backend.scale(job, count), name)
        size_text = "as many nodes as there is room for" if count is None else f"{count} nodes"
        return f"job {name} is to run with {size_text}"

    def delete(self, name: str, wait_s: float) -> str:
        with self.backend() as backend:
            listing = backend.listing()
            job = listing.find(name)
            _check_accepted(backend.stop(job), name)
            if wait_s:
                return f"job {name}: {wait_for_end(backend, job, wait_s).state}"
            return f"job {name} is to stop{listing.stop_note}"

    def submit(self, spec: QueuedJobSpec) -> list[str]:
        """Add a job; return lines about what happens now."""
        with self.backend() as backend:
            return backend.submit(spec)

    def events(self, last: int) -> list[TimelineEntry]:
        """Return the latest `last` events of all jobs, oldest first; 0: all."""
        with self.backend() as backend:
            return backend.events(last)

    def plan(self, spec: QueuedJobSpec) -> Iterator[str]:
        """Return lines that describe what `submit` would run, without connecting.

        Raises:
            UsageError: the job cannot run in this mesh.
        """
        if self.namespace is None:
            return views.plan(spec)
        from ..jobs.kubernetes_resource import manifest

        return manifest(spec, self.namespace)

    @property
    def namespace(self) -> str | None:
        """Namespace of the jobs on a cluster; None: the jobs are in a queue."""
        return cluster_namespace(self.mesh)

    def backend(self) -> closing[JobBackend]:
        """Connect to the queue or the cluster of the jobs while a `with` block runs."""
        return closing(open_backend(self.mesh))


def _check_limits(job: QueuedJob, count: int | None) -> None:
    least, most = int(job.spec.get("min_nodes", 1)), int(job.spec.get("max_nodes", 1))
    if count is not None and not least <= count <= most:
        raise UsageError(
            f"job {job.name} runs with {least} to {most} nodes, not with {count};"
            f" 'edl delete job {job.name}' ends it"
        )


def _check_accepted(accepted: bool, name: str) -> None:
    if not accepted:
        raise UsageError(f"job {name} has ended already: 'edl get jobs' says how")
