"""How each teacher has answered of late, for those who watch; decisions have their own figures."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ...scheduler.rates import LowQuantile, RecentRate

#: Answers over which the quantiles are taken, and seconds over which the rate is.
ANSWERS: Final = 256
HORIZON_S: Final = 5.0
QUANTILES: Final = (0.5, 0.95, 0.99)


class TeacherTimes:
    """The teachers of one member. Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._rates: dict[str, RecentRate] = {}
        self._quantiles: dict[str, dict[float, LowQuantile]] = {}

    def answered(self, teacher: str, samples: int, seconds: float, now: float) -> None:
        """It has labelled `samples` rows, `seconds` after it was asked."""
        if teacher not in self._rates:
            self._rates[teacher] = RecentRate(HORIZON_S)
            self._quantiles[teacher] = {q: LowQuantile(ANSWERS, q) for q in QUANTILES}
        self._rates[teacher].add(samples, now)
        for quantile in self._quantiles[teacher].values():
            quantile.add(seconds)

    def samples_per_s(self, teacher: str, now: float) -> float:
        """Rows per second, over the last seconds; 0 of one that has not answered."""
        return self._rates[teacher].value(now) if teacher in self._rates else 0.0

    def quantile_s(self, teacher: str, q: float) -> float | None:
        """Seconds in which it answered that share of its latest requests; None: not one."""
        return self._quantiles[teacher][q].value if teacher in self._quantiles else None

    def keep(self, teachers: Collection[str]) -> None:
        """Forget all others."""
        for teacher in self._rates.keys() - set(teachers):
            del self._rates[teacher], self._quantiles[teacher]
