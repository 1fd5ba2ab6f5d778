"""Which teachers are ejected from a reader's pool, and when they are let in again.

Ejected is who costs work or is not to be believed, never who is merely slow: a slow teacher gets
few batches, and what it labels is a gain (it is named, see `hedging`). The causes:

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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from .backoff import RandomLike, delay_s

Cause = Literal["failed", "silent", "wrong", "lied", "refused"]
Step = Literal["stay", "eject", "readmit"]

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


@dataclass(frozen=True, slots=True)
class Standing:
    """How a teacher stands in the pool.

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

    @property
    def ejected(self) -> bool:
        """Whether it is out of the pool."""
        return self.cause is not None


def answered(standing: Standing, now: float) -> Standing:
    """It has sent labels that passed their checks."""
    forgiven_s = max(FORGIVEN_PAUSES * standing.pause_s, FORGIVEN_S)
    if standing.ejections and not standing.ejected and now - standing.since >= forgiven_s:
        return Standing()
    if not standing.failures and standing.silent_since is None:
        return standing
    return replace(standing, failures=0, silent_since=None)


def failed(standing: Standing, others: int, now: float, rng: RandomLike) -> tuple[Standing, Step]:
    """A request came to nothing, and may be sent again.

    Args:
        standing: how it stood.
        others: teachers besides this one that would answer, if need be at once admitted from trial.
        now: seconds of a clock that does not go back.
        rng: scatters the probes.
    """
    standing = replace(standing, failures=standing.failures + 1)
    if standing.ejected or standing.failures < FAILURES or not others:
        return standing, "stay"
    return _ejected(standing, "failed", now, rng), "eject"


def silent(standing: Standing, others: int, now: float, rng: RandomLike) -> tuple[Standing, Step]:
    """A look has found it silent; `heard_of` says that a look has not."""
    if standing.ejected:
        return standing, "stay"
    if standing.silent_since is None:
        return replace(standing, silent_since=now), "stay"
    if now - standing.silent_since < SILENCE_S or not others:
        return standing, "stay"
    return _ejected(standing, "silent", now, rng), "eject"


def look(
    standings: Mapping[str, Standing],
    silent_ones: Collection[str],
    usable: Collection[str],
    now: float,
    rng: RandomLike,
) -> tuple[dict[str, Standing], tuple[str, ...]]:
    """Judge teachers by whether this look found them silent, those on trial included.

    Args:
        standings: of all that were looked at, in the order in which they are judged.
        silent_ones: names of those that say nothing.
        usable: names of teachers that can be sent to now.
        now: seconds of a clock that does not go back.
        rng: scatters the probes.

    Returns:
        How they stand now, and who is ejected for it: never the last one that can be sent to.
    """
    after: dict[str, Standing] = {}
    ejected: list[str] = []
    left = set(usable)
    for name, standing in standings.items():
        if name not in silent_ones:
            after[name] = heard_of(standing)
            continue
        after[name], step = silent(standing, len(left - {name}), now, rng)
        if step == "eject":
            ejected.append(name)
            left.discard(name)
    return after, tuple(ejected)


def heard_of(standing: Standing) -> Standing:
    """A look has not found it silent."""
    return standing if standing.silent_since is None else replace(standing, silent_since=None)


def wrong(standing: Standing, now: float, rng: RandomLike) -> tuple[Standing, Step]:
    """It has answered what labels cannot be."""
    return _convicted(standing, "wrong", now, rng)


def lied(standing: Standing, now: float, rng: RandomLike) -> tuple[Standing, Step]:
    """Its labels are not those of the others; from the pool or out of it."""
    return _convicted(standing, "lied", now, rng)


def refused(standing: Standing, now: float, rng: RandomLike) -> tuple[Standing, Step]:
    """It refuses requests and has labelled none."""
    return _convicted(standing, "refused", now, rng)


def probe_at(standing: Standing, usable: int) -> float | None:
    """When it is to be probed; None: not at all, it is in the pool.

    Args:
        standing: how it stands.
        usable: teachers that can be sent to now.
    """
    if not standing.ejected:
        return None
    waits = usable or standing.cause == "lied"  # a liar's labels look as good as any
    return standing.since + (standing.pause_s if waits else min(standing.pause_s, DESPERATE_S))


def probed(standing: Standing, well: bool, now: float, rng: RandomLike) -> tuple[Standing, Step]:
    """It was probed: does it serve, and say what it should?"""
    if standing.cause is None:
        return standing, "stay"
    if not well:
        return _ejected(standing, standing.cause, now, rng), "stay"
    return replace(standing, cause=None, since=now, failures=FAILURES - 1), "readmit"


def _convicted(
    standing: Standing, cause: Cause, now: float, rng: RandomLike
) -> tuple[Standing, Step]:
    step: Step = "stay" if standing.ejected else "eject"
    return _ejected(standing, cause, now, rng), step


def _ejected(standing: Standing, cause: Cause, now: float, rng: RandomLike) -> Standing:
    """Out of the pool from now on; half of the pause is chance, so that probes are scattered."""
    longest_s = LONGEST_PAUSE_OF_LIARS_S if cause == "lied" else LONGEST_PAUSE_S
    pause_s = delay_s(standing.ejections, rng, PAUSE_S[cause], longest_s, sure=0.5)
    return Standing(cause, now, pause_s, standing.failures, standing.ejections + 1)
