"""Hedging: late requests go to a second teacher. Also finds silent teachers and stragglers.

A teacher processes the requests of its window in order. So it begins with a request when the
request is sent or, if others were sent before it, when the last of these is answered. The time from
then to the answer of the request is its *turnaround*. Turnarounds are averaged per row and per
teacher: a teacher that is ten times slower is expected to take ten times as long, so it is not late
for being slow and keeps its share of the work. The *stretch* of the pool is a high quantile, over
the answers of all teachers, of the ratio of actual to expected turnaround.

A request is late when it takes longer than its teacher's expected turnaround, times the stretch,
times a *patience*. For the batch that the student waits for, the patience is lower, and the
expected turnaround is at most that of an idle teacher, because using an idle teacher costs nothing.

Hedges have a budget: a token bucket that starts empty, and gains `SHARE` of a hedge with each
request sent. Beyond the budget only requests of a *silent* teacher are hedged, all of them. A
teacher is silent when it has not answered for twice the limit of a late request, while another
teacher is in time. If all teachers are late, the reader's own network or machine has stopped, and
hedges would not help. A long gap between two calls of `tick` (a stopped process) does not count as
waiting.

A *straggler* is much slower than the others, or silent. It keeps its work, but operators want to
know of it, because a throttled or shared device looks like this. A teacher is named as a straggler
once it has been `SLOWER` times as slow as the median of the others for `LASTING_S`, and at once
when it is silent. It is cleared when it is less than `CLEARED` times as slow.

Most calls of `tick` find nothing. So `Lateness` first computes a lower bound of the time at which
something is late, from the shortest expected turnaround of any teacher and the lowest patience.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from statistics import median_low
from typing import Final, Literal

from ..circuit_breakers import Log
from ..ledger import Ledger
from ..ledger import events as ev
from .request_pacing import RequestPacing, Turnarounds, began

#: Hedges that the budget gains per sent request, and the limit of hedges that can be saved up.
SHARE, BURST = 0.05, 8.0
#: Patience for a request, and for one that the student waits for.
PATIENCE, URGENT_PATIENCE = 3.0, 1.5
#: Shortest times in seconds after which a request is late, and a teacher silent.
FLOOR_S, SILENT_S = 0.1, 0.5
#: A gap between two calls of `tick` that is longer, in seconds, does not count as waiting.
ASLEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Flight:
    """A request in flight at one teacher.

    Attributes:
        request: its number.
        rows: number of rows.
        batch: its first batch; lower numbers are delivered earlier.
        sent_at: time of sending.
        also_at: other teachers with a copy whose answer would count.
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
        window: limit of requests in flight (>= 1).
        answered_at: time of its latest answer; minus infinity: none.
        usable: it may get requests. A revoked teacher may not, but may still have flights.
    """

    name: str
    flights: tuple[Flight, ...]
    window: int = 2
    answered_at: float = -inf
    usable: bool = True


class Hedging:
    """Finds late requests.

    Attributes:
        late: teachers whose oldest request was late at the latest check.
        silent: late teachers that have not answered for long, while another teacher is in time.
        paid: requests in flight whose hedge was paid from the budget.
        tokens: number of hedges that the budget allows now.
        awake_since: time from which waiting counts; minus infinity: always.
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
        """Record that time has passed; a long gap between two calls does not count as waiting."""
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
            teachers: all teachers that have requests in flight or could have.
            times: turnarounds of the answers so far.
            sent: number of requests sent so far, without hedges; it never falls.
            awaited: the batch that the student waits for; None: it does not wait.
            now: seconds of a clock that does not go back.

        Returns:
            Requests to hedge, the most urgent first. A request is returned by every call until the
            ledger has sent its copy or the request has ended; it is paid for once. If the teacher
            with the copy has become silent too, the request is returned again.
        """
        view = _PoolView(teachers, times, awaited, self.awake_since, now)
        states = {teacher.name: view.classify(teacher) for teacher in teachers}
        self.late = frozenset(name for name, state in states.items() if state != "in time")
        self.silent = frozenset(name for name, state in states.items() if state == "silent")
        suspects: list[tuple[Flight, bool]] = []
        if any(teacher.usable and teacher.name not in self.late for teacher in teachers):
            for teacher in teachers:
                if teacher.name in self.late:
                    beyond_budget = teacher.name in self.silent
                    flights = _flights_to_hedge(teacher, self.silent)
                    suspects += [(flight, beyond_budget) for flight in flights]
        else:
            self.silent = frozenset()  # no teacher is in time: the cause is on the reader's side
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


def _flights_to_hedge(teacher: BusyTeacher, silent: Set[str]) -> list[Flight]:
    """Return all requests of a silent teacher, or the most urgent one of a late teacher.

    Requests with a copy at a teacher that is not silent are left out.
    """
    wanted = sorted((f for f in teacher.flights if f.wanted), key=lambda flight: flight.batch)
    late = wanted if teacher.name in silent else wanted[:1]
    return [flight for flight in late if flight.also_at <= silent]


@dataclass(frozen=True, slots=True)
class _PoolView:
    """The arguments of a call of `Hedging.find_late`, and what follows from them."""

    teachers: Sequence[BusyTeacher]
    times: Turnarounds
    awaited: int | None
    awake_since: float
    now: float

    def classify(self, teacher: BusyTeacher) -> Literal["in time", "late", "silent"]:
        """Classify a teacher by its oldest request in flight."""
        if not teacher.flights:
            return "in time"
        first = teacher.flights[0]
        expected_s = self.times.expected_s(teacher.name, first.rows)
        if expected_s is None:
            return "in time"
        limit_s = self._limit_s(teacher, expected_s)
        quiet_s = self._since(began(first.sent_at, teacher.answered_at))
        # The second limit is for a teacher that answers other requests and never this one. A
        # request may have to wait for all other requests of the window.
        if quiet_s < limit_s and self._since(first.sent_at) < teacher.window * limit_s:
            return "in time"
        longest_s = 2 * PATIENCE * self.times.stretch * expected_s
        return "silent" if quiet_s >= max(longest_s, SILENT_S) else "late"

    def _limit_s(self, teacher: BusyTeacher, expected_s: float) -> float:
        """Return the seconds after which the teacher's oldest request is late."""
        patience, rows = PATIENCE, teacher.flights[0].rows
        if any(f.wanted and f.batch == self.awaited for f in teacher.flights):
            patience = URGENT_PATIENCE
            idle = [other for other in self.teachers if other.usable and not other.flights]
            idle_s = [self.times.expected_s(other.name, rows) or expected_s for other in idle]
            expected_s = min([expected_s, *idle_s])
        return max(patience * self.times.stretch * expected_s, FLOOR_S)

    def _since(self, moment: float) -> float:
        """Return the seconds since `moment`, without time before the latest long gap."""
        return self.now - max(moment, self.awake_since)


