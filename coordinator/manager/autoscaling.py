"""How many teachers a service should have: its leader sums up its students, and says it.

What is decided is decided in `scheduler/autoscale.py`; this tells it how the service is, and writes
what it says to the registry, where the next leader finds it and goes on with the same freeze
window. It is used by the thread that leads alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ...scheduler.autoscale import (
    AutoscaleConfig,
    AutoscaleMemory,
    Desired,
    ServiceLoad,
    StudentLoad,
    WaitTotals,
    decide,
    load_of,
    may_begin,
    own_want,
    resumed,
)
from ..registry import LogEntry, Registry
from ..store.records import Leads, Member
from .messages import number_of
from .service_state import ServiceState

log = logging.getLogger(__name__)

#: Seconds between two decisions, at least; and so many times as long as one takes.
_LOOK_S: Final = 0.5
_SHARE: Final = 20.0
#: Students whose sums are read for one decision: a reading must not keep the leader from others.
_AT_ONCE: Final = 50
#: Seconds after which a number that stays is said again, so that it does not expire.
_AGAIN_S: Final = 30.0
#: Seconds after which nothing that was remembered of a service is believed any more.
_OLD_S: Final = 60.0


class _Sums(NamedTuple):
    incarnation: int
    waits: WaitTotals
    cut_off: bool


class Autoscaler:
    """Decides and says how many teachers one service should have, while its manager leads it.

    Args:
        registry: where students are read, and the number is written.
        service: its name.
        settings: asked anew for each decision.

    Attributes:
        desired: what it said last under this lead; None: nothing yet.
    """

    def __init__(
        self, registry: Registry, service: str, settings: Callable[[], AutoscaleConfig]
    ) -> None:
        self.desired: Desired | None = None
        self._registry = registry
        self._service = service
        self._settings = settings
        self._memory = AutoscaleMemory()
        self._lead: tuple[Leads, int] | None = None  # and number of the term
        self._due_s = self._again_s = -math.inf
        self._known: dict[str, _Sums] = {}
        self._unread: list[str] = []
        self._waits = WaitTotals()

    def forget(self) -> None:
        """Another one leads from now on."""
        self.desired = self._lead = None

    def look(self, state: ServiceState, fence: Leads, now: float) -> None:
        """Decide, if it is time to.

        Args:
            state: what the leader knows.
            fence: of the leader.
            now: monotonic seconds.

        Raises:
            UnavailableError, AccessError: the registry does not do it; it is tried again.
        """
        lead = fence, state.term
        if now < self._due_s and lead == self._lead:
            return
        began_s = time.perf_counter()
        if lead != self._lead:
            self._take_over(lead, now)
        if self._memory.desired is None and not _may_begin(state):
            self._due_s = now + _LOOK_S
            return
        self._read_sums(state.students.cache.members)
        view = self.load(state)
        before, former = self.desired, self._memory.desired
        desired, self._memory = decide(view, self._memory, now, self._settings())
        if desired != before or now >= self._again_s:
            was = view.serving + view.starting if former is None else former
            self._say(fence, desired, was, now)
        self._due_s = now + max(_LOOK_S, _SHARE * (time.perf_counter() - began_s))

    def load(self, state: ServiceState) -> ServiceLoad:
        """The service as the leader knows it."""
        teachers = state.teachers
        return load_of(
            (_load(member.facts) for member in state.students.cache.members.values()),
            self._waits,
            serving=len(teachers.up) - teachers.draining,
            starting=0 if teachers.admission is None else teachers.admission.waiting,
            recovering=state.recovering,
        )

    def _take_over(self, lead: tuple[Leads, int], now: float) -> None:
        """Begin where the leader before left off: its freeze window goes on."""
        found = self._registry.desired(self._service)
        time_ms = self._registry.time_ms()
        self._lead, self.desired = lead, None
        if found is None:
            last = self._memory.now
            if last is None or now - last > _OLD_S:
                self._memory = AutoscaleMemory()
            return
        age_s = max(0.0, (time_ms - found.since_ms) / 1000)
        self._memory = resumed(found.count, found.reason, now - age_s)
        self.desired = Desired(found.count, found.reason)

    def _say(self, fence: Leads, desired: Desired, before: int, now: float) -> None:
        entry = None
        if desired.count != before:
            text = f"{_teachers(desired.count)} desired, not {before}: {desired.reason}"
            entry = LogEntry("scaled", self._service, text)
        done = self._registry.set_desired(
            self._service, fence, desired.count, desired.reason, entry
        )
        if not done:  # the election will say so, too
            self.forget()
            return
        self.desired, self._again_s = desired, now + _AGAIN_S
        if entry is not None:
            log.info("service %s: %s", self._service, entry.text)

    def _read_sums(self, students: Mapping[str, Member]) -> None:
        """Add what some students have waited and paused since their last turn; all have turns."""
        if not self._unread:
            self._unread = list(students)
            self._known = {name: sums for name, sums in self._known.items() if name in students}
        names, self._unread = self._unread[:_AT_ONCE], self._unread[_AT_ONCE:]
        for member in self._registry.read("students", self._service, names):
            sums, before = _sums(member), self._known.get(member.member)
            self._known[member.member] = sums
            same_life = before is not None and before.incarnation == sums.incarnation
            if before is not None and same_life and not (before.cut_off or sums.cut_off):
                self._waits = self._waits.grown(before.waits, sums.waits)


def _may_begin(state: ServiceState) -> bool:
    students = state.students.cache.members.values()
    return may_begin(
        recovering=state.recovering,
        students=len(students),
        holding=sum(bool(one.facts.get("teachers")) for one in students),
        teachers=len(state.teachers.cache.members),
    )


def _sums(member: Member) -> _Sums:
    facts = member.facts
    starved_s, blocked_s = facts.get("starved_seconds"), facts.get("blocked_seconds")
    return _Sums(
        member.incarnation,
        WaitTotals(number_of(starved_s), number_of(blocked_s)),
        _is_cut_off(facts),
    )


def _is_cut_off(facts: Mapping[str, str]) -> bool:
    """Whether a student reaches none of its teachers, so that it says nothing of their number."""
    return number_of(facts.get("cut_off")) > 0


def _load(facts: Mapping[str, str]) -> StudentLoad:
    cut_off, want = _is_cut_off(facts), number_of(facts.get("want"))
    if cut_off:
        want = own_want(want, number_of(facts.get("unreachable")))
    return StudentLoad(
        want,
        number_of(facts.get("t_t_seconds")),
        number_of(facts.get("t_s_seconds")),
        facts.get("state") == "starved" and not cut_off,
    )


def _teachers(count: int) -> str:
    return "1 teacher is" if count == 1 else f"{count} teachers are"
