"""Hedging: late requests go to a second teacher. Also finds silent teachers and stragglers.

A teacher processes its window in order. So a request begins when it is sent or, with others before
it, when the latest of them is answered. The time from there to its own answer is its *turnaround*.
Turnarounds are kept per row and per teacher: a teacher that is ten times slower is expected to take
ten times as long, so it is not late for being slow and keeps its share of the work. The *stretch*
of the pool is a high quantile, over the answers of all teachers, of actual over expected time.

A request is late when it takes longer than its teacher's expected time, times the stretch, times a
patience. Patience is lower for the batch that the student waits for, and the expected time is then
at most that of an idle teacher, because asking an idle teacher costs nothing.

Hedges have a budget: a token bucket, counted in requests, that starts empty. At any time at most
`SHARE` of the requests sent are hedged. Beyond the budget only requests of a *silent* teacher are
hedged, all of them. A teacher is silent when it is late twice over while another one is in time. If
all teachers are late, our own network or machine has stopped, and hedges would not help. A long gap
between two looks (a stopped process) does not count as waiting.

A *straggler* is much slower than the others, or silent. It keeps its work; operators want to know,
because a throttled or shared device looks like this. A teacher is named once it has been `SLOWER`
times as slow as the median of the others for `LASTING_S`, and at once when it is silent. It is
cleared when it is less than `CLEARED` times as slow.

Most looks find nothing. So `Lateness` computes a lower bound of the next moment at which something
can be late: the shortest expected time of any teacher times the lowest patience.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from statistics import median_low
from typing import Final, Literal

from ..circuit_breakers import Log
from ..ledger import InFlight, Ledger
from ..ledger import events as ev
from .request_pacing import RequestPacing, Turnarounds, began

#: Hedges per sent request, and most hedges that can be saved up.
SHARE, BURST = 0.05, 8.0
#: Patience for a request, and for one that the student waits for.
PATIENCE, URGENCY = 3.0, 1.5
#: No request is late, and no teacher silent, before so many seconds.
FLOOR_S, SILENT_S = 0.1, 0.5
#: A longer gap in seconds between two looks is not counted.
ASLEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Flight:
    """A request in flight.

    Attributes:
        request: its number.
        rows: number of rows.
        batch: its first batch; lower ones are delivered earlier.
        sent_at: time of sending.
        also_at: other teachers with a copy that would count as well.
        wanted: its answer would still be used.
    """

    request: int
    rows: int
    batch: int
    sent_at: float
    also_at: frozenset[str] = frozenset()
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class BusyTeacher:
    """A teacher, with or without requests in flight.

    Attributes:
        name: its id.
        flights: requests in flight, in the order of sending.
        window: most requests in flight (>= 1).
        answered_at: latest answer; minus infinity: none.
        usable: it may get requests; a revoked teacher still has flights.
    """

    name: str
    flights: tuple[Flight, ...]
    window: int = 2
    answered_at: float = -inf
    usable: bool = True


class Hedging:
    """Finds late requests.

    Attributes:
        late: teachers with an oldest request that was late at the latest look.
        silent: late teachers that have not answered for long, while another one is in time.
        paid: requests in flight with a hedge that is paid for.
        tokens: number of hedges that the budget allows now.
        awake_since: earlier times do not count as waiting.
    """

    def __init__(self, tokens: float = 0.0) -> None:
        self.late: frozenset[str] = frozenset()
        self.silent: frozenset[str] = frozenset()
        self.paid: frozenset[int] = frozenset()
        self.tokens = tokens
        self.awake_since = -inf
        self._sent = 0
        self._seen_at: float | None = None

    def elapse(self, now: float) -> None:
        """Record that time has passed; a long gap between two calls is not counted."""
        if self._seen_at is not None and now - self._seen_at > ASLEEP_S:
            self.awake_since = now
        self._seen_at = now

    def find_late(
        self,
        teachers: Sequence[BusyTeacher],
        times: Turnarounds,
        sent: int,
        awaited: int | None,
        now: float,
    ) -> list[int]:
        """Find late requests.

        Args:
            teachers: all that have requests in flight or could have.
            times: turnarounds of the answers so far.
            sent: number of requests sent so far, without hedges; it never falls.
            awaited: the batch that the student waits for; None: it does not wait.
            now: seconds of a clock that does not go back.

        Returns:
            Requests to hedge, the most urgent first. Each is returned at every look until it is
            seen as hedged, or gone, and is paid for once. A request hedged to a teacher that has
            become silent is returned again.
        """
        look = _PoolView(teachers, times, awaited, self.awake_since, now)
        standing = {teacher.name: look.standing(teacher) for teacher in teachers}
        self.late = frozenset(name for name, found in standing.items() if found != "in time")
        self.silent = frozenset(name for name, found in standing.items() if found == "silent")
        suspects: list[tuple[Flight, bool]] = []
        if any(teacher.usable and teacher.name not in self.late for teacher in teachers):
            for teacher in teachers:
                if teacher.name in self.late:
                    beyond_budget = teacher.name in self.silent
                    stuck = _stuck(teacher, self.silent)
                    suspects += [(flight, beyond_budget) for flight in stuck]
        else:
            self.silent = frozenset()  # no teacher is in time: the cause is ours
        self.tokens = min(self.tokens + SHARE * (sent - self._sent), BURST)
        self._sent = sent
        paid = set(self.paid & {f.request for t in teachers for f in t.flights})
        hedge = []
        for flight, beyond_budget in sorted(suspects, key=lambda suspect: suspect[0].batch):
            if flight.request not in paid:
                if self.tokens < 1 and not beyond_budget:
                    continue
                self.tokens = max(self.tokens - 1, 0.0)
                paid.add(flight.request)
            hedge.append(flight.request)
        self.paid = frozenset(paid)
        return list(dict.fromkeys(hedge))


def _stuck(teacher: BusyTeacher, silent: Set[str]) -> list[Flight]:
    """Return what to hedge: all requests of a silent teacher, else its most urgent one."""
    wanted = sorted((f for f in teacher.flights if f.wanted), key=lambda flight: flight.batch)
    late = wanted if teacher.name in silent else wanted[:1]
    return [flight for flight in late if flight.also_at <= silent]


@dataclass(frozen=True, slots=True)
class _PoolView:
    """One look at the pool."""

    teachers: Sequence[BusyTeacher]
    times: Turnarounds
    awaited: int | None
    awake_since: float
    now: float

    def standing(self, teacher: BusyTeacher) -> Literal["in time", "late", "silent"]:
        """Classify a teacher by the oldest request that it has."""
        if not teacher.flights:
            return "in time"
        first = teacher.flights[0]
        expected_s = self.times.expected_s(teacher.name, first.rows)
        if expected_s is None:
            return "in time"
        limit_s = self._limit_s(teacher, expected_s)
        quiet_s = self._since(began(first.sent_at, teacher.answered_at))
        # It may answer other requests and never this one, which may wait for a whole window.
        if quiet_s < limit_s and self._since(first.sent_at) < teacher.window * limit_s:
            return "in time"
        longest_s = 2 * PATIENCE * self.times.stretch * expected_s
        return "silent" if quiet_s >= max(longest_s, SILENT_S) else "late"

    def _limit_s(self, teacher: BusyTeacher, expected_s: float) -> float:
        """Return the seconds after which the teacher's oldest request is late."""
        patience, rows = PATIENCE, teacher.flights[0].rows
        if any(f.wanted and f.batch == self.awaited for f in teacher.flights):
            patience = URGENCY
            idle = [other for other in self.teachers if other.usable and not other.flights]
            could_s = [self.times.expected_s(other.name, rows) or expected_s for other in idle]
            expected_s = min([expected_s, *could_s])
        return max(patience * self.times.stretch * expected_s, FLOOR_S)

    def _since(self, moment: float) -> float:
        """Return the seconds since then, without gaps between looks."""
        return self.now - max(moment, self.awake_since)


