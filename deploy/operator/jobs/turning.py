"""One turn of all DistillJobs: look, decide, act."""

from __future__ import annotations

import logging
from typing import Final

from ....errors import EdlError, LeaseSuperseded, Unauthenticated, UnavailableError
from ....mesh.kubernetes.client import Client
from ..config import OperatorConfig
from ..troubles import Troubles
from .act import carry_out
from .ledger import PodsConfig
from .observe import Surroundings, observe
from .orders import decide_pods
from .trainings import Trainings

log = logging.getLogger(__name__)

#: A job that was changed while it was looked at is looked at again, so often.
_LOOKS: Final = 3


class DistillJobs:
    """See the module. Used by one thread, of the operator that leads.

    Args:
        client: of the cluster.
        config: how the operator works.
        pods: how jobs share the cluster; None: as `config` says, and as usual.
        trainings: says how far they are; None: as they tell it in Redis.
        cluster_s: machines and others' pods are read so often, seconds.
    """

    def __init__(
        self,
        client: Client,
        config: OperatorConfig,
        pods: PodsConfig | None = None,
        trainings: Trainings | None = None,
        cluster_s: float = 2.0,
    ) -> None:
        self._client, self._config = client, config
        self._pods = (
            pods
            if pods is not None
            else PodsConfig(config.elastic, place_within_s=config.place_within_s)
        )
        self._trainings = trainings if trainings is not None else Trainings()
        self._troubles = Troubles()
        self._surroundings = Surroundings(client, cluster_s, config.coordinator)

    def turn(self, now: float) -> None:
        """Bring all jobs nearer to what they shall be.

        Args:
            now: seconds since 1970; the ledgers' times are of this clock.

        Raises:
            LeaseSuperseded: this operator leads no more.
            EdlError: the cluster does not answer, or does not allow what is needed.
            Exception: no job could be seen to, for this or the like.
        """
        for _ in range(_LOOKS):
            if self._once(now):
                return

    def close(self) -> None:
        """End connections to Redis; the client is the caller's."""
        self._trainings.close()

    def _once(self, now: float) -> bool:
        """One look; whether all that was decided has been done."""
        scene = observe(self._client, self._config, self._surroundings, self._trainings.look, now)
        orders = decide_pods(scene.pool, scene.jobs, now, self._pods)
        self._troubles.keep({one["metadata"]["uid"] for one in scene.resources.values()})
        done, failed = True, list[Exception]()
        # First those that give, so that what they hold is free sooner.
        for one in sorted(orders, key=lambda order: not order.leave):
            resource = scene.resources[one.job]
            uid = resource["metadata"]["uid"]
            try:
                done &= carry_out(
                    self._client,
                    resource,
                    scene.pods[one.job],
                    one,
                    self._pods,
                    self._config.coordinator,
                    now,
                )
                self._troubles.over(uid)
            except (LeaseSuperseded, UnavailableError, Unauthenticated):
                raise
            except Exception as error:  # this one's trouble is not the others'
                odd = not isinstance(error, EdlError)  # nobody has thought of it: where is it from?
                what = f"job {one.job}"
                self._troubles.tell(log, uid, what, error, traceback=odd)
                failed.append(error)
        if failed and len(failed) == len(orders):  # that is hardly the trouble of each
            raise failed[0]
        return done
