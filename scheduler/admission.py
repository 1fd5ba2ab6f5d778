"""Which teachers are probed, when, and who is admitted: a state machine, without the probing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .backoff import RandomLike, delay_s

#: Probes on the way at once.
AT_ONCE = 64
#: Of these, at most so many of teachers that were asked before: the rest is kept for new ones.
AGAIN_AT_ONCE = 48
#: Seconds after which a probe that was not answered counts as lost.
LOST_S = 15.0
#: Bounds of the wait before a refused teacher is probed again, in seconds.
_BASE_S, _CAP_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is admitted: another life or another address is another one."""

    teacher_id: str
    incarnation: int
    address: str


def who_proves(address: str, voucher: str, *, has_key: bool) -> str | None:
    """At which address the identity of a teacher has to be proved.

    Args:
        address: of the teacher.
        voucher: of the process that speaks for it; empty: it speaks for itself.
        has_key: whether it registered with a key, by which somebody can prove anything.

    Returns:
        None: nobody can, so it is never admitted. Whoever may write to the registry could otherwise
        offer students any server as a teacher of theirs.
    """
    return (voucher or address) if has_key else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer to a probe means.

    Attributes:
        identity: whose.
        admitted: it may be assigned from now on.
        why: the reason of a refusal, in words.
        news: the reason differs from the last one of this identity, so it is worth telling.
    """

    identity: Identity
    admitted: bool
    why: str
    news: bool


@dataclass(slots=True)
class _Case:
    """A teacher that is not admitted yet. `due_s` None: never again in this life."""

    identity: Identity
    due_s: float | None
    asks: int = 0
    refusals: int = 0
    why: str = ""
    asked_s: float | None = None


class Admission:
    """Knows who is admitted and whose probe is due.

    Args:
        rng: spreads repeated probes.
        remembered: teacher id -> incarnation that earlier leaders admitted.
    """

    def __init__(self, rng: RandomLike, remembered: Mapping[str, int] | None = None) -> None:
        self._rng = rng
        self._remembered = dict(remembered or {})
        self._admitted: dict[str, Identity] = {}
        self._cases: dict[str, _Case] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Teacher id -> why it was refused last; without those whose first probe is not over."""
        return {name: case.why for name, case in self._cases.items() if case.why}

    def is_refused(self, teacher_id: str) -> bool:
        """Whether it is one of `refused`."""
        case = self._cases.get(teacher_id)
        return case is not None and bool(case.why)

    @property
    def waiting(self) -> int:
        """How many teachers are neither admitted nor refused yet."""
        return sum(not case.why for case in self._cases.values())

    def appeared(self, identity: Identity, now: float) -> bool:
        """A teacher is there; returns whether it is admitted, else a probe of it is due."""
        name = identity.teacher_id
        if self._remembered.pop(name, None) == identity.incarnation and identity.incarnation:
            self._admitted[name] = identity
        if self._admitted.get(name) == identity:
            self._cases.pop(name, None)
            return True
        self._admitted.pop(name, None)
        case = self._cases.get(name)
        if case is None or case.identity != identity:
            self._cases[name] = _Case(identity, now)
        return False

    def gone(self, teacher_id: str) -> None:
        """A teacher is not there any more; a later answer about it is not heeded."""
        self._remembered.pop(teacher_id, None)
        self._admitted.pop(teacher_id, None)
        self._cases.pop(teacher_id, None)

    def due(self, now: float) -> list[Identity]:
        """Whom to probe now; they count as asked.

        New ones come first, then whoever waits longest. Those that were asked before never take all
        places, else the many that nobody can reach would keep out one that has just come.
        """
        asked = asked_again = 0
        ready: list[tuple[float, _Case]] = []
        for case in self._cases.values():
            lost_s = None if case.asked_s is None else case.asked_s + LOST_S
            if lost_s is not None and now < lost_s:
                asked += 1
                asked_again += case.asks > 1
            elif case.due_s is not None and case.due_s <= now:
                ready.append((case.due_s if lost_s is None else lost_s, case))
        ready.sort(key=lambda each: each[0])
        new = [case for _, case in ready if not case.asks][: max(0, AT_ONCE - asked)]
        room = min(AT_ONCE - asked - len(new), AGAIN_AT_ONCE - asked_again)
        chosen = new + [case for _, case in ready if case.asks][: max(0, room)]
        for case in chosen:
            case.asked_s = now
            case.asks += 1
        return [case.identity for case in chosen]

    def answered(
        self, identity: Identity, verdict: Literal["ok", "retry", "never"], why: str, now: float
    ) -> Outcome | None:
        """A probe has ended.

        Args:
            identity: who was probed.
            verdict: it is who it says; it may be later; it never will in this life.
            why: the reason of a refusal, in words.
            now: seconds, as everywhere here.

        Returns:
            None when that teacher is not waiting any more.
        """
        case = self._cases.get(identity.teacher_id)
        if case is None or case.identity != identity:
            return None
        if verdict == "ok":
            del self._cases[identity.teacher_id]
            self._admitted[identity.teacher_id] = identity
            return Outcome(identity, True, "", news=True)
        news, case.why, case.asked_s = why != case.why, why, None
        wait_s = _BASE_S + delay_s(case.refusals, self._rng, _BASE_S, _CAP_S)
        case.due_s = now + wait_s if verdict == "retry" else None
        case.refusals += 1
        return Outcome(identity, False, why, news)
