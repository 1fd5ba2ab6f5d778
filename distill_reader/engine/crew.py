"""How the teachers of a member do: their speeds, what is late at them, who is out of the pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ... import errors
from ...scheduler.ledger import Ledger
from ...scheduler.ledger import events as ev
from ..config import ReaderConfig
from .lateness import Lateness
from .outcomes import Done
from .speeds import Speeds
from .standings import Standings

#: Late requests are looked for so often.
LOOK_EVERY_S = 0.05


class Crew:
    """Turns what teachers do into events of the ledger. Used by the engine's thread alone.

    Args:
        config: of the member.
        ledger: of the member; it is only read here.

    Attributes:
        speeds: how fast they answer.
        lateness: which requests and teachers are late.
        standings: who is ejected.
    """

    def __init__(self, config: ReaderConfig, ledger: Ledger) -> None:
        self.speeds = Speeds(config)
        self.lateness = Lateness(ledger, self.speeds)
        self.standings = Standings()
        self._ledger = ledger
        self._resting: set[str] = set()  # until they answer a probe
        self._looked_at = 0.0

    def answers(
        self, name: str, on_trial: bool, now: float, most_rows: int | None = None
    ) -> ev.TeacherJoined:
        """A teacher has answered a probe; whether it is on trial says `canaries`.

        Its model takes `most_rows` at once; None where that is not known.
        """
        self._resting.discard(name)
        self.standings.probed(name, now)
        return replace(
            self.speeds.joined(name, now, most_rows),
            on_trial=on_trial,
            has_labelled=name in self.standings.labellers,
        )

    def answered(self, name: str, done: Done, in_flight: int, now: float) -> list[ev.Event]:
        """A teacher has sent labels, when it had so many requests."""
        self.standings.answered(name, now)
        return list(self.speeds.answered(name, done, in_flight))

    def failed(self, name: str, error: errors.EdlError, now: float) -> list[ev.Event]:
        """A request came to nothing; one that is full has not failed."""
        others = len(self.answering - self.standings.ejected.keys() - {name})
        self._resting.add(name)
        if isinstance(error, errors.RateLimited | errors.AccessError):
            return []
        return [ev.Ejected(name)] if self.standings.failed(name, others, now) else []

    def wrong(self, name: str, now: float) -> None:
        """A teacher has answered what labels cannot be, and is out of the pool."""
        self.standings.wrong(name, now)

    def pause_s(self, name: str, now: float) -> float:
        """Seconds until a teacher may be probed that is ejected."""
        return self.standings.pause_s(name, self._ledger.usable, now)

    def overdue(self, now: float) -> list[str]:
        """Ejected teachers that are to be probed by now: it may be sooner than was planned."""
        return [name for name in self.standings.ejected if not self.pause_s(name, now)]

    def look(self, waits: bool, now: float) -> Iterator[ev.Hedge | ev.Ejected]:
        """Time goes by, in which the training loop waits or not."""
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        ledger, lateness = self._ledger, self.lateness
        yield from lateness.look(waits, self._resting.union(ledger.on_trial), now)
        usable = ledger.usable_teachers
        for name in self.standings.look(ledger.teachers, lateness.silent, usable, now):
            yield ev.Ejected(name)

    @property
    def answering(self) -> frozenset[str]:
        """Teachers that would answer now, as far as is known; on trial or not."""
        return frozenset(self._ledger.teachers) - self._resting - self.lateness.late

    def lied(self, name: str, now: float) -> None:
        """What a teacher has said is not what others say, and it is out of the pool."""
        self.standings.lied(name, now)

    def refused(self, name: str, now: float) -> None:
        """A teacher refuses requests and has labelled none: it is out of the pool."""
        self.standings.refused(name, now)

    def forget(self, name: str) -> None:
        """A teacher is gone."""
        self._resting.discard(name)
        self.speeds.forget(name)
