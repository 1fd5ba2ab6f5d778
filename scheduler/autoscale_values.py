"""What autoscaling is told, remembers and decides: the values of `autoscale`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

#: A bound that nobody has stated.
NO_BOUND = 100_000
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """How one service is scaled.

    Attributes:
        min: teachers kept while any student is there; without students there are none all the same.
        max: never more teachers than this.
        freeze_s: seconds between two changes of the number, at least.
        up_after_s: seconds for which more must have been needed; a student that starves need not
            wait so long.
        down_after_s: seconds for which fewer must have been enough.
        idle_to_zero_s: seconds without any student after which no teacher is wanted.
        price_per_teacher_hour: what one teacher costs, in any currency; 0: nothing.
        cost_ceiling_per_hour: what all teachers together may cost, in the same; None: anything.

    Raises:
        ValueError: a bound is broken.
    """

    min: int = 1
    max: int = NO_BOUND
    freeze_s: float = 30.0
    up_after_s: float = 10.0
    down_after_s: float = 60.0
    idle_to_zero_s: float = 120.0
    price_per_teacher_hour: float = 0.0
    cost_ceiling_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max <= NO_BOUND:
            raise ValueError(
                f"needs 0 <= min <= max <= {NO_BOUND}, not min {self.min}, max {self.max}"
            )
        for name in ("freeze_s", "up_after_s", "down_after_s", "idle_to_zero_s"):
            if not 0 <= getattr(self, name) <= 86_400:
                raise ValueError(
                    f"{name} is between 0 and 86400 seconds, not {getattr(self, name):g}"
                )
        price, ceiling = self.price_per_teacher_hour, self.cost_ceiling_per_hour
        if not (isfinite(price) and price >= 0):
            raise ValueError(f"a price is not negative, not {price:g}")
        if ceiling is not None and not (isfinite(ceiling) and ceiling >= 0):
            raise ValueError(f"a cost ceiling is not negative, not {ceiling:g}")

    @property
    def affordable(self) -> int:
        """Teachers that the cost ceiling pays for."""
        price, ceiling = self.price_per_teacher_hour, self.cost_ceiling_per_hour
        if ceiling is None or price == 0 or ceiling >= price * NO_BOUND:
            return NO_BOUND
        return int(ceiling / price * (1 + _ROUNDING))  # 0.3 pays for three at 0.1

    @property
    def most(self) -> int:
        """Never more teachers than this: the smaller of `max` and what the ceiling pays for."""
        return min(self.max, self.affordable)


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """One service as it is now.

    Attributes:
        students: how many there are.
        serving: teachers that may be assigned.
        starting: teachers that are there, and not admitted yet.
        wanted: teachers that all students want, together.
        starving: students that starve now.
        starved_s: seconds that students have waited for labels; a sum that grows.
        blocked_s: seconds that they have paused pulling since they have labels enough; likewise.
        samples_per_s: that they train.
        t_t_s: seconds per sample of the average teacher; 0: not known.
        demand_per_s: samples per second that all students would train unhindered, sum of 1 / t_s;
            0: not known of each of them.
        recovering: not everybody may be back that is there: nothing is taken away now.
    """

    students: int
    serving: int
    starting: int = 0
    wanted: int = 0
    starving: int = 0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    samples_per_s: float = 0.0
    t_t_s: float = 0.0
    demand_per_s: float = 0.0
    recovering: bool = False

    @property
    def ratio(self) -> float | None:
        """How many teachers' time the students' time is worth; None: not known."""
        product = self.t_t_s * self.demand_per_s
        return product if 0 < product < inf else None


@dataclass(frozen=True, slots=True)
class Desired:
    """How many teachers a service should have.

    Attributes:
        count: so many.
        reason: why, in words; stays the same while the number does, and what bounds it.
    """

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """A time in which all that was seen lay on one side of the number that is desired.

    Attributes:
        since: when it began.
        seen_at: when was looked last.
        latest: the number seen then.
        peak: the greatest number seen.
        area: the numbers, summed over the seconds that each of them stood until then.
    """

    since: float
    seen_at: float
    latest: int
    peak: int
    area: float = 0.0

    def longer(self, seen: int, now: float) -> Run:
        """The same with one more look."""
        area = self.area + self.latest * (now - self.seen_at)
        return Run(self.since, now, seen, max(self.peak, seen), area)

    @property
    def lasted_s(self) -> float:
        """From its first look to its last."""
        return self.seen_at - self.since

    @property
    def mean(self) -> float:
        """Of the numbers, over time; of the only one where there was one look."""
        return self.area / self.lasted_s if self.lasted_s > 0 else float(self.latest)


@dataclass(frozen=True, slots=True)
class AutoscaleMemory:
    """What one decision leaves to the next; a fresh one knows nothing.

    Who takes over from another decider begins with `desired`, `changed_at` and `reason` alone.

    Attributes:
        desired: the number last decided; None: none yet.
        changed_at: when it was changed last.
        reason: why it was.
        now: when the last decision was; None: there was none.
        starved_s, blocked_s: sums as of the last decision.
        starved_share, blocked_share: of the students' time, averaged over the last seconds.
        idle_since: since when there is no student; None: there is one.
        above: while more is needed than is desired: the numbers needed.
        below: while less is enough: the numbers that are.
        held: students starved with one fewer than this; 0: that has not been seen.
        held_ratio: the load's `ratio` at that time.
    """

    desired: int | None = None
    changed_at: float = -inf
    reason: str = ""
    now: float | None = None
    starved_s: float = 0.0
    blocked_s: float = 0.0
    starved_share: float = 0.0
    blocked_share: float = 0.0
    idle_since: float | None = None
    above: Run | None = None
    below: Run | None = None
    held: int = 0
    held_ratio: float = 0.0
