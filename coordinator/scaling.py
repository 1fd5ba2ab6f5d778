"""How services are scaled, as their deployments say; and the number desired, for autoscalers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ..runtime.errors import AccessError, UnavailableError, UsageError
from ..scheduler.autoscale import AutoscaleConfig
from .machines import Deployment, MachineBoard
from .registry import Registry

log = logging.getLogger(__name__)

#: Seconds for which deployments that were read are believed.
_FRESH_S: Final = 2.0
#: Where the number desired is served: this and the name of a service.
PATH: Final = "/autoscale/"


class Settings:
    """How each service is scaled: as its deployment says, or as all are for which there is none.

    Used by one thread.

    Args:
        board: where deployments are.
        usual: settings where there is none; and those that no deployment says.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        board: MachineBoard,
        usual: AutoscaleConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._usual = usual
        self._clock = clock
        self._read_s = float("-inf")
        self._deployed: dict[str, AutoscaleConfig] = {}

    def of(self, service: str) -> AutoscaleConfig:
        """How this one is scaled; as it was while the board does not answer."""
        now = self._clock()
        if now - self._read_s >= _FRESH_S:
            self._read_s = now
            try:
                self._deployed = {
                    one.service: bounded(self._usual, one)
                    for one in self._board.deployments()
                    if not one.withdrawn
                }
            except (UnavailableError, AccessError) as error:
                log.debug("services are scaled as before: %s", error)
        return self._deployed.get(service, self._usual)


def bounded(usual: AutoscaleConfig, deployment: Deployment) -> AutoscaleConfig:
    """The usual settings with what a deployment says of its service."""
    ceiling = deployment.cost_ceiling_per_hour
    return replace(
        usual,
        min=deployment.min,
        max=deployment.max,
        freeze_s=deployment.freeze_s,
        price_per_teacher_hour=deployment.price_per_hour or usual.price_per_teacher_hour,
        cost_ceiling_per_hour=usual.cost_ceiling_per_hour if ceiling is None else ceiling,
    )


def count_of(registry: Registry, service: str) -> int | None:
    """How many teachers a service should have; None: no leader has said so lately."""
    found = registry.desired(service)
    return None if found is None else found.count


def page(registry: Registry, path: str) -> bytes | None:
    """What `GET /autoscale/SERVICE` is answered, as JSON; None: that is not what is asked for.

    `{"service", "desired_teachers", "reason", "since_ms", "at_ms"}`, times by the registry's clock.

    Raises:
        UsageError: there is no such service, or nothing is desired of it: no number is better than
            one that ends teachers.
        UnavailableError: the registry does not answer.
    """
    if not path.startswith(PATH):
        return None
    service = path.removeprefix(PATH)
    found = registry.desired(service)
    if found is None:
        raise UsageError(
            f"no manager has said lately how many teachers {service!r:.140} should have"
        )
    told = {
        "service": service,
        "desired_teachers": found.count,
        "reason": found.reason,
        "since_ms": found.since_ms,
        "at_ms": found.at_ms,
    }
    return json.dumps(told).encode()
