"""One circuit breaker per teacher: decides which teachers a reader ejects, and for how long.

A breaker is *closed* while its teacher gets requests, *open* while it gets none, and *half open*
from the moment when a probe may be sent until it is answered. Teachers are ejected for lost work or
for answers that cannot be trusted, never for being slow: a slow teacher gets few batches, and its
labels still help (see `hedging` for stragglers). The causes of an ejection:

* "failed": several consecutive requests failed over a connection that holds, for example because
  the teacher's predictor restarts. Being full, or rejecting the reader's credentials, does not
  count.
* "silent": the teacher was silent for long while others answered (see `hedging`). Its requests have
  been hedged already; the ejection lets the reader ask for another teacher.
* "wrong": one answer cannot be labels (shape, NaN, other content).
* "lied": the teacher's labels differ from those of the largest group that agrees (`canaries`).
* "refused": the teacher has labelled nothing and refuses requests. Three refusals suffice if
  another usable teacher has labelled something; otherwise it must have refused every waiting
  batch. A teacher whose model does not fit the reader's settings is ejected for this cause too.

The first two causes eject a teacher only if another one can take its place: a bad teacher is better
than none. The other causes do not wait for that, because wrong labels are worse than none. An
ejected teacher is probed after a pause that doubles with each ejection, and readmitted when it
answers. Its first labels are then compared with those of others, and until it has labelled
something a single failure ejects it again. While no teacher is usable, ejected teachers except
liars are probed after at most a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from .backoff import RandomLike, delay_s

Cause = Literal["failed", "silent", "wrong", "lied", "refused"]
#: Writes a log message about a teacher: level, text, name of the teacher.
Log = Callable[[Literal["info", "warning"], str, str], None]

#: Text of each cause, for "teacher a is ejected: it ...".
IN_WORDS: Final[dict[Cause, str]] = {
    "failed": "failed several times in a row",
    "silent": "does not answer while others do",
    "wrong": "sent an answer that cannot be labels",
    "lied": "sent labels that contradict the other teachers",
    "refused": "refuses requests, or its model does not fit",
}

#: First pause in seconds before a probe, by cause.
PAUSE_S: dict[Cause, float] = {
    "failed": 1.0,
    "silent": 0.5,
    "wrong": 2.0,
    "lied": 30.0,
    "refused": 2.0,
}
#: Longest pause in seconds before a probe.
LONGEST_PAUSE_S = 60.0
#: The same, for teachers that were ejected because they lied.
LONGEST_PAUSE_OF_LIARS_S = 600.0
#: Consecutive failures that eject a teacher.
FAILURES = 3
#: Seconds that a teacher must stay silent to be ejected.
SILENCE_S = 0.5
#: A teacher's ejections are forgotten once it has been back in the pool for this multiple of its
#: latest pause, and for at least this many seconds.
FORGIVEN_PAUSES, FORGIVEN_S = 4.0, 60.0
#: Longest pause in seconds before a probe while no teacher is usable.
DESPERATE_S = 1.0


@dataclass(slots=True)
class CircuitBreaker:
    """The breaker of one teacher.

    Attributes:
        cause: cause of the ejection; None while it is closed.
        since: time of the latest ejection or readmission.
        pause_s: the latest pause before a probe.
        failures: consecutive failures; a readmission sets it to `FAILURES` - 1.
        ejections: number of ejections since they were last forgotten.
        silent_since: start of the current silence.
    """

    cause: Cause | None = None
    since: float = 0.0
    pause_s: float = 0.0
    failures: int = 0
    ejections: int = 0
    silent_since: float | None = None

    def answered(self, now: float) -> None:
        """Record labels that passed their checks."""
        forgiven_s = max(FORGIVEN_PAUSES * self.pause_s, FORGIVEN_S)
        if self.ejections and self.cause is None and now - self.since >= forgiven_s:
            self.since, self.pause_s, self.ejections = 0.0, 0.0, 0
        self.failures, self.silent_since = 0, None

    def failed(self, others: int, now: float, rng: RandomLike) -> bool:
        """Record a retryable failure; return whether it ejects the teacher.

        Args:
            others: number of other teachers that can be expected to answer, including those that
                are on trial (see `canaries`).
            now: seconds of a clock that does not go back.
            rng: jitters the probes.
        """
        self.failures += 1
        if self.cause is not None or self.failures < FAILURES or not others:
            return False
        return self.open("failed", now, rng)

    def silent(self, others: int, now: float, rng: RandomLike) -> bool:
        """Record that the teacher is silent; arguments and result are those of `failed`."""
        if self.cause is not None:
            return False
        if self.silent_since is None:
            self.silent_since = now
            return False
        if now - self.silent_since < SILENCE_S or not others:
            return False
        return self.open("silent", now, rng)

    def open(self, cause: Cause, now: float, rng: RandomLike) -> bool:
        """Eject the teacher; return whether it was in the pool.

        Half of the pause is random, so that probes are spread.
        """
        was_closed = self.cause is None
        longest_s = LONGEST_PAUSE_OF_LIARS_S if cause == "lied" else LONGEST_PAUSE_S
        self.pause_s = delay_s(self.ejections, rng, PAUSE_S[cause], longest_s, min_share=0.5)
        self.cause, self.since, self.silent_since = cause, now, None
        self.ejections += 1
        return was_closed

    def probe_at(self, usable: int) -> float | None:
        """Return when to probe the teacher; None: it is in the pool.

        `usable` is the number of other teachers that can get requests.
        """
        if self.cause is None:
            return None
        # A probe does not show whether a teacher lies, so a liar is never probed early.
        is_full_pause = usable or self.cause == "lied"
        return self.since + (self.pause_s if is_full_pause else min(self.pause_s, DESPERATE_S))

    def close(self, now: float) -> bool:
        """Record an answered probe; return whether it readmits the teacher."""
        if self.cause is None:
            return False
        self.cause, self.since, self.failures = None, now, FAILURES - 1
        return True


class CircuitBreakers:
    """The breakers of the teachers of one service.

    Args:
        rng: jitters the probes.
        log: writes a log message.

    Attributes:
        ejections: number of ejections so far, by cause.
        readmissions: number of readmissions so far.
        labellers: teachers that have labelled something, also over an earlier connection.
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
        """Ejected teachers and the causes, sorted by name."""
        causes = ((name, breaker.cause) for name, breaker in sorted(self._breakers.items()))
        return {name: cause for name, cause in causes if cause is not None}

    def is_open(self, name: str) -> bool:
        return self._breaker(name).cause is not None

    def half_open(self, usable: int, now: float) -> list[str]:
        """Return the ejected teachers whose pause is over: they may be probed."""
        return [name for name in self.ejected if not self.pause_s(name, usable, now)]

    def answered(self, name: str, now: float) -> None:
        """Record labels that passed their checks."""
        self.labellers.add(name)
        if (breaker := self._breakers.get(name)) is not None:
            breaker.answered(now)

    def failed(self, name: str, others: int, now: float) -> bool:
        """Record a retryable failure; return whether it ejects the teacher.

        `others` is the number of other teachers that can be expected to answer; 0: no ejection.
        """
        return self._count_ejection(name, self._breaker(name).failed(others, now, self._rng))

    def convict(
        self, name: str, cause: Literal["wrong", "lied", "refused"], now: float, why: str = ""
    ) -> None:
        """Eject a teacher for its answer, also if it is the last usable one.

        `why` is for the log; empty: the text of the cause.
        """
        self._count_ejection(name, self._breaker(name).open(cause, now, self._rng), why)

    def record_silence(
        self, names: Iterable[str], silent: Collection[str], usable: Collection[str], now: float
    ) -> list[str]:
        """Record which teachers are silent, and return those that are ejected for it.

        Args:
            names: all observed teachers, in the order in which they are judged.
            silent: the observed teachers that are silent.
            usable: teachers that can get requests now; the last one is never ejected.
            now: seconds of a clock that does not go back.
        """
        ejected: list[str] = []
        remaining = set(usable)
        for name in names:
            breaker = self._breaker(name)
            if name not in silent:
                breaker.silent_since = None
            elif self._count_ejection(
                name, breaker.silent(len(remaining - {name}), now, self._rng)
            ):
                ejected.append(name)
                remaining.discard(name)
        return ejected

    def pause_s(self, name: str, usable: int, now: float) -> float:
        """Return the seconds until an ejected teacher is probed; 0 for any other."""
        probe_at = self._breaker(name).probe_at(usable)
        return 0.0 if probe_at is None else max(probe_at - now, 0.0)

    def probed(self, name: str, now: float) -> None:
        """Record an answered probe, which readmits an ejected teacher."""
        if self._breaker(name).close(now):
            self.readmissions += 1
            self._log("info", f"teacher {name} answers its probe and gets requests again", name)

    def forget_others(self, names: Collection[str]) -> None:
        """Forget all teachers but `names`: a new machine may reuse a name."""
        self._breakers = {name: self._breakers[name] for name in self._breakers if name in names}
        self.labellers.intersection_update(names)

    def _breaker(self, name: str) -> CircuitBreaker:
        if (breaker := self._breakers.get(name)) is None:
            breaker = self._breakers[name] = CircuitBreaker()
        return breaker

    def _count_ejection(self, name: str, is_ejected: bool, why: str = "") -> bool:
        cause = self._breakers[name].cause
        if is_ejected and cause is not None:
            self.ejections[cause] += 1
            text = f"teacher {name} is ejected: it {why or IN_WORDS[cause]}"
            self._log("warning", text, name)
        return is_ejected
