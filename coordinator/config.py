"""Settings of a service manager."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..runtime.errors import UsageError
from ..scheduler.autoscale import AutoscaleConfig

#: Redis URL of a mesh if none is named.
DEFAULT_URL = "redis://127.0.0.1:6379"
#: Seconds without a heartbeat after which a member is dead.
DEFAULT_TTL_S = 6.0
#: Seconds after which another manager may lead a service whose leader does not renew its lease.
DEFAULT_LEADER_TTL_S = 2.0


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Settings of one service manager.

    Attributes:
        ttl_s: seconds without a report after which a student is gone; also the TTL of the manager's
            own lease.
        leader_ttl_s: seconds for which its lease as leader of a service is valid unless renewed.
        admission: probe teachers before students get them.
        sweep_s: longest pause between reads of the registry, in seconds. Some events, such as a new
            student or an expiring lease, cause an earlier read.
        outage_sweep_s: the same while the registry does not answer.
        autoscale: settings of autoscaling, for services whose deployment has none of its own.
    """

    ttl_s: float = DEFAULT_TTL_S
    leader_ttl_s: float = DEFAULT_LEADER_TTL_S
    admission: bool = True
    sweep_s: float = 0.1
    outage_sweep_s: float = 0.5
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)

    def __post_init__(self) -> None:
        if not 0.1 <= self.ttl_s <= 3600:
            raise UsageError(f"a TTL must be between 0.1 and 3600 seconds, not {self.ttl_s:g}")
        if not 0.3 <= self.leader_ttl_s <= 60:
            raise UsageError(
                f"a leader's TTL must be between 0.3 and 60 seconds, not {self.leader_ttl_s:g}"
            )
