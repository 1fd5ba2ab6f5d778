"""Job backend for a Kubernetes cluster: DistillJob resources, logs of pods, and Events."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...coordinator.job_queue import JobProgress, QueuedJob
from ...coordinator.store.records import TimelineEntry
from ...runtime.errors import (
    KubernetesObjectChanged,
    KubernetesObjectExists,
    KubernetesObjectMissing,
    KubernetesUnavailable,
    ManifestRefused,
    UnavailableError,
    UsageError,
)
from ...runtime.lifecycle import wait_until
from ..kubernetes.client import Client
from ..kubernetes.resources import (
    DISTILL_JOB,
    EVENT,
    JOB_LABEL,
    NODE_CONTAINER,
    NODE_LABEL,
    POD,
    Object,
    is_controlled_by,
    rfc3339_s,
    seconds_of,
    selector,
)
from .backend import Listing, follow_log, not_ended
from .kubernetes_resource import entries_of, job_of, jobs_of, notes, to_resource
from .spec import QueuedJobSpec

_POLL_S: Final = 0.5
#: Seconds between reads of logs, per pod; limits the load on the API server.
_POLL_S_PER_POD: Final = 0.1
#: Seconds within which a deleted resource must disappear.
_GONE_WITHIN_S: Final = 30.0


class KubernetesBackend:
    """A `JobBackend` for a cluster.

    Args:
        client: client of the cluster; jobs are in its namespace.
        host: address of the API server, for messages.
    """

    def __init__(self, client: Client, host: str) -> None:
        self._client, self._host = client, host

    def submit(self, spec: QueuedJobSpec) -> list[str]:
        resource = to_resource(spec, self._client.namespace)
        try:
            self._create(resource)  # a refused spec raises here, before an ended job is deleted
        except KubernetesObjectExists:
            self._delete_ended(spec.name)
            try:
                self._create(resource)
            except KubernetesObjectExists:  # another user has submitted a job meanwhile
                raise not_ended(spec.name) from None
        location = f"namespace {self._client.namespace} of {self._host}"
        return [f"job {spec.name} is in {location}", *notes(spec)]

    def _create(self, resource: Object) -> None:
        try:
            self._client.create(DISTILL_JOB, resource)
        except KubernetesObjectMissing as error:
            if error.unknown_kind:
                raise _not_installed() from None
            raise
        except ManifestRefused as error:
            raise ManifestRefused(" ".join(str(error).split())) from None

    def _delete_ended(self, name: str) -> None:
        """Delete the job of this name, and wait until it is gone.

        Raises:
            UsageError: the job has not ended.
            UnavailableError: the job is not gone after 30 s.
        """
        former = self._resource(name)
        if former is None:
            return
        uid, version = (former["metadata"][key] for key in ("uid", "resourceVersion"))
        if not job_of(former).progress.ended:
            raise not_ended(name)
        if not self._client.delete(DISTILL_JOB, name, resource_version=version):
            self._delete_ended(name)  # it has changed meanwhile, and may be about to resume
            return

        def is_gone() -> bool:
            present = self._resource(name)
            return present is None or bool(present["metadata"]["uid"] != uid)

        if not wait_until(is_gone, _GONE_WITHIN_S, _POLL_S / 5):
            raise UnavailableError(
                f"the former job {name} is not gone after {_GONE_WITHIN_S:g} s: 'kubectl get"
                f" distilljob {name} -o yaml' shows what delays the deletion (finalizers)"
            )

    def listing(self) -> Listing:
        jobs = jobs_of(self._resources())
        nodes = sum(job.progress.running for job in jobs)
        namespace = self._client.namespace
        return Listing(
            jobs,
            int(time.time() * 1000),
            f"Kubernetes at {self._host}, namespace {namespace}: {nodes} nodes run",
            f"namespace {namespace}",
            {"cluster": {"host": self._host, "namespace": namespace}},
        )

    def scale(self, job: QueuedJob, nodes: int | None) -> bool:
        return self._change(job, {"nodes": nodes})

    def stop(self, job: QueuedJob) -> bool:
        return self._change(job, {"stopped": True})

    def _change(self, job: QueuedJob, spec: dict[str, Any]) -> bool:
        if self.final_progress(job) is not None:
            return False
        # The uid makes the server refuse the change if a newer job has the same name.
        changes = {"metadata": {"uid": job.spec["uid"]}, "spec": spec}
        try:
            self._client.patch(DISTILL_JOB, job.name, changes)
        except KubernetesObjectMissing:
            return False
        except (KubernetesObjectChanged, ManifestRefused):
            if self.final_progress(job) is None:
                raise
            return False
        return True

    def final_progress(self, job: QueuedJob) -> JobProgress | None:
        resource = self._resource(job.name)
        if resource is None or resource["metadata"]["uid"] != job.spec["uid"]:
            return JobProgress("stopped", reason="the cluster does not have it any more")
        progress = job_of(resource).progress
        return progress if progress.ended else None

    def log_lines(self, job: QueuedJob, follow: bool) -> Iterator[str]:
        logs = PodLogs(self._client, job.name, str(job.spec["uid"]))

        def pause_s() -> float:
            return max(_POLL_S, _POLL_S_PER_POD * logs.pods)

        return follow_log(self, job, logs.read_new, pause_s, follow)

    def events(self, last: int) -> list[TimelineEntry]:
        resources = self._resources()
        fields = f"involvedObject.kind={DISTILL_JOB.kind}"
        entries = entries_of(resources, self._client.list(EVENT, fields=fields))
        return entries[-last:]  # for 0, [-0:] returns all

    def close(self) -> None:
        self._client.close()

    def _resource(self, name: str) -> Object | None:
        try:
            return self._client.get(DISTILL_JOB, name)
        except KubernetesObjectMissing as error:
            if error.unknown_kind:
                raise _not_installed() from None
            return None

    def _resources(self) -> list[Object]:
        try:
            return self._client.list(DISTILL_JOB)
        except KubernetesObjectMissing:
            raise _not_installed() from None


def _not_installed() -> KubernetesObjectMissing:
    return KubernetesObjectMissing(
        "this cluster does not know DistillJob: 'kubectl apply -k deploy/operator/crds' installs"
        " it, and docs/how-to/kubernetes.md has the operator that runs such jobs",
        unknown_kind=True,
    )


#: Maximum number of lines in the first read of a pod.
TAIL: Final = 400
#: Seconds since 1970, and nanoseconds within the second.
Stamp = tuple[int, int]
_FRACTION: Final = re.compile(r"\.([0-9]+)")


@dataclass(slots=True)
class _ReadPosition:
    """Position up to which a pod has been read.

    Attributes:
        stamp: time of the last line; None: nothing has been read.
        lines: number of lines with this time.
        ended: whether the pod had ended before the latest read, so there is no more to read.
        unreadable: whether the latest read failed.
    """

    stamp: Stamp | None = None
    lines: int = 0
    ended: bool = False
    unreadable: bool = False


class PodLogs:
    """Reads the output of a job's pods. Used by one thread.

    Args:
        client: client of the cluster.
        job: name of the job.
        uid: uid of its resource; excludes pods of a former job of the same name.
    """

    def __init__(self, client: Client, job: str, uid: str) -> None:
        self._client, self._uid = client, uid
        self._labels = selector({JOB_LABEL: job})
        self._positions: dict[str, _ReadPosition] = {}

    @property
    def pods(self) -> int:
        """Number of pods found so far."""
        return len(self._positions)

    def read_new(self) -> list[str]:
        """Return the lines since the last call, ordered by time.

        A pod that cannot be read, as on a machine that is unreachable, has one line that says so.

        Raises:
            KubernetesUnavailable, AccessError: see `Client`.
        """
        pods = self._client.list(POD, self._labels)
        batches = [self._read_pod(pod) for pod in pods if is_controlled_by(pod, self._uid)]
        return [line for _, line in heapq.merge(*batches, key=lambda stamped: stamped[0])]

    def _read_pod(self, pod: Object) -> list[tuple[Stamp, str]]:
        meta = pod["metadata"]
        position = self._positions.setdefault(meta["uid"], _ReadPosition())
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if position.ended or phase == "Pending":
            return []
        since = "" if position.stamp is None else rfc3339_s(position.stamp[0])
        tail = None if since else TAIL
        number = meta.get("labels", {}).get(NODE_LABEL, "?")
        try:
            lines = list(
                self._client.pod_log(
                    meta["name"], since_time=since, tail_lines=tail, container=_log_container(pod)
                )
            )
        except (KubernetesObjectMissing, ManifestRefused):
            return []  # the pod was deleted, or has not started
        except KubernetesUnavailable as error:  # mostly, only the pod's machine does not answer
            known, position.unreadable = position.unreadable, True
            note = f"node {number} | (its log cannot be read: {error})"
            return [] if known else [((int(time.time()), 0), note)]
        position.ended = phase in ("Succeeded", "Failed")
        position.unreadable = False
        return [(stamp, f"node {number} | {line}") for stamp, line in _unread(position, lines)]


def _log_container(pod: Object) -> str:
    names = [one["name"] for one in pod["spec"]["containers"]]
    return NODE_CONTAINER if NODE_CONTAINER in names else str(names[0])


def _unread(position: _ReadPosition, lines: Iterable[str]) -> list[tuple[Stamp, str]]:
    """Return the lines that have not been read yet, and move the position behind them.

    The API accepts only whole seconds as a start, so it repeats lines of the latest second.
    """
    unread = []
    repeated, last = position.lines, position.stamp
    for line in lines:
        stamp, text = _split_stamp(line)
        if stamp is None:  # the server's own message, which each read repeats
            if last is None:
                unread.append((position.stamp or (0, 0), line))
            continue
        if last is not None and stamp < last:
            continue
        if last is not None and stamp == last and repeated:
            repeated -= 1
            continue
        unread.append((stamp, text))
        same = stamp == position.stamp
        position.stamp, position.lines = stamp, position.lines + 1 if same else 1
    return unread


def _split_stamp(line: str) -> tuple[Stamp | None, str]:
    """Split a line into its time and text. Without a time, return None and the whole line."""
    time_text, _, text = line.partition(" ")
    fraction = _FRACTION.search(time_text)
    nanoseconds = fraction[1].ljust(9, "0")[:9] if fraction else "0"
    try:
        return (int(seconds_of(time_text)), int(nanoseconds)), text
    except UsageError:
        return None, line
