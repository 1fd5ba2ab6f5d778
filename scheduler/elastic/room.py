"""What is left of each kind of resource of a pool, and what a job holds of it."""

from __future__ import annotations

from collections.abc import Mapping

from .values import ElasticJob, Pool

_TOLERANCE = 1e-9


class Room:
    """What is left of each kind of resource; it may go below 0."""

    def __init__(self, amounts: Mapping[str, float]) -> None:
        self._left = dict(amounts)

    @classmethod
    def of(cls, pool: Pool, max_load: float) -> Room:
        """What jobs may take: the pool up to its load, less what online services hold."""
        return cls(
            {
                kind: max(0.0, amount * max_load - pool.reserved.get(kind, 0.0))
                for kind, amount in pool.capacity.items()
            }
        )

    def copy(self) -> Room:
        return Room(self._left)

    def left(self, kind: str) -> float:
        return self._left.get(kind, 0.0)

    def fits(self, amounts: Mapping[str, float]) -> bool:
        """Whether so much is left; a kind that the pool does not have is never left."""
        return all(
            amount <= self.left(kind) + _TOLERANCE * (1.0 + amount)
            for kind, amount in amounts.items()
            if amount > 0
        )

    def take(self, amounts: Mapping[str, float], times: int = 1) -> None:
        for kind, amount in amounts.items():
            self._left[kind] = self.left(kind) - amount * times

    def give(self, amounts: Mapping[str, float], times: int = 1) -> None:
        self.take(amounts, -times)

    def short_of(self) -> frozenset[str]:
        """The kinds of which more is taken than there is."""
        return frozenset(k for k, left in self._left.items() if left < -_TOLERANCE * (1 - left))


def held(job: ElasticJob, nodes: int) -> dict[str, float]:
    """What a job holds with so many nodes: nothing, or its base and theirs."""
    if nodes == 0:
        return {}
    kinds = {**job.base, **job.needs}
    return {
        kind: job.base.get(kind, 0.0) + nodes * job.needs.get(kind, 0.0) for kind in sorted(kinds)
    }
