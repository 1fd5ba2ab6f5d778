"""What a timeline shows that nobody tells it: it looks, and draws what is not as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...scheduler.outliers import IN_WORDS, Cause
from .trace_pen import HEDGES, PAUSES, STATE, WANTS, Pen
from .words import waiting_for

if TYPE_CHECKING:
    from .member import Member

#: Counters are not drawn more often.
COUNT_EVERY_S: Final = 0.01


class Changes:
    """Draws teachers that come, go, are ejected and let in, hedges, wants, pauses and states."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self._teachers: frozenset[str] = frozenset()
        self._ejected: dict[str, Cause] = {}
        self._hedged: frozenset[tuple[int, int]] = frozenset()
        self._wants: dict[str, int] = {}
        self._pause: tuple[float, str, str] | None = None  # since when, for whom, and why
        self._state: tuple[str, float, str] | None = None  # since when, and what is waited for
        self._counted_at = 0.0

    def look(self, members: Sequence[Member], now: float) -> None:
        """This is how things are now."""
        self._look_at_teachers(members, now)
        self._look_at_hedges(members, now)
        for member in members:
            self._look_at_want(member, now)
        self._look_at_pauses(members, now)
        self._look_at_state(members, now)
        if now - self._counted_at >= COUNT_EVERY_S:
            self._counted_at = now
            count = self._pen.count
            count("volume (bytes)", min(m.ledger.volume_bytes for m in members), now)
            count("requests in flight", sum(m.ledger.in_flight for m in members), now)
            count("teachers wanted", sum(m.core.decision.want for m in members), now)

    def end(self, now: float) -> None:
        """Nothing more is looked at: what lasts ends."""
        self._draw_pause(now)
        self._draw_state(now)

    def _look_at_teachers(self, members: Sequence[Member], now: float) -> None:
        teachers = frozenset(name for member in members for name in member.ledger.teachers)
        for name in sorted(teachers ^ self._teachers):
            what = "joined" if name in teachers else "gone"
            self._pen.news(name, f"{name} {what}", now)
        ejected = {
            k: v for member in members for k, v in member.core.teachers.breakers.ejected.items()
        }
        for name, cause in ejected.items():
            if name not in self._ejected:
                self._pen.news(name, f"{name} ejected: it {IN_WORDS[cause]}", now, {"cause": cause})
        for name in self._ejected.keys() & teachers - ejected.keys():
            self._pen.news(name, f"{name} let in again", now)
        self._teachers, self._ejected = teachers, ejected

    def _look_at_hedges(self, members: Sequence[Member], now: float) -> None:
        hedged = frozenset(
            (place, request)
            for place, member in enumerate(members)
            for request in member.core.teachers.lateness.hedged
        )
        for place, request in sorted(hedged - self._hedged):
            flight = members[place].ledger.request(request)
            told = {"request": request, "teachers": [*flight.teachers] if flight else []}
            self._pen.moment(HEDGES, f"hedge of request {request}", now, told)
        self._hedged = hedged

    def _look_at_want(self, member: Member, now: float) -> None:
        service, decision = member.config.service, member.core.decision
        if self._wants.get(service) != decision.want:
            self._wants[service] = decision.want
            told = {"service": service, "reason": decision.reason}
            self._pen.moment(WANTS, f"want {decision.want}", now, told)

    def _look_at_pauses(self, members: Sequence[Member], now: float) -> None:
        for member in members:
            turn = member.core.decision.turn
            if turn is not None and not turn.pulling:
                if self._pause is None:
                    self._pause = (now, member.config.service, turn.why)
                return
        turns = (member.core.decision.turn for member in members)
        self._draw_pause(now, "; ".join(turn.why for turn in turns if turn is not None))

    def _draw_pause(self, now: float, goes_on: str = "") -> None:
        if self._pause is not None:
            since, service, why = self._pause
            told = {"service": service, "reason": why, "goes_on": goes_on}
            self._pen.slice(PAUSES, "pulling pauses", since, now, told)
            self._pause = None

    def _look_at_state(self, members: Sequence[Member], now: float) -> None:
        state = members[0].core.decision.state
        if self._state is None or state != self._state[0]:
            self._draw_state(now)
            words = "; ".join(filter(None, map(waiting_for, members)))
            self._state = (state, now, words)

    def _draw_state(self, now: float) -> None:
        if self._state is not None:
            state, since, words = self._state
            self._pen.slice(STATE, state, since, now, {"waits_for": words} if words else {})
