"""Labels of several services as one: what each weighs, and what is done when one is missing.

The weights are normalised. A batch is complete when every member has labelled it. A member counts
as missing when it has had no usable teacher for a while; one that is merely slow is waited for. By
the policy "wait" a missing member is waited for too; by "tolerate" the others' weights are scaled
up to 1 in its place, and how much weight there was is told of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Literal


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The members and the policy.

    Attributes:
        weights: of each service (> 0), as the user gave them.
        missing: what to do without one: "wait" or "tolerate".
        after_s: seconds without a usable teacher after which a member is missing.
        shares: the weights, scaled to a sum of 1.

    Raises:
        ValueError: no member, a weight that is not positive and finite, a bound that makes no
            sense.
    """

    weights: Mapping[str, float]
    missing: Literal["wait", "tolerate"] = "wait"
    after_s: float = 5.0
    shares: Mapping[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.weights or not all(0 < weight < inf for weight in self.weights.values()):
            raise ValueError(
                f"an ensemble needs services with weights above 0, not {dict(self.weights)}"
            )
        if self.missing not in ("wait", "tolerate"):
            raise ValueError(f"a missing member is waited for or tolerated, not {self.missing!r}")
        if not 0 <= self.after_s < inf:
            raise ValueError(f"a member is missing after 0 s or more, not {self.after_s} s")
        largest = max(self.weights.values())  # as the unit, so that no sum overflows
        total = fsum(weight / largest for weight in self.weights.values())
        shares = {name: weight / largest / total for name, weight in self.weights.items()}
        object.__setattr__(self, "shares", shares)


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the labels of one batch are made.

    Attributes:
        shares: of each member that takes part; their sum is 1.
        weight: how much of the ensemble that is, 1 when nobody is missing.
    """

    shares: Mapping[str, float]
    weight: float


def mixture(
    ensemble: Ensemble, labelled: Set[str], alone_since: Mapping[str, float], now: float
) -> Mixture | None:
    """What a batch is mixed of now; None: it waits.

    Args:
        ensemble: the members.
        labelled: the members that have labelled the batch.
        alone_since: since when each member without a usable teacher has been so.
        now: seconds of the same clock.
    """
    there = [name for name in ensemble.shares if name in labelled]
    if len(there) == len(ensemble.shares):
        return Mixture(ensemble.shares, 1.0)
    missing = {name for name, since in alone_since.items() if now - since >= ensemble.after_s}
    if ensemble.missing == "wait" or not there or ensemble.shares.keys() - labelled - missing:
        return None
    weight = fsum(ensemble.shares[name] for name in there)
    return Mixture({name: ensemble.shares[name] / weight for name in there}, weight)
