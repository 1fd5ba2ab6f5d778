"""The autoscaler of one service at its leader.

It passes the load of the service to the rule in `scheduler/autoscale.py`, and writes the desired
count to the registry, from which the next leader resumes with the same freeze window.
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
    resumed,
)
from ..registry import LogEntry, Registry
from ..store.records import Leads, Member
from .messages import parse_number
from .service_state import ServiceState

log = logging.getLogger(__name__)

#: Shortest pause between two decisions: in seconds, and as a multiple of the duration of the last
#: decision. The longer of the two counts.
_PAUSE_S: Final = 0.5
_PAUSE_DURATIONS: Final = 20.0
#: For one decision, the wait times of at most this many students are read, so that the leaders of
#: other services do not wait long.
_READ_AT_ONCE: Final = 50
#: Seconds after which an unchanged count is written again, so that it does not expire.
_REWRITE_S: Final = 30.0
#: Seconds after which a former decision of this leader is outdated.
_OLD_S: Final = 60.0


class _StudentWaits(NamedTuple):
    incarnation: int
    waits: WaitTotals


class Autoscaler:
    """Decides how many teachers one service should have. Only for the thread of the leaders.

    Args:
        registry: has the students; the desired count is written to it.
        service: name of the service.
        settings: returns the settings; called for each decision.

    Attributes:
        desired: the last count that it or the former leader wrote; None: none is known.
    """

    def __init__(
        self, registry: Registry, service: str, settings: Callable[[], AutoscaleConfig]
    ) -> None:
        self.desired: Desired | None = None
        self._registry = registry
        self._service = service
        self._settings = settings
        self._memory = AutoscaleMemory()
        self._term: tuple[Leads, int] | None = None  # its fence and its number
        self._due_s = self._rewrite_s = -math.inf
        self._known_waits: dict[str, _StudentWaits] = {}  # by student, as last read
        self._unread: list[str] = []  # students whose waits are read next
        self._total_waits = WaitTotals()

    def forget(self) -> None:
        """Drop the state of this term: another manager leads now."""
        self.desired = self._term = None

    def reconcile(self, state: ServiceState, fence: Leads, now: float) -> None:
        """Decide, if a decision is due.

        Args:
            state: state of the service.
            fence: fence of the leader.
            now: monotonic seconds.

        Raises:
            UnavailableError, AccessError: the count was not written; the next call tries again.
        """
        term = fence, state.term
        if now < self._due_s and term == self._term:
            return
        began_s = time.perf_counter()
        if term != self._term:
            self._resume(term, now)
        students = state.students.cache.members
        if self._memory.desired is None and not may_begin(
            recovering=state.recovering,
            students=len(students),
            holding=sum(bool(member.facts.get("teachers")) for member in students.values()),
            teachers=len(state.teachers.cache.members),
        ):
            self._due_s = now + _PAUSE_S
            return
        self._read_waits(students)
        view = self.load(state)
        former = self._memory.desired
        desired, memory = decide(view, self._memory, now, self._settings())
        if desired != self.desired or now >= self._rewrite_s:
            before = view.serving + view.starting if former is None else former
            self._write(fence, desired, before, now)
        self._memory = memory  # not if `_write` raised: the next call writes and logs the change
        self._due_s = now + max(_PAUSE_S, _PAUSE_DURATIONS * (time.perf_counter() - began_s))

    def load(self, state: ServiceState) -> ServiceLoad:
        """Return the load of the service as the leader knows it."""
        teachers = state.teachers
        return load_of(
            (_student_load(member.facts) for member in state.students.cache.members.values()),
            self._total_waits,
            serving=len(teachers.up) - teachers.draining,
            starting=0 if teachers.admission is None else teachers.admission.waiting,
            recovering=state.recovering,
        )

    def _resume(self, term: tuple[Leads, int], now: float) -> None:
        """Resume from the count that the former leader wrote, with its freeze window."""
        stored = self._registry.desired(self._service)
        time_ms = self._registry.time_ms()
        self._term, self.desired = term, None
        # Forget old readings: otherwise all waits since this manager last led would count as waits
        # of the next few seconds.
        self._known_waits, self._unread = {}, []
        if stored is None:
            last = self._memory.now
            if last is None or now - last > _OLD_S:
                self._memory = AutoscaleMemory()
            return
        age_s = max(0.0, (time_ms - stored.since_ms) / 1000)
        self._memory = resumed(stored.count, stored.reason, now - age_s)
        self.desired = Desired(stored.count, stored.reason)

    def _write(self, fence: Leads, desired: Desired, before: int, now: float) -> None:
        entry = None
        if desired.count != before:
            text = f"{_teachers(desired.count)} desired, not {before}: {desired.reason}"
            entry = LogEntry("scaled", self._service, text)
        done = self._registry.set_desired(
            self._service, fence, desired.count, desired.reason, entry
        )
        if not done:  # another manager leads; the election will notice it, too
            self.forget()
            return
        self.desired, self._rewrite_s = desired, now + _REWRITE_S
        if entry is not None:
            log.info("service %s: %s", self._service, entry.text)

    def _read_waits(self, students: Mapping[str, Member]) -> None:
        """Read the next students, and add how long each has waited since its last read."""
        if not self._unread:
            self._unread = list(students)
            self._known_waits = {
                name: waits for name, waits in self._known_waits.items() if name in students
            }
        names, self._unread = self._unread[:_READ_AT_ONCE], self._unread[_READ_AT_ONCE:]
        for member in self._registry.read("students", self._service, names):
            latest, before = _waits_of(member), self._known_waits.get(member.member)
            self._known_waits[member.member] = latest
            if before is not None and before.incarnation == latest.incarnation:
                self._total_waits = self._total_waits.grown(before.waits, latest.waits)


def _waits_of(member: Member) -> _StudentWaits:
    facts = member.facts
    starved_s, blocked_s = facts.get("starved_seconds"), facts.get("blocked_seconds")
    waits = WaitTotals(parse_number(starved_s), parse_number(blocked_s), _is_cut_off(facts))
    return _StudentWaits(member.incarnation, waits)


def _is_cut_off(facts: Mapping[str, str]) -> bool:
    """Return whether a student reaches none of its teachers; then its `want` is unreliable."""
    return parse_number(facts.get("cut_off")) > 0


def _student_load(facts: Mapping[str, str]) -> StudentLoad:
    return StudentLoad(
        want=parse_number(facts.get("want")),
        t_t_s=parse_number(facts.get("t_t_seconds")),
        t_s_s=parse_number(facts.get("t_s_seconds")),
        starves=facts.get("state") == "starved",
        unreachable=parse_number(facts.get("unreachable")),
        cut_off=_is_cut_off(facts),
    )


def _teachers(count: int) -> str:
    return "1 teacher is" if count == 1 else f"{count} teachers are"
