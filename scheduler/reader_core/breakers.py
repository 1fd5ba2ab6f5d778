"""One circuit breaker per teacher: which are out of the pool for what they did, and until when.

A breaker is *closed* while its teacher is asked, *open* while it is not, and *half open* from the
moment when a probe may be sent until that is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from .. import outliers
from ..backoff import RandomLike
from ..outliers import Cause, Standing, Step
from .instructions import Level

#: Tells people something of a teacher: level, text, its name.
Say = Callable[[Level, str, str], None]

#: Of a teacher that nothing has happened to.
_NEW: Final = Standing()


class Breakers:
    """Carries `scheduler.outliers` out, for the teachers of one service.

    Args:
        rng: scatters the probes.
        say: tells people.

    Attributes:
        ejections: so far, by cause.
        readmissions: how many of the ejected were let in again, so far.
        labellers: teachers that have labelled something, also over a connection that was lost.
    """

    def __init__(self, rng: RandomLike, say: Say) -> None:
        self.ejections: Counter[Cause] = Counter()
        self.readmissions = 0
        self.labellers: set[str] = set()
        self._rng = rng
        self._say = say
        self._standings: dict[str, Standing] = {}

    @property
    def ejected(self) -> dict[str, Cause]:
        """Teachers that are out of the pool, sorted, and why."""
        causes = ((name, one.cause) for name, one in sorted(self._standings.items()))
        return {name: cause for name, cause in causes if cause is not None}

    def is_open(self, name: str) -> bool:
        """Whether a teacher is out of the pool."""
        return self._of(name).cause is not None

    def half_open(self, usable: int, now: float) -> list[str]:
        """Those of the ejected that may be probed by now, while `usable` teachers are sent to."""
        return [name for name in self.ejected if not self.pause_s(name, usable, now)]

    def answered(self, name: str, now: float) -> None:
        """It has sent labels that passed their checks."""
        self.labellers.add(name)
        self._standings[name] = outliers.answered(self._of(name), now)

    def failed(self, name: str, others: int, now: float) -> bool:
        """A request came to nothing; whether that ejects it from among `others` that can be had."""
        return self._step(name, lambda one: outliers.failed(one, others, now, self._rng))

    def wrong(self, name: str, now: float) -> bool:
        """It has answered what labels cannot be; whether that ejects it."""
        return self._step(name, lambda one: outliers.wrong(one, now, self._rng))

    def lied(self, name: str, now: float) -> bool:
        """What it said is not what others say; whether that ejects it."""
        return self._step(name, lambda one: outliers.lied(one, now, self._rng))

    def refused(self, name: str, now: float) -> bool:
        """It refuses requests and has labelled none; whether that ejects it."""
        return self._step(name, lambda one: outliers.refused(one, now, self._rng))

    def look(
        self, names: Iterable[str], silent: Collection[str], usable: Collection[str], now: float
    ) -> list[str]:
        """A look has found these silent, of all; those that are ejected for it."""
        standings = {name: self._of(name) for name in names}
        after, ejected = outliers.look(standings, silent, usable, now, self._rng)
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
        self._standings[name], step = outliers.probed(self._of(name), True, now, self._rng)
        if step == "readmit":
            self.readmissions += 1
            self._say("info", f"teacher {name} is asked again", name)

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
            self._say("warning", f"teacher {name} is ejected: it {outliers.IN_WORDS[cause]}", name)