SLOWER, CLEARED = 3.0, 2.0
LASTING_S = 5.0


@dataclass(frozen=True, slots=True)
class Straggling:
    """State between two calls of `name_stragglers`.

    Attributes:
        named: the named stragglers.
        since: since when each teacher is too slow.
    """

    named: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


def name_stragglers(
    seconds_per_row: Mapping[str, float], silent: Set[str], before: Straggling, now: float
) -> Straggling:
    """Update the stragglers of a pool; call it a few times per second.

    Args:
        seconds_per_row: of each teacher that has answered.
        silent: teachers that are silent while others answer.
        before: the previous state.
        now: seconds of a clock that does not go back.
    """
    times = seconds_per_row.values()
    if not times or max(times) < CLEARED * min(times):  # the usual case
        return Straggling(frozenset(silent))
    slow = {
        name
        for name, seconds in seconds_per_row.items()
        if seconds >= (CLEARED if name in before.named else SLOWER) * _usual(seconds_per_row, name)
    }
    since = {name: before.since.get(name, now) for name in slow}
    lasting = {name for name in slow if name in before.named or now - since[name] >= LASTING_S}
    return Straggling(frozenset(lasting | silent), since)


def _usual(seconds_per_row: Mapping[str, float], but: str) -> float:
    """Return the lower median of the other teachers' times; infinity: there is no other."""
    others = [seconds for name, seconds in seconds_per_row.items() if name != but]
    return median_low(others) if others else inf