#: A teacher this many times as slow as the median of the others is too slow; a named straggler is
#: cleared below the second factor.
SLOWER, CLEARED = 3.0, 2.0
#: Seconds for which a teacher must be too slow to be named.
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
        seconds_per_row: mean turnaround per row of each teacher that has answered.
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
        if seconds
        >= (CLEARED if name in before.named else SLOWER) * _median_of_others(seconds_per_row, name)
    }
    since = {name: before.since.get(name, now) for name in slow}
    lasting = {name for name in slow if name in before.named or now - since[name] >= LASTING_S}
    return Straggling(frozenset(lasting | silent), since)


def _median_of_others(seconds_per_row: Mapping[str, float], excluded: str) -> float:
    """Return the lower median of the other teachers' times; infinity: there is no other."""
    others = [seconds for name, seconds in seconds_per_row.items() if name != excluded]
    return median_low(others) if others else inf


#: Interval in seconds of the checks that depend on time alone.
LOOK_EVERY_S: Final = 0.05
#: Interval in seconds of comparing speeds; a change of the silent teachers triggers it at once.
COMPARE_EVERY_S: Final = 1.0


class Lateness:
    """Finds late requests and stragglers of one service.

    Args:
        ledger: knows which requests are in flight; only read here.
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
        self._compare_at = -inf

    @property
    def stragglers(self) -> list[str]:
        """Teachers that are much slower than the others, or silent."""
        return sorted(self._straggling.named)

    def tick(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        """Return the requests to hedge.

        Args:
            waits: the training loop or a call waits for labels.
            unusable: teachers that get no requests now.
            now: seconds of a clock that does not go back.
        """
        self.hedging.elapse(now)
        hedges: list[ev.Hedge] = []
        if self.hedging.late or self._due(waits) <= now:
            hedges = self._find_late(waits, unusable, now)
        if now >= self._compare_at:
            self._compare(now)
        return hedges

    def _find_late(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        ledger, pacing, hedges = self._ledger, self._pacing, self.hedging
        present = ledger.teachers
        teachers = [
            BusyTeacher(
                name,
                tuple(self._flights(name)),
                pacing.window(name),
                pacing.answered_at(name),
                name in present and name not in unusable,
            )
            for name in dict.fromkeys((*present, *ledger.at_work))
        ]
        paid, silent = hedges.paid, hedges.silent
        late = hedges.find_late(
            teachers, pacing.times, ledger.sent, ledger.head if waits else None, now
        )
        for request in hedges.paid - paid:
            self._log("info", f"request {request} is late: another teacher gets it too", "")
        if hedges.silent != silent:
            self._compare_at = now
        return [ev.Hedge(request) for request in late]

    def _compare(self, now: float) -> None:
        self._compare_at = now + COMPARE_EVERY_S
        times = self._pacing.times
        known = {name: times.get(name) for name in self._ledger.teachers}
        seconds = {name: mean.seconds_per_row for name, mean in known.items() if mean is not None}
        before = self._straggling.named
        self._straggling = name_stragglers(seconds, self.hedging.silent, self._straggling, now)
        for name in self._straggling.named - before:
            self._log("warning", f"teacher {name} is a straggler", name)

    def _due(self, waits: bool) -> float:
        """Return a lower bound of the time at which a request is late."""
        pacing = self._pacing
        patience = URGENT_PATIENCE if waits else PATIENCE
        limit_s = max(patience * pacing.times.shortest_s(), FLOOR_S)
        due = inf
        for name in self._ledger.at_work:
            if (oldest := pacing.oldest(name)) is not None:
                quiet = began(oldest, pacing.answered_at(name)) + limit_s
                due = min(due, quiet, oldest + pacing.window(name) * limit_s)
        return due

    def _flights(self, name: str) -> Iterator[Flight]:
        for sent in self._ledger.requests_at(name):
            if (sent_at := self._pacing.sent_at(name, sent.request)) is not None:
                first, others = sent.spans[0].batch, frozenset(sent.teachers) - {name}
                yield Flight(sent.request, sent.rows, first, sent_at, others, bool(sent.teachers))
