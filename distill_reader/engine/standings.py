"""Which teachers of a member are out of its pool for what they did, and until when."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from ...scheduler import outliers
from ...scheduler.outliers import Cause, Standing, Step

log = logging.getLogger(__name__)

#: Of a teacher that nothing has happened to.
_NEW: Final = Standing()


class Standings:
    """Carries `scheduler.outliers` out. Used by the engine's thread alone.

    Attributes:
        ejections: so far, by cause.
        readmissions: how many of the ejected were let in again, so far.
        labellers: teachers that have labelled something, also over a connection that was lost.
    """

    def __init__(self) -> None:
        self.ejections: Counter[Cause] = Counter()
        self.readmissions = 0
        self.labellers: set[str] = set()
        self._standings: dict[str, Standing] = {}

    @property
    def ejected(self) -> dict[str, Cause]:
        """Teachers that are out of the pool, sorted, and why."""
        causes = ((name, one.cause) for name, one in sorted(self._standings.items()))
        return {name: cause for name, cause in causes if cause is not None}

    def answered(self, name: str, now: float) -> None:
        """It has sent labels that passed their checks."""
        self.labellers.add(name)
        self._standings[name] = outliers.answered(self._of(name), now)

    def failed(self, name: str, others: int, now: float) -> bool:
        """A request came to nothing; whether that ejects it from among `others` that can be had."""
        return self._step(name, lambda one: outliers.failed(one, others, now, random))

    def wrong(self, name: str, now: float) -> bool:
        """It has answered what labels cannot be; whether that ejects it."""
        return self._step(name, lambda one: outliers.wrong(one, now, random))

    def lied(self, name: str, now: float) -> bool:
        """What it said is not what others say; whether that ejects it."""
        return self._step(name, lambda one: outliers.lied(one, now, random))

    def refused(self, name: str, now: float) -> bool:
        """It refuses requests and has labelled none; whether that ejects it."""
        return self._step(name, lambda one: outliers.refused(one, now, random))

    def look(
        self, names: Iterable[str], silent: Collection[str], usable: Collection[str], now: float
    ) -> list[str]:
        """A look has found these silent, of all; those that are ejected for it."""
        standings = {name: self._of(name) for name in names}
        after, ejected = outliers.look(standings, silent, usable, now, random)
        self._standings |= after
        for name in ejected:
            self._count(name)
        return list(ejected)

    def pause_s(self, name: str, usable: int, now: float) -> float:
        """Seconds until a teacher that is ejected is to be probed; 0 for any other."""
        probe_at = outliers.probe_at(self._of(name), usable)
        return 0.0 if probe_at is None else max(probe_at - now, 0.0)

    def probed(self, name: str, now: float) -> None:
        """It has answered a probe: it is back in the pool, if it was out of it."""
        self._standings[name], step = outliers.probed(self._of(name), True, now, random)
        if step == "readmit":
            self.readmissions += 1
            log.info("teacher %s is asked again", name, extra={"teacher": name})

    def keep(self, names: Collection[str]) -> None:
        """Forget all others: who comes back under their names may be another machine."""
        self._standings = {name: one for name, one in self._standings.items() if name in names}
        self.labellers.intersection_update(names)

    def _of(self, name: str) -> Standing:
        return self._standings.get(name, _NEW)

    def _step(self, name: str, rule: Callable[[Standing], tuple[Standing, Step]]) -> bool:
        standing, step = rule(self._of(name))
        self._standings[name] = standing
        if step == "eject":
            self._count(name)
        return step == "eject"

    def _count(self, name: str) -> None:
        """It has been ejected."""
        if (cause := self._standings[name].cause) is not None:
            self.ejections[cause] += 1
            words = outliers.IN_WORDS[cause]
            log.warning("teacher %s is ejected: it %s", name, words, extra={"teacher": name})
