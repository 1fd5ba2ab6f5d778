"""When a simulated reader looks for late requests: as rarely as finds the same as looking always.

A live reader looks every 50 ms. Most looks find nothing, and then leave nothing behind but the time
of the look. So the next one that may find something is computed from below: no request is late
before the shortest time that any teacher is expected to need, times the least patience.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final, Protocol

from .. import hedging
from ..ledger import Ledger
from ..turnaround import Turnarounds, began
from .clock import Clock

#: Looks follow each other by so much at least, as in the live reader.
LOOK_EVERY_S: Final = 0.05


class Line(Protocol):
    """What is asked of a connection."""

    sent: dict[int, float]
    answered_at: float


class Watched(Protocol):
    """What is asked of the connections together."""

    @property
    def every(self) -> Mapping[str, Line]:
        """To teachers that are assigned, and to those that leave."""

    @property
    def waits(self) -> bool:
        """Whether the student waits for labels."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is heard."""

    def window_of(self, name: str) -> int:
        """Requests that a teacher may have in flight."""

    def late(self, hedges: Sequence[int], silent: frozenset[str]) -> None:
        """A look has found these requests late, and these teachers silent."""


class Lateness:
    """Looks at the requests of one reader.

    Args:
        lines: what there is to look at, and who hears what was found.
        ledger: knows what is in flight.
        times: what to expect.
        clock: on which is looked.
    """

    def __init__(self, lines: Watched, ledger: Ledger, times: Turnarounds, clock: Clock) -> None:
        self._lines = lines
        self._ledger = ledger
        self._times = times
        self._clock = clock
        self._config = hedging.HedgeConfig()
        self._memory = hedging.HedgeMemory()
        self._look_at = inf
        self._least_s = inf  # no request is late sooner than this; infinite: not known

    def sent(self, now: float) -> None:
        """A request went out."""
        self._plan(now + self._least_s)

    def answered(self, name: str) -> None:
        """A teacher has answered: perhaps faster than any was known to be."""
        known = self._times.of(name)
        if known is None:
            return
        least_s = self._config.urgency * known.expected_s(1)
        if max(least_s, self._config.floor_s) < self._least_s:
            self._plan(self._due())

    def _plan(self, moment: float) -> None:
        if moment < self._look_at:
            self._look_at = moment
            self._clock.at(moment, self._look)

    def _due(self) -> float:
        """The soonest that something may be late."""
        lines = self._lines.every
        expected = [
            known.expected_s(1) for name in lines if (known := self._times.of(name)) is not None
        ]
        if not expected:
            self._least_s = inf
            return inf
        self._least_s = least_s = max(self._config.urgency * min(expected), self._config.floor_s)
        due = inf
        for name, line in lines.items():
            if line.sent:
                oldest = next(iter(line.sent.values()))
                quiet = began(oldest, line.answered_at) + least_s
                due = min(due, quiet, oldest + self._lines.window_of(name) * least_s)
        return due

    def _look(self) -> None:
        now = self._clock.now
        if now < self._look_at or self._lines.is_closed:
            return  # it was looked sooner
        self._look_at = inf
        if (due := self._due()) > now:
            self._plan(due)
            return
        view = hedging.HedgeView(self._asked(), self._ledger.sent, self._awaited)
        # Of the looks that were left out only the time of the last one would count.
        memory = replace(self._memory, looked_at=now)
        decision, self._memory = hedging.decide(view, self._times, memory, now, self._config)
        self._lines.late(decision.hedge, decision.silent)
        self._plan(max(self._due(), now + LOOK_EVERY_S))

    @property
    def _awaited(self) -> int | None:
        ledger = self._ledger
        return ledger.head if self._lines.waits and not ledger.deliverable else None

    def _asked(self) -> tuple[hedging.Asked, ...]:
        ledger, lines = self._ledger, self._lines.every
        there, on_trial = ledger.teachers, set(ledger.on_trial)
        names = [name for name in dict.fromkeys((*there, *ledger.at_work)) if name in lines]
        return tuple(
            hedging.Asked(
                name,
                tuple(self._flights(name, lines[name])),
                self._lines.window_of(name),
                lines[name].answered_at,
                name in there and name not in on_trial,
            )
            for name in names
        )

    def _flights(self, name: str, line: Line) -> Iterator[hedging.Flight]:
        for one in self._ledger.requests_at(name):
            if (sent_at := line.sent.get(one.request)) is not None:
                yield hedging.Flight(
                    one.request,
                    one.rows,
                    one.spans[0].batch,
                    sent_at,
                    also_at=frozenset(one.teachers) - {name},
                    wanted=bool(one.teachers),
                )
