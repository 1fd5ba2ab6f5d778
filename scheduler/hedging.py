"""Which requests are late and asked of a second teacher; which teachers are silent, or stragglers.

A teacher works off its window one request after the other, so a request begins when it is sent or,
if others stand before it, when the latest of them is answered. From there to its own answer it
takes its *turnaround*; what stands before it in the window is thereby accounted for. Turnarounds
are kept per row and per teacher: one that is ten times slower is expected to take ten times as
long. The *stretch* is the pool's own: a high quantile, over the answers of all its teachers, of
what a request took as a multiple of what was expected.

A request is late when it takes longer than is expected at its teacher, stretched by the pool's own
quantile, times a patience. Patience is less for what the student waits for, and then the measure
is, if that is sooner, what an idle teacher would need: to ask it costs nothing. A slow teacher is
therefore not late where it is merely slow: it keeps its share of the work.

What is late is hedged within a budget: a token bucket, counted in requests, that starts empty, so
at any time hedges are at most `share` of the requests sent. Beyond it only the requests of a
*silent* teacher are hedged, all of them: one that is late twice over while another is in time. If
all are late it is our own network or machine that stands still, and hedges would not help. Time in
which nobody looked (the process was stopped) is no teacher's fault and counts for nobody.

A *straggler* is much slower than the others, or silent. It keeps its place and its share of the
work; operators want to know of it, as a card that is throttled or shared looks just so. A teacher
is named when it has been `SLOWER` times as slow as the median of the others for `LASTING_S`, and at
once when it is silent; it is cleared when it is no longer `CLEARED` times as slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median_low
from typing import Literal, NamedTuple

from .rates import LowQuantile

#: How much of an estimate the newest answer replaces. A mean, not a median: a teacher that merges
#: requests answers several at one moment, so that most turnarounds are zero and some are long.
GAIN = 0.125
#: An answer counts as no more than so many times what was expected: one pause is not a new speed,
#: and a teacher that has really become ten times slower is known for that after a dozen answers.
MOST = 4.0
#: Seconds per row that nobody is faster than.
LEAST_S = 1e-9
#: Answers over which the stretch is taken, and which quantile of them it is.
ANSWERS, QUANTILE = 256, 0.95
#: Most that the stretch may be: a pool that strays further would never find anything late.
MOST_STRETCH = 4.0
#: Most hedges per request that was sent, in calm weather; and hedges that can be saved up.
SHARE, BURST = 0.05, 8.0
#: So many times the longest usual time may a request take; and one that the student waits for.
PATIENCE, URGENCY = 3.0, 1.5
#: Nothing is late before so many seconds; no teacher is silent before so many.
FLOOR_S, SILENT_S = 0.1, 0.5
#: A longer time between two looks counts for nobody, in seconds.
ASLEEP_S = 0.5


class Turnaround(NamedTuple):
    """What is known of one teacher, as means; made anew with each answer.

    Attributes:
        seconds_per_row: of a request (> 0).
        rows: of a request (> 0).
        answers: how many this stands on.
    """

    seconds_per_row: float
    rows: float
    answers: int = 1

    def expected_s(self, rows: int) -> float:
        """Seconds for a request of `rows`: a small one is not expected to be faster than usual."""
        return self.seconds_per_row * max(rows, self.rows)


class Turnarounds:
    """The turnarounds of one pool. Owned by one thread; no clock."""

    def __init__(self) -> None:
        self._teachers: dict[str, Turnaround] = {}
        self._stretches = LowQuantile(ANSWERS, QUANTILE)

    def answered(self, teacher: str, rows: int, seconds: float) -> None:
        """A request of `rows` took `seconds` from its beginning; what makes no sense is ignored.

        Args:
            teacher: who answered.
            rows: of the request (>= 1).
            seconds: its turnaround (>= 0), see `began`.
        """
        if rows < 1 or not 0 <= seconds < inf:
            return
        known = self._teachers.get(teacher)
        if known is None:
            if seconds > 0:
                self._teachers[teacher] = Turnaround(max(seconds / rows, LEAST_S), rows)
            return
        expected_s = known.expected_s(rows)
        self._stretches.add(min(seconds / expected_s, MOST_STRETCH))
        per_row = min(seconds, MOST * expected_s) / rows
        self._teachers[teacher] = Turnaround(
            max(known.seconds_per_row + GAIN * (per_row - known.seconds_per_row), LEAST_S),
            known.rows + GAIN * (rows - known.rows),
            known.answers + 1,
        )

    def forget(self, teacher: str) -> None:
        """A teacher is gone; whoever comes back under its name may be another machine."""
        self._teachers.pop(teacher, None)

    def of(self, teacher: str) -> Turnaround | None:
        """What is known of `teacher`."""
        return self._teachers.get(teacher)

    def expected_s(self, teacher: str, rows: int) -> float | None:
        """Seconds that a request of `rows` should take at `teacher` from its beginning.

        Of a teacher that has not answered yet as much is expected as of the median one; None where
        nobody has answered.
        """
        if (known := self._teachers.get(teacher)) is not None:
            return known.expected_s(rows)
        return self.pool_s(rows)

    def pool_s(self, rows: int) -> float | None:
        """Seconds that the median teacher should take; None where nobody has answered."""
        times = [known.expected_s(rows) for known in self._teachers.values()]
        return median_low(times) if times else None

    @property
    def stretch(self) -> float:
        """The pool's quantile: requests take at most so many times what is expected; >= 1."""
        value = self._stretches.value
        return 1.0 if value is None else min(max(value, 1.0), MOST_STRETCH)


