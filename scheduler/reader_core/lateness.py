"""Which requests are late, and which teachers: asked of others too, and named as stragglers.

Most looks would find nothing and leave nothing behind. So the next moment at which something may
be late is computed from below: no request is late before the shortest time that any teacher is
expected to need, times the least patience (which is less while the training loop waits).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from typing import Final

from .. import hedging
from ..circuit_breakers import Log
from ..hedging import began
from ..ledger import InFlight, Ledger
from ..ledger import events as ev
from .request_pacing import RequestPacing

#: While something is late it is looked at so often.
LOOK_EVERY_S: Final = 0.05
#: Speeds are compared so often, where nothing is late.
COMPARE_EVERY_S: Final = 1.0


class Lateness:
    """Looks at the requests of one service.

    Args:
        ledger: knows what is in flight.
        pace: knows what to expect.
        log: takes a level, a text and the teacher concerned.
    """

    def __init__(self, ledger: Ledger, pace: RequestPacing, log: Log) -> None:
        self._ledger = ledger
        self._pace = pace
        self._log = log
        self._hedging = hedging.Hedging()
        self._straggling = hedging.Straggling()
        self._look_at = self._least_s = inf
        self._waits = False
        self._compare_at = -inf

    @property
    def stragglers(self) -> list[str]:
        """Teachers that are much slower than the others, or silent."""
        return sorted(self._straggling.named)

    @property
    def late(self) -> frozenset[str]:
        """Teachers whose oldest request is late."""
        return self._hedging.late

    @property
    def silent(self) -> frozenset[str]:
        """Teachers that say nothing while others do."""
        return self._hedging.silent

    @property
    def hedged(self) -> frozenset[int]:
        """Requests that are late, and are asked of another teacher, too."""
        return self._hedging.charged

    def sent(self, now: float) -> None:
        """A request went out."""
        self._look_at = min(self._look_at, now + self._least_s)

    def answered(self, name: str) -> None:
        """A teacher has answered: perhaps faster than any was known to be."""
        known = self._pace.times.of(name)
        if known is None:
            return
        if self._limit_s(known.expected_s(1)) < self._least_s:
            self._look_at = min(self._look_at, self._due())

    def look(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        """What is to be asked of others too.

        Args:
            waits: the training loop waits for labels.
            unusable: teachers that are not sent to now.
            now: seconds of a clock that does not go back.
        """
        self._hedging.passed(now)
        hedges: list[ev.Hedge] = []
        if waits and not self._waits:
            self._look_at = -inf  # patience is less now
        self._waits = waits
        if now >= self._look_at:
            due = self._due()
            if self._hedging.late or due <= now:
                hedges = self._find(waits, unusable, now)
                due = now + LOOK_EVERY_S
            self._look_at = due
        if now >= self._compare_at:
            self._compare(now)
        return hedges

    def _find(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        ledger, pace, hedges = self._ledger, self._pace, self._hedging
        asked = tuple(
            hedging.BusyTeacher(
                name,
                tuple(self._flights(name, ledger.requests_at(name))),
                pace.window(name),
                pace.answered_at(name),
                name in ledger.teachers and name not in unusable,
            )
            for name in dict.fromkeys((*ledger.teachers, *ledger.at_work))
        )
        charged, silent = hedges.charged, hedges.silent
        found = hedges.look(asked, pace.times, ledger.sent, ledger.head if waits else None, now)
        for request in hedges.charged - charged:
            self._log("info", f"request {request} is late, and asked of another teacher too", "")
        if hedges.silent != silent:
            self._compare_at = now
        return [ev.Hedge(request) for request in found]

    def _compare(self, now: float) -> None:
        self._compare_at = now + COMPARE_EVERY_S
        times = self._pace.times
        known = {name: times.of(name) for name in self._ledger.teachers}
        seconds = {name: one.seconds_per_row for name, one in known.items() if one is not None}
        before = self._straggling.named
        self._straggling = hedging.name_stragglers(seconds, self.silent, self._straggling, now)
        for name in self._straggling.named - before:
            self._log("warning", f"teacher {name} is a straggler", name)

    def _due(self) -> float:
        """The soonest that something may be late."""
        pace = self._pace
        names = dict.fromkeys((*self._ledger.teachers, *self._ledger.at_work))
        expected = [
            known.expected_s(1) for name in names if (known := pace.times.of(name)) is not None
        ]
        if not expected:
            self._least_s = inf
            return inf
        self._least_s = least_s = self._limit_s(min(expected))
        due = inf
        for name in names:
            if (oldest := pace.oldest(name)) is not None:
                quiet = began(oldest, pace.answered_at(name)) + least_s
                due = min(due, quiet, oldest + pace.window(name) * least_s)
        return due

    def _limit_s(self, expected_s: float) -> float:
        """The least that a request may take of which so much is expected."""
        patience = hedging.URGENCY if self._waits else hedging.PATIENCE
        return max(patience * expected_s, hedging.FLOOR_S)

    def _flights(self, name: str, requests: Iterable[InFlight]) -> Iterable[hedging.Flight]:
        for one in requests:
            if (sent_at := self._pace.sent_at(name, one.request)) is not None:
                yield hedging.Flight(
                    one.request,
                    one.rows,
                    one.spans[0].batch,
                    sent_at,
                    also_at=frozenset(one.teachers) - {name},
                    wanted=bool(one.teachers),
                )
