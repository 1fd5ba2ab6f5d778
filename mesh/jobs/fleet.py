"""What a runner of jobs has: slots of this machine, how they are shared, where things are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UsageError
from ...scheduler.elastic_values import ElasticConfig


@dataclass(frozen=True, slots=True)
class Fleet:
    """See the module.

    Attributes:
        runner_id: its name, another with each start.
        host: of its machine, for people.
        coordinator: Redis URL that the nodes of its jobs are told.
        cores: of each slot; as many slots as there are.
        folder: for logs, and checkpoints that no job names.
        config: how jobs share.
        yield_s: a node that is in the way of a reservation has so long to leave, then it is killed.
        ttl_s: unless it beats within this, it is lost, and another runner may have the queue.
        cards: accelerator cards, one for each slot; none: nodes see what this process sees.
    """

    runner_id: str
    host: str
    coordinator: str
    cores: tuple[tuple[int, ...], ...]
    folder: Path
    config: ElasticConfig = field(default_factory=ElasticConfig)
    yield_s: float = 8.0
    ttl_s: float = 5.0
    cards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cores:
            raise UsageError("a fleet has at least one slot")
        if self.cards and len(self.cards) != len(self.cores):
            raise UsageError(
                f"{len(self.cards)} cards for {len(self.cores)} slots: name one for each"
            )