def began(sent_at: float, answered_at: float) -> float:
    """When a teacher began with the oldest request that it has.

    Args:
        sent_at: when that was sent.
        answered_at: the teacher's latest answer, minus infinity if there was none.
    """
    assert isfinite(sent_at)
    return max(sent_at, answered_at)


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
class BusyTeacher:
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


class Hedging:
    """Looks for requests that are late.

    Attributes:
        late: teachers whose oldest request was late at the last look.
        silent: those of them that have answered nothing for long, while another is in time.
        charged: requests whose hedge is paid for, and still to be seen as hedged.
        tokens: hedges that are saved up.
        awake_since: no request began before, as far as lateness goes.
    """

    def __init__(self, tokens: float = 0.0) -> None:
        self.late: frozenset[str] = frozenset()
        self.silent: frozenset[str] = frozenset()
        self.charged: frozenset[int] = frozenset()
        self.tokens = tokens
        self.awake_since = -inf
        self._sent = 0
        self._seen_at: float | None = None

    def passed(self, now: float) -> None:
        """Time goes by; a longer time between two calls counts for nobody."""
        if self._seen_at is not None and now - self._seen_at > ASLEEP_S:
            self.awake_since = now
        self._seen_at = now

    def look(
        self,
        teachers: Sequence[BusyTeacher],
        times: Turnarounds,
        sent: int,
        awaited: int | None,
        now: float,
    ) -> list[int]:
        """Look for requests that are late.

        Args:
            teachers: all that have requests in flight or could have.
            times: of the answers so far.
            sent: requests sent so far, hedges not among them; never falls.
            awaited: the batch that the student waits for; None while it does not wait.
            now: seconds of a clock that does not go back.

        Returns:
            Requests to ask of another teacher too, the most urgent first. Each comes back at every
            look until it is seen as hedged, or gone, and is paid for once. One that is hedged to a
            teacher which has fallen silent too comes again.
        """
        look = _Look(teachers, times, awaited, self.awake_since, now)
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
            self.silent = frozenset()  # nobody is in time: it is not them
        self.tokens = min(self.tokens + SHARE * (sent - self._sent), BURST)
        self._sent = sent
        charged = set(self.charged & {f.request for t in teachers for f in t.flights})
        hedge = []
        for flight, beyond_budget in sorted(suspects, key=lambda suspect: suspect[0].batch):
            if flight.request not in charged:
                if self.tokens < 1 and not beyond_budget:
                    continue
                self.tokens = max(self.tokens - 1, 0.0)
                charged.add(flight.request)
            hedge.append(flight.request)
        self.charged = frozenset(charged)
        return list(dict.fromkeys(hedge))


def _stuck(teacher: BusyTeacher, silent: Set[str]) -> list[Flight]:
    """What to ask of another: all that a silent one has, else what is delivered first of it."""
    wanted = sorted((f for f in teacher.flights if f.wanted), key=lambda flight: flight.batch)
    late = wanted if teacher.name in silent else wanted[:1]
    return [flight for flight in late if flight.also_at <= silent]


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the pool."""

    teachers: Sequence[BusyTeacher]
    times: Turnarounds
    awaited: int | None
    awake_since: float
    now: float

    def standing(self, teacher: BusyTeacher) -> Literal["in time", "late", "silent"]:
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
        longest_s = 2 * PATIENCE * self.times.stretch * expected_s
        return "silent" if quiet_s >= max(longest_s, SILENT_S) else "late"

    def _limit_s(self, teacher: BusyTeacher, expected_s: float) -> float:
        """What the oldest request may take."""
        patience, rows = PATIENCE, teacher.flights[0].rows
        if any(f.wanted and f.batch == self.awaited for f in teacher.flights):
            patience = URGENCY
            idle = [other for other in self.teachers if other.usable and not other.flights]
            could_s = [self.times.expected_s(other.name, rows) or expected_s for other in idle]
            expected_s = min([expected_s, *could_s])
        return max(patience * self.times.stretch * expected_s, FLOOR_S)

    def _since(self, moment: float) -> float:
        """Seconds since then in which somebody looked."""
        return self.now - max(moment, self.awake_since)


SLOWER, CLEARED = 3.0, 2.0
LASTING_S = 5.0


@dataclass(frozen=True, slots=True)
class Straggling:
    """What one name_stragglers leaves to the next.

    Attributes:
        named: teachers that are told to be stragglers.
        since: since when each that is too slow has been so.
    """

    named: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


def name_stragglers(
    seconds_per_row: Mapping[str, float], silent: Set[str], before: Straggling, now: float
) -> Straggling:
    """Look at the speeds of a pool again; a few times a second is enough.

    Args:
        seconds_per_row: of each teacher that has answered.
        silent: teachers that say nothing while others do.
        before: what the last name_stragglers left.
        now: seconds of a clock that does not go back.
    """
    times = seconds_per_row.values()
    if not times or max(times) < CLEARED * min(times):  # as nearly always
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
    """The lower median of the other teachers' times; infinite where there is no other."""
    others = [seconds for name, seconds in seconds_per_row.items() if name != but]
    return median_low(others) if others else inf
