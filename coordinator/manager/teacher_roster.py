"""What the leader of one service knows of its teachers: readings in, a batch out. No I/O.

It lives as long as one term: a new one starts from what the registry and the readers say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from ...scheduler import assignment as rule
from ...scheduler.admission import Admission, ProbeOutcome, TeacherIdentity
from ..registry import Member
from ..registry.records import GIVEN_UP
from ..store.records import DRAIN
from .assignment_rows import PendingChanges
from .watch_cache import WatchCache, WatchChanges

#: Why a teacher is lost that says nothing more.
_SILENT: Final = "its lease ran out, no beat came in time"


class TeacherRoster:
    """Teachers of one service in one term.

    A teacher is `up` when the rule may assign it: it is admitted, or readers held it when the term
    began; the latter stays until its probe fails.

    Args:
        batch: where everything that comes up is put.
        grace_s: how long those that the registry has forgotten have to come back.
        admission: who is admitted; None: every teacher is.
        remembered: teacher id -> incarnation that earlier leaders knew; 0 is any.
        gone: teacher id -> when it went, in a former term of the same leader.
    """

    def __init__(
        self,
        batch: PendingChanges,
        grace_s: float,
        admission: Admission | None,
        remembered: Mapping[str, int],
        gone: Mapping[str, float],
    ) -> None:
        self.mirror = WatchCache(grace_s)
        self.admission = admission
        self._batch = batch
        self._remembered = dict(remembered)
        self._up: dict[str, rule.TeacherUp] = {}
        self._believed: dict[str, int] = {}
        self._draining: set[str] = set()
        self._lives: dict[str, int] = {}
        self._given_up: dict[str, str] = {}  # why
        self._grace_s = grace_s
        self._gone_s = dict(gone)  # readers may hold them a little longer

    @property
    def draining(self) -> int:
        """How many of them take nothing new."""
        return len(self._draining & self._up.keys())

    @property
    def lives(self) -> Mapping[str, int]:
        """Teacher id -> incarnation of those that are there."""
        return self._lives

    @property
    def gone(self) -> Mapping[str, float]:
        """Teacher id -> when it went, of those that readers may still hold."""
        return self._gone_s

    @property
    def up(self) -> Mapping[str, rule.TeacherUp]:
        """Those that the rule knows, by id."""
        return self._up

    def hear(self, news: WatchChanges, now: float) -> None:
        """A reading of kind "teachers"."""
        for member in news.changed:
            self._is(member, now)
        for name in news.left:
            self._gone(name, now, lost=False)
        for name in news.lost:
            self._gone(name, now, lost=True)

    def hear_left(self, names: Iterable[str], now: float) -> None:
        """Teachers that left while nobody led: out at once, whatever readers say."""
        for name in names:
            self._gone_s[name] = now
            if name not in self.mirror.members and name in self._remembered:
                self._gone(name, now, lost=False)

    def settle(self, outcome: ProbeOutcome, now: float) -> None:
        """A probe of a teacher has ended."""
        name = outcome.identity.teacher_id
        member = self.mirror.members.get(name)
        if member is None:
            return
        if outcome.admitted:
            self._batch.admitted[name] = member.incarnation
            self._up_now(member)
        else:
            if outcome.news:
                self._batch.log("refused", name, f"refused: {outcome.why}")
            self._down(name, lost=True)

    def _is(self, member: Member, now: float) -> None:
        name = member.member
        self._gone_s.pop(name, None)
        self._given_up.pop(name, None)
        if why := member.facts.get(GIVEN_UP):
            self._given_up[name] = why
        if self._lives.get(name) != member.incarnation:
            self._lives[name] = member.incarnation
            self._draining.discard(name)
            if self._remembered.pop(name, None) not in (0, member.incarnation):
                self._batch.log("registered", name, _registered(member))
        if self.admission is not None:
            identity = TeacherIdentity(name, member.incarnation, member.facts.get("address", ""))
            if not self.admission.appeared(identity, now) and not self._is_believed(member):
                self._down(name, lost=True)  # another one took its name
                return
        else:
            self._batch.admitted.setdefault(name, 0)
        self._up_now(member)

    def _is_believed(self, member: Member) -> bool:
        """Readers held it when this term began, and it is back: it stays while it is probed."""
        if self._believed.get(member.member) not in (0, member.incarnation):
            return False
        self._believed[member.member] = member.incarnation
        return True

    def _up_now(self, member: Member) -> None:
        name = member.member
        up = _teacher_up(member)
        if not member.draining:
            if self._up.get(name) != up or name in self._draining:
                self._draining.discard(name)
                self._up[name] = up
                self._batch.events.append(up)
            return
        if name not in self._draining:
            self._draining.add(name)
            if self._up.get(name) != up:
                self._up[name] = up
                self._batch.events.append(up)
            self._batch.events.append(rule.TeacherDraining(name))
            self._batch.log("draining", name, f"{_why_draining(member)}; takes nothing new")

    def _gone(self, name: str, now: float, *, lost: bool, text: str = "") -> None:
        self._gone_s[name] = now
        self._lives.pop(name, None)
        why = self._given_up.pop(name, _SILENT)
        self._remembered.pop(name, None)
        if self.admission is not None:
            self.admission.gone(name)
        self._batch.admitted[name] = None
        drained = " after it drained" if name in self._draining else " by itself"
        self._draining.discard(name)
        if lost:
            self._batch.log("lost", name, text or f"lost: {why}")
        else:
            self._batch.log("left", name, f"left{drained}")
        self._down(name, lost=lost)

    def _down(self, name: str, *, lost: bool) -> None:
        self._believed.pop(name, None)
        if self._up.pop(name, None) is not None:
            self._batch.events.append(rule.TeacherDown(name, lost=lost))

    def believe(self, teachers: Iterable[str], content_id: str, now: float) -> None:
        """A reader holds these: they are there until the time of grace is over.

        Not those that went or were refused: the reader has not heard of it yet.
        """
        for name in teachers:
            if name in self._gone_s or self._is_refused(name):
                continue
            if self.mirror.believe(name, now):
                self._believed[name] = 0
                self._up[name] = up = rule.TeacherUp(name, content_id=content_id)
                self._batch.events.append(up)
            elif name not in self._up and not self.mirror.members[name].draining:
                self._believed[name] = self.mirror.members[name].incarnation
                self._up_now(self.mirror.members[name])  # back, and not probed yet

    def _is_refused(self, name: str) -> bool:
        return self.admission is not None and self.admission.is_refused(name)

    def give_up(self, now: float, *, recovered: bool = False) -> None:
        """Let go of those that were missing for too long, and of all that are when `recovered`."""
        for name in [n for n, at in self._gone_s.items() if now - at > self._grace_s]:
            del self._gone_s[name]
        for name in self.mirror.overdue(now):
            self._gone(name, now, lost=True, text="lost: it has not come back in time")
        if recovered:
            for name in [n for n in self._remembered if n not in self.mirror.members]:
                self._gone(name, now, lost=True, text="lost: it was gone when this term began")


def _teacher_up(member: Member) -> rule.TeacherUp:
    facts = member.facts
    t_t_s, lanes = _number(facts.get("t_t_seconds")), _number(facts.get("lanes")) or 1.0
    return rule.TeacherUp(
        member.member,
        member.incarnation,
        speed=lanes / t_t_s if t_t_s > 0 else 0.0,
        content_id=facts.get("content_id", ""),
        host=facts.get("host", ""),
    )


def _registered(member: Member) -> str:
    facts = member.facts
    content = f", content {facts['content_id']}" if facts.get("content_id") else ""
    return f"registered at {facts.get('address', 'no address')}{content}"


def _why_draining(member: Member) -> str:
    return "drained by request" if member.facts.get(DRAIN) == "1" else "drains by itself"


def _number(text: str | None) -> float:
    try:
        return finite(float(text or 0))
    except ValueError:
        return 0.0


def finite(value: float) -> float:
    """A measured time that can be worked with; 0, which is "not known", for any other."""
    return value if math.isfinite(value) and value > 0 else 0.0
