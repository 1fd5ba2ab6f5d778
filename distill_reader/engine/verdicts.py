"""What is done with teachers after their labels were compared: tried, believed again, convicted."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator

from ...scheduler.canaries import Verdict
from ...scheduler.ledger import events as ev
from .comparing import Comparing
from .crew import Crew
from .pool import Pool
from .shelf import Shelf

log = logging.getLogger(__name__)


class Verdicts:
    """Carries the verdicts on one member's teachers out. Used by the engine's thread alone.

    Args:
        comparing: where they come from.
        crew: the teachers; a liar is ejected.
        pool: a liar is probed after a long pause.
        shelf: keeps nothing of a liar; None: nothing of anybody.
    """

    def __init__(self, comparing: Comparing, crew: Crew, pool: Pool, shelf: Shelf | None) -> None:
        self._comparing = comparing
        self._crew = crew
        self._pool = pool
        self._shelf = shelf

    def carry_out(self, verdicts: Iterable[Verdict], now: float) -> Iterator[ev.Event]:
        """What the ledger is to be told, one after another."""
        waiting = deque(verdicts)
        while waiting:
            verdict = waiting.popleft()
            for name in verdict.readmit:
                log.info("teacher %s is admitted", name)
                yield ev.Readmitted(name)
            for name in verdict.trial:
                log.warning("teacher %s says other labels than another one: it is on trial", name)
                yield ev.Ejected(name)
            if verdict.disputed:
                log.warning("%s", self._comparing.dispute)
            for name in verdict.liars:
                self._crew.lied(name, now)
                yield ev.Disbelieve(name)
                waiting.extend(self._comparing.left(name))
                if self._shelf is not None:
                    self._shelf.disown(name)
                pause_s = self._crew.pause_s(name, now)
                self._pool.probe(name, pause_s, "says other labels than the others")
