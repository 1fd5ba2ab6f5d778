"""Settings of the operator's reconcilers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runtime.errors import UsageError
from ...scheduler.elastic_values import ElasticConfig


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Settings of the reconcilers; use the same ones for all operators of a cluster.

    Attributes:
        namespace: namespace of the resources; "": all namespaces.
        coordinator: Redis URL of the mesh for resources that name none, and of the only Redis where
            the progress of trainings is read; None: each TeacherService and each training must name
            one, and progress is unknown.
        interval_s: seconds between two rounds if nothing changes.
        elastic: how jobs share the cluster.
        growing_cluster: the cluster adds machines for waiting pods, so its free resources do not
            limit the number of teachers or nodes.
        place_within_s: if the cluster reports for so many seconds that it cannot place or start a
            node's pod, the job runs without the node for a while.
        place_again_s: seconds until the job requests that node again. Each attempt takes room from
            jobs of lower priority. So while even the least number of nodes cannot be placed, each
            pause is as long as this state has lasted, at least `place_again_s` and at most an hour.
        lost_pause_s: seconds of pause after the cluster has ended a node. The pause doubles, up to
            60 s, with each further node that the cluster ends while no newer node runs.
    """

    namespace: str = "default"
    coordinator: str | None = None
    interval_s: float = 5.0
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    growing_cluster: bool = False
    place_within_s: float = 120.0
    place_again_s: float = 300.0
    lost_pause_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.place_within_s >= 0:
            raise UsageError(
                f"--share place-within: expects 0 s or more, not {self.place_within_s}"
            )
        if not 0.05 <= self.interval_s <= 300:
            raise UsageError(f"--interval: expects 0.05 to 300 seconds, not {self.interval_s}")
