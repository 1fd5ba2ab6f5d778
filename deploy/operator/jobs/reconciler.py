"""Reconciles all DistillJobs: observe, decide, act.

For each job it writes the status, then deletes and creates pods. An operator may die between any
two calls. The next operator continues from the written status. The number of a node is never
reused, even if its pod was not created, and a pod that was not deleted is chosen again as surplus.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from ....mesh.kubernetes.client import Client
from ....mesh.kubernetes.resources import DISTILL_JOB, POD, Object
from ....runtime.errors import (
    EdlError,
    Forbidden,
    KubernetesObjectChanged,
    KubernetesObjectExists,
    KubernetesObjectMissing,
    KubernetesUnavailable,
    ManifestRefused,
)
from ..conditions import ResourceEvent
from ..config import OperatorConfig
from ..error_log import ErrorLog, ends_round
from ..events import post_events
from .decisions import decide_pods
from .ledger import JobActions, PodLedger, record_failed_start, record_refusal
from .observe import ClusterReader, ProgressReader
from .pods import pod_of
from .status import changes, ledger_fields, spec_events, status_of

log = logging.getLogger(__name__)

#: Attempts per round. Another attempt is made if a job has changed since it was read.
_ATTEMPTS: Final = 3
_NUMBERS: Final = re.compile(r"\d+")


class DistillJobReconciler:
    """Its method `reconcile` is a `loop.Reconciler`. Use it from one thread.

    Args:
        client: of the cluster.
        config: settings of the operator.
        trainings: reads the progress of trainings; None: from Redis.
        cluster_s: seconds between two reads of machines and other pods.
    """

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        trainings: ProgressReader | None = None,
        cluster_s: float = 2.0,
    ) -> None:
        self._client, self._config = client, config
        self._trainings = trainings or ProgressReader(config.coordinator)
        self._errors = ErrorLog()
        self._reader = ClusterReader(client, config, self._trainings, cluster_s)

    def reconcile(self, now: float) -> None:
        """Bring all jobs nearer to their desired state.

        Args:
            now: seconds since 1970.

        Raises:
            LeaseSuperseded: this operator no longer leads, or ends.
            EdlError: the cluster does not answer, or denies access.
            Exception: every job failed; this is the first error.
        """
        for _ in range(_ATTEMPTS):
            if self._once(now):
                return

    def close(self) -> None:
        """Close the connection to Redis, not the client."""
        self._trainings.close()

    def _once(self, now: float) -> bool:
        """Observe and act once; return False if a job has changed since it was read."""
        snapshot = self._reader.observe(now)
        decided = decide_pods(snapshot.pool, snapshot.jobs, now, self._config)
        self._errors.retain({job["metadata"]["uid"] for job in snapshot.resources.values()})
        done, errors = True, list[Exception]()
        # First jobs that shrink, so that their resources are free sooner.
        for actions in sorted(decided, key=lambda actions: not actions.leave):
            resource = snapshot.resources[actions.job]
            uid = resource["metadata"]["uid"]
            try:
                done &= self._act(resource, snapshot.pods[actions.job], actions, now)
                self._errors.clear(uid)
            except Exception as error:  # must not affect other jobs
                if ends_round(error):
                    raise
                is_unexpected = not isinstance(error, EdlError)
                what = f"job {actions.job}"
                self._errors.report(log, uid, what, error, traceback=is_unexpected)
                errors.append(error)
        if errors and len(errors) == len(decided):  # the cause may concern all jobs
            raise errors[0]
        return done

    def _act(
        self, resource: Object, pods: Mapping[int, Object], actions: JobActions, now: float
    ) -> bool:
        """Apply the actions for one job.

        Args:
            resource: the DistillJob as it was read.
            pods: its pods as they were read, by number.
            actions: the actions.
            now: seconds since 1970.

        Returns:
            False: the job has changed since it was read, and nothing was done; observe it again.

        Raises:
            EdlError: see `Client`.
        """
        before = resource.get("status") or {}
        changed = changes(before, status_of(resource, actions, now))
        if changed:
            try:
                resource = self._client.patch_status(DISTILL_JOB, resource, changed)
            except (KubernetesObjectChanged, KubernetesObjectMissing) as error:
                log.debug("job %s is read again: %s", actions.job, error)
                return False
        for number in (*actions.leave, *actions.forget):
            meta = pods[number]["metadata"]
            # Delete only this version: if the pod has ended since, its end must be recorded first.
            version = meta["resourceVersion"]
            self._client.delete(
                POD, meta["name"], meta["namespace"], uid=meta["uid"], resource_version=version
            )
        invalid = spec_events(before, actions)
        events = [*actions.events, *invalid, *self._create_pods(resource, actions, now)]
        post_events(self._client, resource, events, now)
        return True

    def _create_pods(
        self, resource: Object, actions: JobActions, now: float
    ) -> list[ResourceEvent]:
        """Create pods until the cluster refuses one; return the event of a new refusal."""
        created = 0
        for number in actions.start:
            try:
                self._client.create(POD, pod_of(resource, number, self._config.coordinator))
                created += 1
            except KubernetesObjectExists as error:
                # A deleted job of this name has this pod: another round starts the missing node.
                log.info("node %d is not started: %s", number, error)
            except (Forbidden, ManifestRefused, KubernetesUnavailable) as error:
                if ends_round(error):
                    raise
                why = f"node {number} cannot be started: {error}"
                never = isinstance(error, ManifestRefused)
                nodes, before = actions.nodes + created, actions.ledger
                if isinstance(error, KubernetesUnavailable):
                    after = record_failed_start(before, why, now)
                else:
                    after = record_refusal(before, nodes, why, now, self._config, never=never)
                self._write_ledger(resource, after)
                # A message that differs only in numbers is not reported again.
                is_known = _NUMBERS.sub("", after.why) == _NUMBERS.sub("", before.why)
                return [] if is_known else [ResourceEvent("NodeRefused", after.why, warns=True)]
        return []

    def _write_ledger(self, resource: Object, ledger: PodLedger) -> None:
        """Write the ledger of a job with a refused pod."""
        changed = changes(resource.get("status") or {}, ledger_fields(ledger))
        try:
            self._client.patch_status(DISTILL_JOB, resource, changed)
        except (KubernetesObjectChanged, KubernetesObjectMissing) as error:
            log.debug("the refusal is not recorded, as the job was changed: %s", error)
