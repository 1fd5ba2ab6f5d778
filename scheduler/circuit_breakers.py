"""One circuit breaker per teacher: which are ejected from a reader's pool, and until when.

A breaker is *closed* while its teacher is asked, *open* while it is not, and *half open* from the
moment when a probe may be sent until that is answered. Ejected is who costs work or is not to be
believed, never who is merely slow: a slow teacher gets few batches, and what it labels is a gain
(it is named, see `hedging`). The causes:

* "failed": several requests in a row that came to nothing (it is full, it restarts, it breaks).
* "silent": nothing was heard of it for long while others answered (`hedging` says so). What it has
  in flight has been hedged; out of the pool, it is replaced by another one.
* "wrong": an answer that no labels can be (shape, NaN, other content): one is enough.
* "lied": its labels differ from what the majority said (`canaries`).
* "refused": it has labelled nothing, and refused three requests while another teacher labels, or
  all that there is to ask it.

The first two never eject the last usable teacher: a poor one is better than none. The others do, as
wrong labels are worse than none. The ejected is probed after a pause that doubles with each
ejection, and let in again when the probe is answered; what it labels first is then compared with
what others say, and until it has labelled something a single failure ejects it again. While no
teacher is usable at all, each is probed every second, but those that lied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from .backoff import RandomLike, delay_s

Cause = Literal["failed", "silent", "wrong", "lied", "refused"]
#: Tells people something of a teacher: level, text, its name.
Log = Callable[[Literal["info", "warning"], str, str], None]

#: What a teacher did, for people: "teacher a is ejected: it ...".
IN_WORDS: Final[dict[Cause, str]] = {
    "failed": "failed several times in a row",
    "silent": "says nothing while others answer",
    "wrong": "answered what no labels can be",
    "lied": "says other labels than the others do",
    "refused": "refuses requests and has labelled none",
}

#: First pause before a probe, by cause; and the longest.
PAUSE_S: dict[Cause, float] = {
    "failed": 1.0,
    "silent": 0.5,
    "wrong": 2.0,
    "lied": 30.0,
    "refused": 2.0,
}
LONGEST_PAUSE_S = 60.0
LONGEST_PAUSE_OF_LIARS_S = 600.0
#: Failures in a row that eject.
FAILURES = 3
#: So long has a silent teacher to be heard of again.
SILENCE_S = 0.5
#: After so many times its latest pause, and at least so many seconds, in the pool all is forgiven.
FORGIVEN_PAUSES, FORGIVEN_S = 4.0, 60.0
#: Time between probes while there is no usable teacher at all.
DESPERATE_S = 1.0


@dataclass(slots=True)
class CircuitBreaker:
    """How one teacher stands in the pool.

    Attributes:
        cause: why it is out of the pool; None while it is in.
        since: when it was ejected, or let in again.
        pause_s: the latest pause before a probe.
        failures: in a row.
        ejections: since it was forgiven last.
        silent_since: since when it has been found silent, without a break.
    """

    cause: Cause | None = None
    since: float = 0.0
    pause_s: float = 0.0
    failures: int = 0
    ejections: int = 0
    silent_since: float | None = None

    def answered(self, now: float) -> None:
        """It has sent labels that passed their checks."""
        forgiven_s = max(FORGIVEN_PAUSES * self.pause_s, FORGIVEN_S)
        if self.ejections and self.cause is None and now - self.since >= forgiven_s:
            self.since, self.pause_s, self.ejections = 0.0, 0.0, 0
        self.failures, self.silent_since = 0, None

    def failed(self, others: int, now: float, rng: RandomLike) -> bool:
        """A request came to nothing, and may be sent again; whether that ejects the teacher.

        Args:
            others: teachers besides this one that would answer, if need be at once admitted from
                trial.
            now: seconds of a clock that does not go back.
            rng: scatters the probes.
        """
        self.failures += 1
        if self.cause is not None or self.failures < FAILURES or not others:
            return False
        return self.open("failed", now, rng)

    def silent(self, others: int, now: float, rng: RandomLike) -> bool:
        """A look has found it silent; as of `failed`."""
        if self.cause is not None:
            return False
        if self.silent_since is None:
            self.silent_since = now
            return False
        if now - self.silent_since < SILENCE_S or not others:
            return False
        return self.open("silent", now, rng)

    def open(self, cause: Cause, now: float, rng: RandomLike) -> bool:
        """Out of the pool from now on; whether it was in.

        Half of the pause is chance, so that probes are scattered.
        """
        was_in = self.cause is None
        longest_s = LONGEST_PAUSE_OF_LIARS_S if cause == "lied" else LONGEST_PAUSE_S
        self.pause_s = delay_s(self.ejections, rng, PAUSE_S[cause], longest_s, sure=0.5)
        self.cause, self.since, self.silent_since = cause, now, None
        self.ejections += 1
        return was_in

    def probe_at(self, usable: int) -> float | None:
        """When to probe it, while `usable` teachers can be sent to; None: it is in the pool."""
        if self.cause is None:
            return None
        waits = usable or self.cause == "lied"  # a liar's labels look as good as any
        return self.since + (self.pause_s if waits else min(self.pause_s, DESPERATE_S))

    def close(self, now: float) -> bool:
        """It has answered a probe; whether that lets it in again, on trial."""
        if self.cause is None:
            return False
        self.cause, self.since, self.failures = None, now, FAILURES - 1
        return True


class CircuitBreakers:
    """Those of the teachers of one service.

    Args:
        rng: scatters the probes.
        log: takes a level, a text and the teacher concerned.

    Attributes:
        ejections: so far, by cause.
        readmissions: how many of the ejected were let in again, so far.
        labellers: teachers that have labelled something, also over a connection that was lost.
    """

    def __init__(self, rng: RandomLike, log: Log) -> None:
        self.ejections: Counter[Cause] = Counter()
        self.readmissions = 0
        self.labellers: set[str] = set()
        self._rng = rng
        self._log = log
        self._breakers: dict[str, CircuitBreaker] = {}

    @property
    def ejected(self) -> dict[str, Cause]:
        """Teachers that are out of the pool, sorted, and why."""
        causes = ((name, one.cause) for name, one in sorted(self._breakers.items()))
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
        if (known := self._breakers.get(name)) is not None:
            known.answered(now)

    def failed(self, name: str, others: int, now: float) -> bool:
        """A request came to nothing; whether that ejects it from among `others` that can be had."""
        return self._count_ejection(name, self._of(name).failed(others, now, self._rng))

    def convict(self, name: str, cause: Literal["wrong", "lied", "refused"], now: float) -> bool:
        """Eject a teacher for what it has said, the last one too; whether it was in the pool."""
        return self._count_ejection(name, self._of(name).open(cause, now, self._rng))

    def look(
        self, names: Iterable[str], silent: Collection[str], usable: Collection[str], now: float
    ) -> list[str]:
        """Judge teachers by whether this look found them silent, those on trial included.

        Args:
            names: all that were looked at, in the order in which they are judged.
            silent: those that say nothing.
            usable: those that can be sent to now.
            now: seconds of a clock that does not go back.

        Returns:
            Who is ejected for it: never the last one that can be sent to.
        """
        ejected: list[str] = []
        left = set(usable)
        for name in names:
            breaker = self._of(name)
            if name not in silent:
                breaker.silent_since = None
            elif self._count_ejection(name, breaker.silent(len(left - {name}), now, self._rng)):
                ejected.append(name)
                left.discard(name)
        return ejected

    def pause_s(self, name: str, usable: int, now: float) -> float:
        """Seconds until a teacher that is ejected is to be probed; 0 for any other."""
        probe_at = self._of(name).probe_at(usable)
        return 0.0 if probe_at is None else max(probe_at - now, 0.0)

    def probed(self, name: str, now: float) -> None:
        """It has answered a probe: it is back in the pool, if it was out of it."""
        if self._of(name).close(now):
            self.readmissions += 1
            self._log("info", f"teacher {name} is asked again", name)

    def keep(self, names: Collection[str]) -> None:
        """Forget all others: who comes back under their names may be another machine."""
        self._breakers = {name: one for name, one in self._breakers.items() if name in names}
        self.labellers.intersection_update(names)

    def _of(self, name: str) -> CircuitBreaker:
        if (known := self._breakers.get(name)) is None:
            known = self._breakers[name] = CircuitBreaker()
        return known

    def _count_ejection(self, name: str, is_ejected: bool) -> bool:
        """Count and log an ejection; returns `is_ejected`."""
        cause = self._breakers[name].cause
        if is_ejected and cause is not None:
            self.ejections[cause] += 1
            self._log("warning", f"teacher {name} is ejected: it {IN_WORDS[cause]}", name)
        return is_ejected
