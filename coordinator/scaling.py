"""Autoscaling settings of services, and the desired number of teachers for autoscalers."""

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

#: Seconds for which deployments are cached.
_FRESH_S: Final = 2.0
#: HTTP path of the desired number, before the name of a service.
PATH: Final = "/autoscale/"


class Settings:
    """Autoscaling settings of each service: those of its deployment, else the usual ones.

    Only for one thread.

    Args:
        board: has the deployments.
        usual: settings of services without a deployment, and those that deployments lack.
        clock: returns monotonic seconds.
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
        """Return the settings of a service; the last known ones while the board does not answer."""
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
                log.debug("autoscaling keeps its settings: %s", error)
        return self._deployed.get(service, self._usual)


def bounded(usual: AutoscaleConfig, deployment: Deployment) -> AutoscaleConfig:
    """Return the usual settings, overridden by those of a deployment."""
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
    """Return how many teachers a service should have; None: unknown."""
    found = registry.desired(service)
    return None if found is None else found.count


def page(registry: Registry, path: str) -> bytes | None:
    """Return the reply to `GET /autoscale/SERVICE` as JSON; None: `path` is another one.

    `{"service", "desired_teachers", "reason", "since_ms", "at_ms"}`, times by the registry's clock.

    Raises:
        UsageError: there is no such service, or its number is unknown: an error is better than a
            number that ends teachers.
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
