"""Interface between commands for jobs and their backends: a queue in Redis, a Kubernetes cluster.

Both backends represent a job as `QueuedJob`, so tables, JSON and the timeline are the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...coordinator.contexts import MeshContext
from ...coordinator.job_queue import JobProgress, QueuedJob
from ...coordinator.store.records import TimelineEntry
from ...runtime.errors import UnavailableError, UsageError
from .spec import QueuedJobSpec

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_POLL_S: Final = 0.25
#: Seconds without an answer of the backend after which following the logs of a job, or waiting for
#: its end, fails.
AWAY_S: Final = 60.0


def not_ended(name: str) -> UsageError:
    """Return the error of a submission while a job of the same name has not ended."""
    return UsageError(
        f"there is a job {name} that has not ended: end it with 'edl delete job {name}', or choose"
        " another `name:`"
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """All jobs at one moment.

    Attributes:
        jobs: jobs in the order of submission.
        now_ms: time of the listing in milliseconds since 1970, by the clock of Redis or, for a
            cluster, of this machine.
        head: one line about the fleet or cluster.
        location: "queue NAME" or "namespace NAME", for messages.
        more: further keys of the JSON output.
        lost: names of jobs whose fleet no longer answers.
        stop_note: text to append to "job NAME is to stop"; usually empty.
    """

    jobs: Sequence[QueuedJob]
    now_ms: int
    head: str
    location: str
    more: Mapping[str, Any] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    stop_note: str = ""

    def find(self, name: str) -> QueuedJob:
        """Return the job of this name; raise UsageError if there is none."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise UsageError(f"there is no job {name!r} in {self.location}: 'edl get jobs' shows all")


class JobBackend(Protocol):
    """Operations on jobs.

    All methods raise UnavailableError if the backend does not answer, and AccessError if it denies
    access.
    """

    def submit(self, spec: QueuedJobSpec) -> list[str]:
        """Add a job, or replace one that has ended; return lines to show.

        Raises:
            UsageError: a job of this name has not ended, or the job cannot run on this backend.
        """

    def listing(self) -> Listing:
        """Return all jobs."""

    def scale(self, job: QueuedJob, nodes: int | None) -> bool:
        """Limit the number of nodes, None: no limit; return False if the job has ended."""

    def stop(self, job: QueuedJob) -> bool:
        """Stop a job; return False if it has ended."""

    def final_progress(self, job: QueuedJob) -> JobProgress | None:
        """Return the final progress of a job; None: it has not ended.

        A job that was replaced or deleted counts as stopped.
        """

    def log_lines(self, job: QueuedJob, follow: bool) -> Iterator[str]:
        """Yield the kept output of the job's nodes; with `follow`, continue until the job ends."""

    def events(self, last: int) -> list[TimelineEntry]:
        """Return the latest `last` events of all jobs, oldest first; 0: all."""

    def close(self) -> None:
        """Close the connections."""


def wait_for_end(backend: JobBackend, job: QueuedJob, timeout_s: float) -> JobProgress:
    """Wait until a job ends; return its final progress.

    Raises:
        UnavailableError: the job has not ended within `timeout_s`, or the backend does not answer
            for more than `AWAY_S`.
    """
    answered_s = time.monotonic()
    deadline_s = answered_s + timeout_s
    while True:
        try:
            if (end := backend.final_progress(job)) is not None:
                return end
            answered_s = time.monotonic()
        except UnavailableError:
            if time.monotonic() > min(deadline_s, answered_s + AWAY_S):
                raise
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"job {job.name} has not ended in {timeout_s:g} s; 'edl get jobs' says why"
            )
        time.sleep(_POLL_S)


def follow_log(
    backend: JobBackend,
    job: QueuedJob,
    read_new: Callable[[], Iterable[str]],
    pause_s: Callable[[], float],
    follow: bool,
) -> Iterator[str]:
    """Yield the output lines of a job. Backends implement `log_lines` by this function.

    Args:
        backend: the backend.
        job: the job.
        read_new: returns the lines since the last call.
        pause_s: returns the seconds until the next call of `read_new`.
        follow: continue until the job ends.

    Raises:
        UnavailableError: the backend does not answer; with `follow`: for more than `AWAY_S`.
    """
    answered_s = time.monotonic()
    while True:
        try:
            # Check for the end before reading, so that no lines are missed.
            is_last = not follow or backend.final_progress(job) is not None
            lines = read_new()
        except UnavailableError:
            if not follow or time.monotonic() - answered_s > AWAY_S:
                raise
        else:
            answered_s = time.monotonic()
            yield from lines
            if is_last:
                return
        time.sleep(pause_s())


def cluster_namespace(mesh: MeshContext) -> str | None:
    """Return the namespace of a mesh's jobs on a cluster.

    Empty: the namespace of the kubeconfig's context. None: the jobs are in a queue.

    Raises:
        UsageError: `jobs_on` is not `queue`, `kubernetes` or `kubernetes:NAMESPACE`.
    """
    if mesh.jobs_on == "queue":
        return None
    kind, colon, namespace = mesh.jobs_on.partition(":")
    if kind != "kubernetes" or (colon and not _NAMESPACE.fullmatch(namespace)):
        raise UsageError(
            "jobs-on of a context (EDL_JOBS_ON) expects queue, kubernetes or"
            f" kubernetes:NAMESPACE, got {mesh.jobs_on!r}"
        )
    return namespace


def open_backend(mesh: MeshContext) -> JobBackend:
    """Connect to the queue or the cluster of a mesh's jobs.

    Raises:
        UsageError: `jobs_on` or the URL is invalid, or there is no kubeconfig or no such context.
    """
    namespace = cluster_namespace(mesh)
    if namespace is not None:
        from ..kubernetes.client import Client, connect
        from .kubernetes_backend import KubernetesBackend

        cluster = connect(mesh.kubeconfig, mesh.kube_context or None, namespace or None)
        return KubernetesBackend(Client(cluster), str(cluster.configuration.host))
    from ...coordinator.job_queue import open_queue
    from .queue_backend import QueueBackend

    return QueueBackend(open_queue(mesh.coordinator, mesh.queue), mesh.queue)
