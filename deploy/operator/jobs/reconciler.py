"""Reconciles all DistillJobs: observe, decide, act."""

from __future__ import annotations

import logging
from typing import Final

from ....mesh.kubernetes.client import Client
from ....runtime.errors import EdlError, LeaseSuperseded, Unauthenticated, UnavailableError
from ..config import OperatorConfig
from ..error_log import ErrorLog
from .actions import apply_actions
from .decisions import decide_pods
from .observe import ClusterReader, ProgressReader, observe

log = logging.getLogger(__name__)

#: Attempts if a job was changed meanwhile.
_ATTEMPTS: Final = 3


class DistillJobReconciler:
    """A `Reconciler`; use it from one thread.

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
        self._trainings = trainings if trainings is not None else ProgressReader()
        self._errors = ErrorLog()
        self._reader = ClusterReader(client, cluster_s, config.coordinator)

    def reconcile(self, now: float) -> None:
        """Bring all jobs nearer to their desired state.

        Args:
            now: seconds since 1970, the clock of the ledgers.

        Raises:
            LeaseSuperseded: this operator no longer leads.
            EdlError: the cluster does not answer, or denies access.
            Exception: every job failed; this is the first error.
        """
        for _ in range(_ATTEMPTS):
            if self._once(now):
                return

    def close(self) -> None:
        """Close the connections to Redis, not the client."""
        self._trainings.close()

    def _once(self, now: float) -> bool:
        """Observe and act once; return whether all actions were done."""
        snapshot = observe(self._client, self._config, self._reader, self._trainings, now)
        decided = decide_pods(snapshot.pool, snapshot.jobs, now, self._config)
        self._errors.retain({one["metadata"]["uid"] for one in snapshot.resources.values()})
        done, failed = True, list[Exception]()
        # First jobs that shrink, so that their resources are free sooner.
        for one in sorted(decided, key=lambda actions: not actions.leave):
            resource = snapshot.resources[one.job]
            uid = resource["metadata"]["uid"]
            try:
                pods = snapshot.pods[one.job]
                done &= apply_actions(self._client, resource, pods, one, self._config, now)
                self._errors.clear(uid)
            except (LeaseSuperseded, UnavailableError, Unauthenticated):
                raise
            except Exception as error:  # must not affect other jobs
                odd = not isinstance(error, EdlError)
                what = f"job {one.job}"
                self._errors.report(log, uid, what, error, traceback=odd)
                failed.append(error)
        if failed and len(failed) == len(decided):  # so the cause is not a single job
            raise failed[0]
        return done
