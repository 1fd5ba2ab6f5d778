"""The leader of one service at one manager: reads the registry, probes teachers, writes the table.

What to do is decided in `term.py` and `scheduler/`; this carries it out. It is used by the thread
that leads alone, except for verdicts, which come from any thread.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ...errors import AccessError, UnavailableError
from ...scheduler import leadership as rule
from ...scheduler.admission import Admission, TeacherIdentity
from ...scheduler.autoscale import AutoscaleConfig
from ..config import ManagerConfig
from ..heartbeat import BEATS_PER_TTL
from ..registry import (
    FACTS_TTLS,
    Changes,
    Epoch,
    Kind,
    Leads,
    Member,
    Plan,
    Registry,
    Row,
)
from .autoscaling import Autoscaler
from .election import Election, ElectionState
from .prober import Prober, Verdict
from .term import ServiceTerm, TermStart
from .views import LeaderView
from .watch_cache import WatchCache

log = logging.getLogger(__name__)

#: Seconds between two looks at what changes seldom: the plan.
_SELDOM_S = 0.25
#: Seconds between two counts for the metrics.
_VIEW_S = 0.25
#: Writes in one look: a log that is longer goes on with the next.
_WRITES = 8
#: Seconds after a mistake of ours before another term begins: to read everything is dear.
_MISTAKE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a term stands on: when one of these is another one, the term is over."""

    fence: Leads
    registry_id: str
    answering_since_s: float


