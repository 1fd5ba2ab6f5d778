"""What `edl job` asks of where jobs run, whoever runs them: the contract, and which one is meant.

A job is shown as a `QueuedJob` wherever it runs, so tables, JSON and the timeline are the same.
`on_queue.py` asks the queue in Redis, which an `edl fleet jobs` works off; `kubernetes/` asks a
cluster with the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ...coordinator.queue import Entry, Progress, QueuedJob
from ...errors import UsageError
from .spec import JobSpec

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def not_ended(name: str) -> UsageError:
    """A job was submitted whose name another one has yet."""
    return UsageError(
        f"there is a job {name} that has not ended: 'edl job stop {name}' ends it, another `name:`"
        " is another job"
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """All jobs at one moment.

    Attributes:
        jobs: in the order of their submission.
        now_ms: by the clock that their times are of.
        head: who runs them, one line.
        empty: what is said where there is none.
        more: the same for programs, beside the jobs.
        lost: names of those whose fleet is not heard of any more.
    """

    jobs: Sequence[QueuedJob]
    now_ms: int
    head: str
    empty: str
    more: Mapping[str, Any] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


class JobBackend(Protocol):
    """See the module.

    All raise UnavailableError where nobody answers, and AccessError where we may not ask.
    """

    def submit(self, spec: JobSpec) -> list[str]:
        """Add a job; returns what there is to say of it, in lines. One that has ended is replaced.

        Raises:
            UsageError: one of its name has not ended, or it is none that can be run there.
        """

    def listing(self) -> Listing:
        """All jobs."""

    def find(self, name: str) -> QueuedJob:
        """One of them. Raises UsageError where there is none."""

    def scale(self, job: QueuedJob, nodes: int | None) -> bool:
        """Have it run with so many nodes at most, None: as its limits allow. False: it ended."""

    def stop(self, job: QueuedJob) -> bool:
        """Have it end; False: it has already."""

    def stop_note(self) -> str:
        """What is said behind "job NAME is to stop"; mostly nothing."""

    def ended(self, job: QueuedJob) -> Progress | None:
        """How it ended; None while it has not. One whose name another has by now has ended."""

    def log_lines(self, job: QueuedJob, follow: bool) -> Iterator[str]:
        """What its nodes printed, as far as it is kept; with `follow` until it has ended."""

    def events(self, last: int) -> list[Entry]:
        """What happened to the jobs: the latest so many, oldest first."""

    def close(self) -> None:
        """End the connections that it keeps."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where jobs run, as `--on` says it.

    Attributes:
        kubernetes: on a cluster, not on the fleet of a queue.
        namespace: of the cluster; empty: that of the kubeconfig's context.
        context: of the kubeconfig; empty: its current one.
        kubeconfig: the file; None: the usual one, or within a pod its own account.
        queue: of the mesh.
        coordinator: Redis URL of the mesh; on a cluster what nodes are told, empty: the operator's.
    """

    kubernetes: bool = False
    namespace: str = ""
    context: str = ""
    kubeconfig: Path | None = None
    queue: str = "main"
    coordinator: str = ""

    @classmethod
    def of(
        cls, on: str, context: str, kubeconfig: Path | None, queue: str, coordinator: str
    ) -> Where:
        """What the options say.

        Raises:
            UsageError: `on` is neither `queue` nor `kubernetes` or `kubernetes:NAMESPACE`.
        """
        kind, colon, namespace = on.partition(":")
        if on == "queue":
            if context:
                raise UsageError("--context is of --on kubernetes: jobs of a queue have none")
            return cls(queue=queue, coordinator=coordinator)
        if kind != "kubernetes" or (colon and not _NAMESPACE.fullmatch(namespace)):
            raise UsageError(
                f"--on (EDL_JOBS_ON) expects queue, kubernetes or kubernetes:NAMESPACE, got {on!r}"
            )
        return cls(True, namespace, context, kubeconfig, queue, coordinator)

    def open(self) -> JobBackend:
        """What asks there.

        Raises:
            UsageError: the URL is none, there is no kubeconfig, or it has no such context.
        """
        if self.kubernetes:
            from .kubernetes.backend import KubernetesJobs

            return KubernetesJobs.open(self)
        from .on_queue import QueueJobs

        return QueueJobs.open(self)

    def plan(self, spec: JobSpec) -> Iterator[str]:
        """What `submit` would bring about, in lines; asks nobody.

        Raises:
            UsageError: it cannot be run there.
        """
        if self.kubernetes:
            from .kubernetes.manifest import manifest

            return manifest(spec, self)
        from .views import plan

        return plan(spec)
