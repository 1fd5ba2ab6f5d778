"""Which requests are asked of a second teacher, because the first is late or has fallen silent.

A request is late when it takes longer than is expected at its teacher (`turnaround`), stretched by
the pool's own quantile, times a patience. Patience is less for what the student waits for, and then
the measure is, if that is sooner, what an idle teacher would need: to ask it costs nothing. A slow
teacher is therefore not late where it is merely slow: it keeps its share of the work.

What is late is hedged within a budget: a token bucket, counted in requests, that starts empty, so
at any time hedges are at most `share` of the requests sent. Beyond it only the requests of a
*silent* teacher are hedged, all of them: one that is late twice over while another is in time. If
all are late it is our own network or machine that stands still, and hedges would not help.

Time in which nobody looked (the process was stopped) is no teacher's fault and counts for nobody.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from math import inf
from typing import Literal

from .turnaround import Turnarounds, began


@dataclass(frozen=True, slots=True)
class HedgeConfig:
    """When a request is late.

    Attributes:
        share: most hedges per request that was sent, in calm weather.
        burst: hedges that can be saved up.
        patience: so many times the longest usual time may a request take.
        urgency: the same for one that the student waits for.
        floor_s: nothing is late before.
        silent_s: no teacher is silent before.
        asleep_s: a longer time between two looks counts for nobody.

    Raises:
        ValueError: a number that makes no sense.
    """

    share: float = 0.05
    burst: float = 8.0
    patience: float = 3.0
    urgency: float = 1.5
    floor_s: float = 0.1
    silent_s: float = 0.5
    asleep_s: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 <= self.burst and 1 <= self.urgency <= self.patience):
            raise ValueError(f"needs share <= 1 <= burst and 1 <= urgency <= patience: {self}")
        if min(self.floor_s, self.silent_s, self.asleep_s) <= 0:
            raise ValueError(f"times are above 0 s: {self}")


@dataclass(frozen=True, slots=True)
class Flight:
    """A request in flight.

    Attributes:
        request: its number.
        rows: that it asks labels for.
        batch: the first batch that it has rows of; lower ones are delivered earlier.
        sent_at: when it was sent.
        also_at: other teachers whose answer to it would count as well.
        wanted: whether its answer would still be used.
    """

    request: int
    rows: int
    batch: int
    sent_at: float
    also_at: frozenset[str] = frozenset()
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """A teacher that is asked.

    Attributes:
        name: its id.
        flights: what it has in flight, in the order of sending.
        window: how many those can be (>= 1).
        answered_at: its latest answer; minus infinity if there was none.
        usable: whether it may be sent to; one that is revoked still has flights.
    """

    name: str
    flights: tuple[Flight, ...]
    window: int = 2
    answered_at: float = -inf
    usable: bool = True


@dataclass(frozen=True, slots=True)
class HedgeView:
    """What is the case now.

    Attributes:
        teachers: all that have requests in flight or could have.
        sent: requests sent so far, hedges not among them; never falls.
        awaited: the batch that the student waits for; None while it does not wait.
    """

    teachers: tuple[Asked, ...]
    sent: int
    awaited: int | None = None


@dataclass(frozen=True, slots=True)
class HedgeMemory:
    """What one look leaves to the next.

    Attributes:
        tokens: hedges that are saved up.
        sent: requests sent by then.
        looked_at: when that was; None before the first look.
        awake_since: no request began before, as far as lateness goes.
        charged: requests whose hedge is paid for, and still to be seen as hedged.
    """

    tokens: float = 0.0
    sent: int = 0
    looked_at: float | None = None
    awake_since: float = -inf
    charged: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class HedgeDecision:
    """What to do now.

    Attributes:
        hedge: requests to ask of another teacher too, the most urgent first. Each comes back at
            every look until it is seen as hedged, or gone, and is paid for once. One that is hedged
            to a teacher which has fallen silent too comes again.
        late: teachers whose oldest request is late.
        silent: those of them that have answered nothing for long, while another is in time.
    """

    hedge: tuple[int, ...] = ()
    late: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


def decide(
    view: HedgeView,
    times: Turnarounds,
    memory: HedgeMemory,
    now: float,
    config: HedgeConfig,
) -> tuple[HedgeDecision, HedgeMemory]:
    """Look for requests that are late.

    Args:
        view: what is the case.
        times: of the answers so far.
        memory: what the last look left.
        now: seconds of a clock that does not go back.
        config: the settings, the same at each call.
    """
    slept = memory.looked_at is not None and now - memory.looked_at > config.asleep_s
    awake_since = now if slept else memory.awake_since
    look = _Look(view, times, awake_since, now, config)
    standing = {teacher.name: look.standing(teacher) for teacher in view.teachers}
    late = frozenset(name for name, found in standing.items() if found != "in time")
    silent = frozenset(name for name, found in standing.items() if found == "silent")
    suspects: list[tuple[Flight, bool]] = []
    if any(teacher.usable and teacher.name not in late for teacher in view.teachers):
        for teacher in view.teachers:
            if teacher.name in late:
                beyond_budget = teacher.name in silent
                stuck = _stuck(teacher, silent)
                suspects += [(flight, beyond_budget) for flight in stuck]
    else:
        silent = frozenset()  # nobody is in time: it is not them
    tokens = min(memory.tokens + config.share * (view.sent - memory.sent), config.burst)
    charged = memory.charged & {f.request for t in view.teachers for f in t.flights}
    hedge = []
    for flight, beyond_budget in sorted(suspects, key=lambda suspect: suspect[0].batch):
        if flight.request not in charged:
            if tokens < 1 and not beyond_budget:
                continue
            tokens = max(tokens - 1, 0.0)
            charged |= {flight.request}
        hedge.append(flight.request)
    memory = HedgeMemory(tokens, view.sent, now, awake_since, charged)
    return HedgeDecision(tuple(dict.fromkeys(hedge)), late, silent), memory


def _stuck(teacher: Asked, silent: Set[str]) -> list[Flight]:
    """What to ask of another: all that a silent one has, else what is delivered first of it."""
    wanted = sorted((f for f in teacher.flights if f.wanted), key=lambda flight: flight.batch)
    late = wanted if teacher.name in silent else wanted[:1]
    return [flight for flight in late if flight.also_at <= silent]


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the pool."""

    view: HedgeView
    times: Turnarounds
    awake_since: float
    now: float
    config: HedgeConfig

    def standing(self, teacher: Asked) -> Literal["in time", "late", "silent"]:
        """How a teacher stands with the oldest request that it has."""
        if not teacher.flights:
            return "in time"
        first = teacher.flights[0]
        expected_s = self.times.expected_s(teacher.name, first.rows)
        if expected_s is None:
            return "in time"
        limit_s = self._limit_s(teacher, expected_s)
        quiet_s = self._since(began(first.sent_at, teacher.answered_at))
        # One that answers others, and never this: it may have had to wait for a whole window.
        if quiet_s < limit_s and self._since(first.sent_at) < teacher.window * limit_s:
            return "in time"
        longest_s = 2 * self.config.patience * self.times.stretch * expected_s
        return "silent" if quiet_s >= max(longest_s, self.config.silent_s) else "late"

    def _limit_s(self, teacher: Asked, expected_s: float) -> float:
        """What the oldest request may take."""
        patience, rows = self.config.patience, teacher.flights[0].rows
        if any(f.wanted and f.batch == self.view.awaited for f in teacher.flights):
            patience = self.config.urgency
            idle = [other for other in self.view.teachers if other.usable and not other.flights]
            could_s = [self.times.expected_s(other.name, rows) or expected_s for other in idle]
            expected_s = min([expected_s, *could_s])
        return max(patience * self.times.stretch * expected_s, self.config.floor_s)

    def _since(self, moment: float) -> float:
        """Seconds since then in which somebody looked."""
        return self.now - max(moment, self.awake_since)