class Leader:
    """Leads while the election says so.

    Args:
        registry: where everything is.
        service: its name.
        config: settings of the manager.
        election: who leads.
        address: of the manager, for the log.
        prober: asked to probe teachers; None: all are admitted.
        wake: called when there is something to look at before the next look is due; any thread.
        scaling: how the service is scaled, asked anew each time; None: as `config` says.
    """

    def __init__(
        self,
        registry: Registry,
        service: str,
        config: ManagerConfig,
        election: Election,
        address: str = "",
        prober: Prober | None = None,
        wake: Callable[[], None] = lambda: None,
        scaling: Callable[[], AutoscaleConfig] | None = None,
    ) -> None:
        self.service = service
        self._autoscaler = Autoscaler(registry, service, scaling or (lambda: config.autoscale))
        self._registry = registry
        self._ttl_s = config.ttl_s
        self._election = election
        self._address = address
        self._prober = prober if config.admission else None
        self._wake = wake
        self._rng = random.Random()
        self._grace_s = rule.grace_s(config.ttl_s, BEATS_PER_TTL)
        self._term: ServiceTerm | None = None
        self._former: ServiceTerm | None = None  # ours, and nobody has led since
        self._ground: _Ground | None = None
        self._wrote_s = 0.0
        self._mistake_s = float("-inf")
        self._due_s = math.inf
        self._seldom_s = self._compared_s = self._viewed_s = float("-inf")
        self._verdicts: queue.SimpleQueue[tuple[TeacherIdentity, Verdict]] = queue.SimpleQueue()
        self._view: LeaderView | None = None
        self._sums = LeaderView()

    @property
    def due_s(self) -> float:
        """When a lease runs out that nothing prolongs, by the clock of `look`; infinite: never."""
        return self._due_s

    @property
    def view(self) -> LeaderView | None:
        """How it stands; None while another one leads. Safe in any thread."""
        return self._view

    def look(self, now: float) -> bool:
        """Do all that is to be done now; returns whether rows of the table were written.

        Raises:
            UnavailableError: the registry does not answer; what stands, stands.
            AccessError: nor does it let us; the same.
            Exception: a mistake of ours, in which what was read may be lost: the term is over, and
                the next one reads everything anew, here or at another manager.
        """
        try:
            return self._look(now)
        except (UnavailableError, AccessError):
            raise
        except Exception:
            self._give_up(now)
            raise

    def _look(self, now: float) -> bool:
        began_s = time.perf_counter()
        term = self._current(now)
        if term is None:
            return False
        if term.begun:  # the first look has read everything
            self._read(term, now)
        self._probe(term, now)
        term.decide(now)
        wrote = self._write(term)
        if self._term is term and term.begun:
            self._autoscaler.look(term, self._fence, now)
        self._sums = replace(self._sums, look_s=time.perf_counter() - began_s)
        self._publish(now)
        return wrote

    # -- its term

    def _current(self, now: float) -> ServiceTerm | None:
        standing = self._election.standing(self.service)
        if standing is None or not standing.leads:
            self._forget()
            if standing is not None:
                self._former = None
            return None
        answer = standing.answer
        ground = _Ground(answer.fence, answer.registry_id, standing.answering_since_s)
        if self._term is not None and ground == self._ground and not self._is_void(standing):
            return self._term
        if now - self._mistake_s < _MISTAKE_S:
            return None
        self._remember()
        return self._begin(standing, ground, now)

    def _is_void(self, standing: ElectionState) -> bool:
        """Whether the table is not as we left it: emptied, rolled back, or written by another."""
        term = self._term
        if term is None or not term.begun:
            return False
        answer = standing.answer
        if standing.asked_s > self._wrote_s and answer.epoch[0] != term.number:
            return True
        # Not more often than this: a reader that lies must not keep us from work.
        settled = standing.asked_s - self._wrote_s > self._grace_s
        return settled and rule.is_ahead(term.students.ahead, term.epoch, answer.time_ms)

    def _begin(self, standing: ElectionState, ground: _Ground, now: float) -> ServiceTerm:
        registry, service = self._registry, self.service
        teachers = registry.changes("teachers", service, 0)
        students = registry.changes("students", service, 0)
        table, former = registry.table(service, None), self._former
        rows: dict[str, Row] = dict(table.rows)
        if former is not None and _is_behind(table.epoch, former):
            rows |= former.rows.rows  # the registry has forgotten what we have not
        time_ms = standing.answer.time_ms
        ahead = former.students.ahead[0] if former is not None else 0
        number = rule.next_term(time_ms, table.epoch[0], ahead, *_terms(students.members))
        admitted = registry.admitted(service)
        admission = None if self._prober is None else Admission(self._rng, admitted)
        found = TermStart(
            number,
            time_ms,
            table.epoch,
            teachers,
            students,
            rows,
            known=admitted if former is None else {**former.teachers.lives, **admitted},
            gone={} if former is None else former.teachers.gone,
            plan=registry.plan(service),
            known_plan=Plan() if former is None else former.plan,
        )
        lost_s = FACTS_TTLS * self._ttl_s
        self._term = ServiceTerm(found, self._grace_s, lost_s, admission, self._address, now)
        self._ground, self._compared_s = ground, now
        self._sums = replace(self._sums, recoveries=self._sums.recoveries + 1)
        log.info("service %s: leads term %d", service, number)
        return self._term

    def _forget(self) -> None:
        if self._term is not None:
            log.info("service %s: leads no more", self.service)
        self._remember()
        self._autoscaler.forget()
        self._term = self._ground = self._view = None

    def _remember(self) -> None:
        """Keep the term that is over, unless it wrote nothing, and one that did is remembered."""
        term, former = self._term, self._former
        if term is None:
            return
        if former is None or term.begun or term.epoch > former.epoch:
            self._former = term

    def _give_up(self, now: float) -> None:
        """After a mistake: nothing that this term knows is believed any more."""
        log.error("service %s: a look failed by our own mistake; starts anew", self.service)
        self._mistake_s = now
        standing = self._election.standing(self.service)
        self._forget()
        self._former = None
        if standing is not None and standing.leads:
            self._election.stand_down(self.service, standing.token)

    @property
    def _fence(self) -> Leads:
        assert self._ground is not None  # a term stands on it
        return self._ground.fence

    # -- what comes in

    def _read(self, term: ServiceTerm, now: float) -> None:
        registry, service = self._registry, self.service
        seldom = now - self._seldom_s >= _SELDOM_S
        if seldom:
            self._seldom_s = now
            term.hear_plan(registry.plan(service))
        self._due_s = math.inf
        term.hear_teachers(self._changes("teachers", term.teachers.mirror, now), now)
        term.hear_students(self._changes("students", term.students.mirror, now), now)
        recovered = term.recovery_is_over(now)
        if now - self._compared_s >= self._ttl_s / BEATS_PER_TTL or recovered:
            self._compared_s = now
            names = registry.names("teachers", service), registry.names("students", service)
            term.compare(*names, now)
        if (seldom or recovered) and (moved := term.next_plan()) is not None:
            plan, entry = moved
            if registry.move_plan(service, self._fence, term.epoch, plan, entry):
                term.planned(plan)

    def _changes(self, kind: Kind, mirror: WatchCache, now: float) -> Changes:
        """What has happened, the deaths of this moment included where they may be told."""
        cursor, permit = mirror.cursor_at(now), self._election.permit()
        changes = self._registry.changes(kind, self.service, cursor)
        if changes.due_s <= 0 and permit is not None:
            self._registry.sweep(kind, self.service, permit)
            changes = self._registry.changes(kind, self.service, cursor)
        self._due_s = min(self._due_s, now + changes.due_s)
        return changes

    def _probe(self, term: ServiceTerm, now: float) -> None:
        admission = term.teachers.admission
        if admission is None or self._prober is None:
            return
        while not self._verdicts.empty():
            identity, verdict = self._verdicts.get_nowait()
            outcome = admission.answered(identity, verdict.word, verdict.why, now)
            if outcome is not None:
                refusals = self._sums.refusals + (not outcome.admitted)
                self._sums = replace(self._sums, refusals=refusals)
                term.settle(outcome, now)
        for identity in admission.due(now):
            member = term.teachers.mirror.members[identity.teacher_id]
            self._prober.probe(self.service, member, partial(self._answered, identity))

    def _answered(self, identity: TeacherIdentity, verdict: Verdict) -> None:
        self._verdicts.put((identity, verdict))
        self._wake()

    # -- what goes out

    def _write(self, term: ServiceTerm) -> bool:
        wrote = False
        for _ in range(_WRITES):
            write = term.next_write()
            if write is None:
                break
            done = self._registry.write(
                self.service,
                self._fence,
                write.expected,
                write.epoch,
                write.rows,
                write.entries,
                write.admitted,
            )
            if not done:
                log.warning("service %s: another manager has written; starts anew", self.service)
                self._election.stand_down(self.service, self._fence.holder)
                self._forget()
                return wrote
            if not term.begun:
                self._wrote_s = self._election.clock()
            term.wrote(write)
            wrote = wrote or bool(write.rows)
            self._sums = replace(self._sums, rows=self._sums.rows + len(write.rows))
        return wrote

    def _publish(self, now: float) -> None:
        if self._term is None or (self._view and now - self._viewed_s < _VIEW_S):
            return
        self._viewed_s = now
        sums = self._sums
        self._view = replace(
            self._term.view(),
            look_s=sums.look_s,
            rows=sums.rows,
            recoveries=sums.recoveries,
            refusals=sums.refusals,
            desired=self._autoscaler.desired,
        )


def _is_behind(epoch: Epoch, former: ServiceTerm) -> bool:
    """Whether a table at `epoch` may lack what `former` knows.

    A term that never wrote knows no more than the table that it found.
    """
    return epoch <= former.epoch if former.begun else epoch < former.epoch


def _terms(students: tuple[Member, ...]) -> Iterator[int]:
    """Terms that readers say they follow."""
    terms = (member.facts.get("term", "") for member in students)
    return (int(term) for term in terms if term.isdecimal() and len(term) <= 20)
