"""What `edl job` asks, of a Kubernetes cluster: resources written and read, pods' logs, Events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from ....coordinator.queue import Entry, Progress, QueuedJob
from ....errors import (
    KubernetesUnavailable,
    ManifestRefused,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    UnavailableError,
    UsageError,
)
from ...kubernetes.client import Client, connect
from ...kubernetes.resources import DISTILL_JOB, EVENT, Object
from ..backend import Listing, not_ended
from ..spec import JobSpec
from .logs import PodLogs
from .manifest import notes
from .picture import entries_of, job_of, jobs_of
from .translate import to_resource

if TYPE_CHECKING:
    from ..backend import Where

_LOOK_S: Final = 0.5
#: Of many pods each is read less often: an API server is everybody's.
_LOOK_S_PER_POD: Final = 0.1
#: Whoever follows a job waits so long for an API server that is started anew.
_AWAY_S: Final = 60.0
#: Until a resource that was deleted is gone.
_GONE_WITHIN_S: Final = 30.0


class KubernetesJobs:
    """See `JobBackend`.

    Args:
        client: of the cluster; its namespace is that of the jobs.
        host: of the API server, for people.
        coordinator: Redis URL that nodes of what is submitted are told; empty: the operator's.
    """

    def __init__(self, client: Client, host: str, coordinator: str = "") -> None:
        self._client, self._host, self._coordinator = client, host, coordinator

    @classmethod
    def open(cls, where: Where) -> Self:
        """The cluster that is meant. Raises UsageError where no kubeconfig says where it is."""
        connection = connect(where.kubeconfig, where.context or None, where.namespace or None)
        host = str(connection.configuration.host)
        return cls(Client(connection), host, where.coordinator)

    def submit(self, spec: JobSpec) -> list[str]:
        resource = to_resource(spec, self._client.namespace, self._coordinator)
        try:  # first of all: a spec that is refused costs no former job its logs
            self._create(resource)
        except ObjectExists:
            self._make_room(spec.name)
            try:
                self._create(resource)
            except ObjectExists:  # somebody was faster
                raise not_ended(spec.name) from None
        place = f"namespace {self._client.namespace} of {self._host}"
        return [f"job {spec.name} is in {place}", *notes(spec)]

    def _create(self, resource: Object) -> None:
        try:
            self._client.create(DISTILL_JOB, resource)
        except ObjectMissing as error:
            if error.unknown_kind:
                raise _not_installed() from None
            raise
        except ManifestRefused as error:
            raise ManifestRefused(" ".join(str(error).split())) from None

    def _make_room(self, name: str) -> None:
        """Delete the job of this name. Raises UsageError where it has not ended."""
        former = self._resource(name)
        if former is None:
            return
        uid = former["metadata"]["uid"]
        if not job_of(former).progress.ended:
            raise not_ended(name)
        self._client.delete(DISTILL_JOB, name, uid=uid)
        deadline_s = time.monotonic() + _GONE_WITHIN_S
        while (there := self._resource(name)) is not None and there["metadata"]["uid"] == uid:
            if time.monotonic() > deadline_s:
                raise UnavailableError(
                    f"the former job {name} is not gone after {_GONE_WITHIN_S:g} s: 'kubectl get"
                    f" distilljob {name} -o yaml' shows what holds it (finalizers)"
                )
            time.sleep(_LOOK_S / 5)

    def listing(self) -> Listing:
        jobs = jobs_of(self._resources())
        nodes = sum(job.progress.running for job in jobs)
        namespace = self._client.namespace
        return Listing(
            jobs,
            int(time.time() * 1000),
            f"Kubernetes at {self._host}, namespace {namespace}: {nodes} nodes run",
            f"no job in namespace {namespace}: 'edl job submit JOB.yaml --on"
            f" kubernetes:{namespace}' adds one",
            {"cluster": {"host": self._host, "namespace": namespace}},
        )

    def find(self, name: str) -> QueuedJob:
        found = self._resource(name)
        if found is None:
            raise UsageError(
                f"there is no job {name!r} in namespace {self._client.namespace}: 'edl job list'"
                " shows all"
            )
        return job_of(found)

    def scale(self, job: QueuedJob, nodes: int | None) -> bool:
        return self._change(job, {"nodes": nodes})

    def stop(self, job: QueuedJob) -> bool:
        return self._change(job, {"stopped": True})

    def stop_note(self) -> str:
        return ""

    def _change(self, job: QueuedJob, spec: dict[str, Any]) -> bool:
        if self.ended(job) is not None:
            return False
        # The uid is only compared: with another one, of a job of the same name that has come since,
        # the server refuses the change.
        changes = {"metadata": {"uid": job.spec["uid"]}, "spec": spec}
        try:
            self._client.patch(DISTILL_JOB, job.name, changes)
        except ObjectMissing:
            return False
        except (ObjectChanged, ManifestRefused):
            if self.ended(job) is None:
                raise
            return False
        return True

    def ended(self, job: QueuedJob) -> Progress | None:
        found = self._resource(job.name)
        if found is None or found["metadata"]["uid"] != job.spec["uid"]:
            return Progress("stopped", reason="the cluster does not have it any more")
        progress = job_of(found).progress
        return progress if progress.ended else None

    def log_lines(self, job: QueuedJob, follow: bool) -> Iterator[str]:
        printed = PodLogs(self._client, job.name, str(job.spec["uid"]))
        heard_s = time.monotonic()
        while True:
            try:
                over = not follow or self.ended(job) is not None  # first: what follows is the rest
                lines = printed.new()
            except KubernetesUnavailable:
                if not follow or time.monotonic() - heard_s > _AWAY_S:
                    raise
            else:
                heard_s = time.monotonic()
                yield from lines
                if over:
                    return
            time.sleep(max(_LOOK_S, _LOOK_S_PER_POD * printed.pods))

    def events(self, last: int) -> list[Entry]:
        resources = self._resources()
        about = f"involvedObject.kind={DISTILL_JOB.kind}"
        return entries_of(resources, self._client.list(EVENT, fields=about))[-last:]

    def close(self) -> None:
        self._client.close()

    def _resource(self, name: str) -> Object | None:
        try:
            return self._client.get(DISTILL_JOB, name)
        except ObjectMissing as error:
            if error.unknown_kind:
                raise _not_installed() from None
            return None

    def _resources(self) -> list[Object]:
        try:
            return self._client.list(DISTILL_JOB)
        except ObjectMissing:
            raise _not_installed() from None


def _not_installed() -> ObjectMissing:
    return ObjectMissing(
        "this cluster does not know DistillJob: 'kubectl apply -k deploy/operator/crds' installs"
        " it, and docs/operator.md has the operator that runs such jobs",
        unknown_kind=True,
    )
