"""Students' leases in the registry, written by the desk that holds their streams."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import LeaseSuperseded
from ..registry import Beat, MemberBeat, Registry
from ..registry.noted import concerns_managers

#: Writes per TTL and student of what does not concern the leader, however often it reports.
_WRITES_PER_TTL = 2


@dataclass(slots=True)
class _Written:
    """What stands in the registry.

    Attributes:
        noted: facts as they were when managers were last told.
    """

    incarnation: int
    facts: dict[str, str]
    at_s: float
    noted: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wish:
    """A student as it is to stand in the registry.

    Attributes:
        student_id: its id.
        facts: all of them.
        urgent: managers must hear of it, whatever has changed.
    """

    student_id: str
    facts: Mapping[str, str]
    urgent: bool = False

    @property
    def incarnation(self) -> int:
        """Its life."""
        return int(self.facts["incarnation"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of writing.

    Attributes:
        superseded: students of whom a newer life holds the lease, and what to tell the older.
        concerns: whether the leader has something to see.
    """

    superseded: Mapping[str, LeaseSuperseded] = field(default_factory=dict)
    concerns: bool = False


class StudentLeases:
    """Makes and prolongs leases of kind "students" in one service."""

    def __init__(self, registry: Registry, service: str, ttl_s: float) -> None:
        self._registry = registry
        self._service = service
        self._ttl_s = ttl_s
        self._written: dict[str, _Written] = {}

    def is_time(self, student_id: str, now: float) -> bool:
        """Whether its lease is to be prolonged now, if it has said anything since the last time."""
        written = self._written.get(student_id)
        return written is None or now - written.at_s >= self._ttl_s / _WRITES_PER_TTL

    def is_due(self, wish: Wish, now: float) -> bool:
        """Whether it is to be written now: because it concerns the leader, or it is time."""
        if wish.urgent or self.is_time(wish.student_id, now):
            return True
        written = self._written[wish.student_id]
        if written.incarnation != wish.incarnation:
            return True
        return _concerns(_changed(written.facts, wish.facts), written.noted)

    def register(self, wish: Wish, now: float) -> LeaseSuperseded | None:
        """Make a lease, or make it anew; returns why not, when a newer life of it holds it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        facts = dict(wish.facts)
        try:
            self._registry.register("students", self._service, wish.student_id, facts, self._ttl_s)
        except LeaseSuperseded as error:
            self._written.pop(wish.student_id, None)
            return error
        # As if written some time ago: who came together is not to be written together for ever.
        ago_s = random.random() * self._ttl_s / _WRITES_PER_TTL
        self._written[wish.student_id] = _Written(wish.incarnation, facts, now - ago_s, facts)
        return None

    def write(self, wishes: Iterable[Wish], now: float) -> Outcome:
        """Write students, in as few round trips as can be.

        Raises:
            UnavailableError: the registry does not answer; some may have been written.
        """
        anew: list[Wish] = []
        beats: list[tuple[Wish, MemberBeat]] = []
        for wish in wishes:
            written = self._written.get(wish.student_id)
            if written is None or written.incarnation != wish.incarnation:
                anew.append(wish)
                continue
            changed = _changed(written.facts, wish.facts)
            concerns = wish.urgent or _concerns(changed, written.noted)
            beat = MemberBeat(wish.student_id, wish.incarnation, changed, noted=concerns)
            beats.append((wish, beat))
        anew += self._beat(beats, now)
        errors = {wish.student_id: self.register(wish, now) for wish in anew}
        superseded = {name: error for name, error in errors.items() if error is not None}
        return Outcome(superseded, bool(anew) or any(beat.noted for _, beat in beats))

    def _beat(self, beats: Sequence[tuple[Wish, MemberBeat]], now: float) -> list[Wish]:
        """Prolong leases; returns those that were taken out meanwhile, or have another life."""
        sent = [beat for _, beat in beats]
        answers = (
            self._registry.beat_many("students", self._service, sent, self._ttl_s) if sent else []
        )
        unknown = []
        for (wish, beat), answer in zip(beats, answers, strict=True):
            if answer is Beat.UNKNOWN:
                unknown.append(wish)
                continue
            written = self._written[wish.student_id]
            written.facts, written.at_s = dict(wish.facts), now
            if beat.noted:
                written.noted = written.facts
        return unknown

    def forget(self, student_id: str) -> None:
        """Somebody else looks after its lease, or nobody does."""
        self._written.pop(student_id, None)

    def forget_all(self) -> None:
        """The registry may have forgotten: everything is to be written anew."""
        self._written.clear()

    def leave(self, student_id: str, incarnation: int) -> None:
        """End a lease at once, unless another life holds it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        self.forget(student_id)
        self._registry.leave("students", self._service, student_id, incarnation)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _concerns(changed: Mapping[str, str], noted: Mapping[str, str]) -> bool:
    return concerns_managers("students", changed, noted)
