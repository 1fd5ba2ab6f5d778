"""Which requests are late, and which teachers: asked of others too, and named as stragglers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from ...scheduler import hedging, stragglers
from ...scheduler.ledger import InFlight, Ledger
from ...scheduler.ledger import events as ev
from .speeds import Speeds

log = logging.getLogger(__name__)


class Lateness:
    """Looks at the requests of one member. Used by the engine's thread alone.

    Args:
        ledger: knows what is in flight.
        speeds: know what to expect.

    Attributes:
        silent: teachers that say nothing while others do.
        late: teachers whose oldest request is late.
    """

    def __init__(self, ledger: Ledger, speeds: Speeds) -> None:
        self.silent: frozenset[str] = frozenset()
        self.late: frozenset[str] = frozenset()
        self._ledger = ledger
        self._speeds = speeds
        self._config = hedging.HedgeConfig()
        self._memory = hedging.HedgeMemory()
        self._straggling = stragglers.Straggling()

    @property
    def stragglers(self) -> list[str]:
        """Teachers that are much slower than the others, or silent."""
        return sorted(self._straggling.named)

    @property
    def hedged(self) -> frozenset[int]:
        """Requests that are late, and are asked of another teacher, too."""
        return self._memory.charged

    def look(self, waits: bool, unusable: Collection[str], now: float) -> list[ev.Hedge]:
        """What is to be asked of others too.

        Args:
            waits: the training loop waits.
            unusable: teachers that are not sent to now.
            now: by the monotonic clock.
        """
        ledger, speeds = self._ledger, self._speeds
        asked = tuple(
            hedging.Asked(
                name,
                tuple(self._flights(name, ledger.requests_at(name))),
                speeds.window(name),
                speeds.answered_at(name),
                name in ledger.teachers and name not in unusable,
            )
            for name in dict.fromkeys((*ledger.teachers, *ledger.at_work))
        )
        awaited = ledger.head if waits and not ledger.deliverable else None
        view = hedging.HedgeView(asked, ledger.sent, awaited)
        charged = self._memory.charged
        decision, self._memory = hedging.decide(view, speeds.times, self._memory, now, self._config)
        for request in self._memory.charged - charged:
            log.info("request %d is late, and asked of another teacher too", request)
        self.silent, self.late = decision.silent, decision.late
        known = {name: speeds.times.of(name) for name in ledger.teachers}
        seconds = {name: one.seconds_per_row for name, one in known.items() if one is not None}
        before = self._straggling.named
        self._straggling = stragglers.look(seconds, decision.silent, self._straggling, now)
        for name in self._straggling.named - before:
            log.warning("teacher %s is a straggler", name)
        return [ev.Hedge(request) for request in decision.hedge]

    def _flights(self, name: str, requests: Iterable[InFlight]) -> Iterable[hedging.Flight]:
        for one in requests:
            if (sent_at := self._speeds.sent_at(name, one.request)) is not None:
                yield hedging.Flight(
                    one.request,
                    one.rows,
                    one.spans[0].batch,
                    sent_at,
                    also_at=frozenset(one.teachers) - {name},
                    wanted=bool(one.teachers),
                )
