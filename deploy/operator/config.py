"""What the operator is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runtime.errors import UsageError
from ...scheduler.elastic_values import ElasticConfig


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """How the operator works; the same at all that may lead.

    Attributes:
        namespace: whose resources it makes true; "": those of all namespaces.
        coordinator: Redis URL of the mesh for resources that name none; None: they have to.
        interval_s: seconds between two looks at everything, where nothing is noticed before.
        elastic: how jobs share what the cluster has.
        growing_cluster: nodes come when pods wait for them: what is free now bounds no number of
            teachers, nor of nodes of jobs.
        place_within_s: a node of a job that the cluster can place nowhere for so long is given up
            for a while.
    """

    namespace: str = "default"
    coordinator: str | None = None
    interval_s: float = 5.0
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    growing_cluster: bool = False
    place_within_s: float = 120.0

    def __post_init__(self) -> None:
        if not self.place_within_s >= 0:
            raise UsageError(f"--place-within: expects 0 s or more, not {self.place_within_s}")
        if not 0.05 <= self.interval_s <= 300:
            raise UsageError(f"--interval: expects 0.05 to 300 seconds, not {self.interval_s}")