#: Interval in seconds of the checks that depend on time alone.
LOOK_EVERY_S: Final = 0.05
#: Interval of comparing speeds while nothing is late.
COMPARE_EVERY_S: Final = 1.0


class Lateness:
    """Watches the requests of one service.

    Args:
        ledger: knows what is in flight.
        pacing: knows the expected times.
        log: writes a log message.

    Attributes:
        hedging: which teachers are late or silent, and which requests have a hedge.
    """

    def __init__(self, ledger: Ledger, pacing: RequestPacing, log: Log) -> None:
        self._ledger = ledger
        self._pacing = pacing
        self._log = log
        self.hedging = Hedging()
        self._straggling = Straggling()
        self._look_at = self._least_s = inf
        self._waits = False
        self._compare_at = -inf

    @property
    def stragglers(self) -> list[str]:
        """Teachers that are much slower than the others, or silent."""
        return sorted(self._straggling.named)

    def sent(self, now: float) -> None:
        self._look_at = min(self._look_at, now + self._least_s)

    def answered(self, name: str) -> None:
        """Record an answer: the teacher may now be the fastest one."""
        known = self._pacing.times.of(name)
        if known is None:
            return
        if self._limit_s(known.expected_s(1)) < self._least_s:
            self._look_at = min(self._look_at, self._due())

    def look(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        """Return the requests to hedge.

        Args:
            waits: the training loop waits for labels.
            unusable: teachers that get no requests now.
            now: seconds of a clock that does not go back.
        """
        self.hedging.elapse(now)
        hedges: list[ev.Hedge] = []
        if waits and not self._waits:
            self._look_at = -inf  # patience is lower now
        self._waits = waits
        if now >= self._look_at:
            due = self._due()
            if self.hedging.late or due <= now:
                hedges = self._find(waits, unusable, now)
                due = now + LOOK_EVERY_S
            self._look_at = due
        if now >= self._compare_at:
            self._compare(now)
        return hedges

    def _find(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        ledger, pacing, hedges = self._ledger, self._pacing, self.hedging
        asked = tuple(
            BusyTeacher(
                name,
                tuple(self._flights(name, ledger.requests_at(name))),
                pacing.window(name),
                pacing.answered_at(name),
                name in ledger.teachers and name not in unusable,
            )
            for name in dict.fromkeys((*ledger.teachers, *ledger.at_work))
        )
        paid, silent = hedges.paid, hedges.silent
        found = hedges.find_late(
            asked, pacing.times, ledger.sent, ledger.head if waits else None, now
        )
        for request in hedges.paid - paid:
            self._log("info", f"request {request} is late: it was sent to another teacher too", "")
        if hedges.silent != silent:
            self._compare_at = now
        return [ev.Hedge(request) for request in found]

    def _compare(self, now: float) -> None:
        self._compare_at = now + COMPARE_EVERY_S
        times = self._pacing.times
        known = {name: times.of(name) for name in self._ledger.teachers}
        seconds = {name: one.seconds_per_row for name, one in known.items() if one is not None}
        before = self._straggling.named
        self._straggling = name_stragglers(seconds, self.hedging.silent, self._straggling, now)
        for name in self._straggling.named - before:
            self._log("warning", f"teacher {name} is a straggler", name)

    def _due(self) -> float:
        """Return the earliest time at which something can be late."""
        pacing = self._pacing
        names = dict.fromkeys((*self._ledger.teachers, *self._ledger.at_work))
        expected = [
            known.expected_s(1) for name in names if (known := pacing.times.of(name)) is not None
        ]
        if not expected:
            self._least_s = inf
            return inf
        self._least_s = least_s = self._limit_s(min(expected))
        due = inf
        for name in names:
            if (oldest := pacing.oldest(name)) is not None:
                quiet = began(oldest, pacing.answered_at(name)) + least_s
                due = min(due, quiet, oldest + pacing.window(name) * least_s)
        return due

    def _limit_s(self, expected_s: float) -> float:
        """Return a lower bound of the time that a request with this expected time may take."""
        patience = URGENCY if self._waits else PATIENCE
        return max(patience * expected_s, FLOOR_S)

    def _flights(self, name: str, requests: Iterable[InFlight]) -> Iterable[Flight]:
        for one in requests:
            if (sent_at := self._pacing.sent_at(name, one.request)) is not None:
                yield Flight(
                    one.request,
                    one.rows,
                    one.spans[0].batch,
                    sent_at,
                    also_at=frozenset(one.teachers) - {name},
                    wanted=bool(one.teachers),
                )
