"""The leader of one service at one manager: reads the registry, probes teachers, writes the table.

`service_state.py` and `scheduler/` decide what to do; this module does it. Only the leaders' thread
calls `reconcile`; results of probes come from any thread.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...runtime.errors import AccessError, UnavailableError
from ...scheduler import leadership as rule
from ...scheduler.admission import TeacherIdentity
from ...scheduler.autoscale import AutoscaleConfig
from ..config import ManagerConfig
from ..registry import Kind, Registry
from ..store.records import FACTS_TTLS, Changes, Leads
from .autoscaling import Autoscaler
from .election import Election, ElectionState
from .prober import Prober, ProbeVerdict
from .rosters import ProbeAnswer
from .service_state import LeaderView, ServiceEvents, ServiceSnapshot, ServiceState
from .watch_cache import WatchCache

log = logging.getLogger(__name__)

#: Seconds between two reads of the plan, which seldom changes.
_PLAN_S = 0.25
#: Seconds between two updates of the metrics.
_VIEW_S = 0.25
#: Maximum number of writes per call of `reconcile`; the next call writes what is left.
_WRITES = 8
#: Shortest pause, in seconds, between an unexpected exception and the next term.
_PAUSE_AFTER_BUG_S = 1.0


class Leader:
    """Leads a service while the election has made this manager its leader.

    Args:
        registry: registry of the mesh.
        service: name of the service.
        config: settings of the manager.
        election: knows who leads.
        address: address of the manager, for the log.
        prober: probes teachers; None: all are admitted.
        wake: called from any thread when `reconcile` should be called before it is due.
        scaling: returns the autoscale settings of the service; None: those of `config`.

    Attributes:
        due_s: when the next lease expires, by the clock of `reconcile`; infinite: there is none.
        view: the service as its leader sees it; None while another manager leads. Thread-safe.
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
        self._grace_s = rule.grace_s(config.ttl_s)
        self._state: ServiceState | None = None
        self._previous: ServiceState | None = None  # of our last term, if nobody else has led since
        self._election_state: ElectionState | None = None  # at the beginning of the term
        self._failed_s = float("-inf")
        self.due_s = math.inf
        self._plan_read_s = self._compared_s = self._viewed_s = float("-inf")
        self._answers: queue.SimpleQueue[ProbeAnswer] = queue.SimpleQueue()
        self.view: LeaderView | None = None
        self._totals = LeaderView()  # only its counters and durations

    def reconcile(self, now: float) -> bool:
        """Do what is due now; return whether rows of the assignment table were written.

        Raises:
            UnavailableError: the registry does not answer; the state is kept.
            AccessError: the registry refuses access; the state is kept.
            Exception: a bug. The term is over, and the next leader, here or at another manager,
                reads everything again.
        """
        try:
            return self._reconcile(now)
        except (UnavailableError, AccessError):
            raise
        except Exception:
            self._give_up(now)
            raise

    def _reconcile(self, now: float) -> bool:
        began_s = time.perf_counter()
        state = self._current(now)
        if state is None:
            return False
        # At the beginning of a term, everything has just been read.
        events = self._read(state, now) if state.begun else ServiceEvents()
        answers = [self._answers.get_nowait() for _ in range(self._answers.qsize())]
        self._apply(state, replace(events, answers=answers), now)
        wrote = self._write(state)
        if self._state is state and state.begun:
            self._autoscaler.reconcile(state, self._fence, now)
        self._totals = replace(self._totals, reconcile_s=time.perf_counter() - began_s)
        self._publish(now)
        return wrote

    # -- the term

    def _current(self, now: float) -> ServiceState | None:
        election_state = self._election.state(self.service)
        if election_state is None or not election_state.leads:
            self._forget()
            if election_state is not None:
                self._previous = None
            return None
        answer, state = election_state.answer, self._state
        if (
            state is not None
            and self._election_state is not None
            and election_state.basis == self._election_state.basis
            and not state.is_void(answer.table_version, answer.time_ms, election_state.asked_s)
        ):
            return state
        if now - self._failed_s < _PAUSE_AFTER_BUG_S:
            return None
        self._keep_state()
        return self._begin(election_state, now)

    def _begin(self, election_state: ElectionState, now: float) -> ServiceState:
        registry, service = self._registry, self.service
        snapshot = ServiceSnapshot(
            election_state.answer.time_ms,
            teachers=registry.changes("teachers", service, 0),
            students=registry.changes("students", service, 0),
            table=registry.table(service, None),
            admitted=registry.admitted(service),
            plan=registry.content_plan(service),
        )
        self._state = state = ServiceState(
            snapshot,
            self._previous,
            now,
            grace_s=self._grace_s,
            lost_s=FACTS_TTLS * self._ttl_s,
            rng=None if self._prober is None else self._rng,
            leader=self._address,
        )
        self._election_state, self._compared_s = election_state, now
        self._totals = replace(self._totals, recoveries=self._totals.recoveries + 1)
        log.info("service %s: this manager leads, term %d", service, state.term)
        return state

    def _forget(self) -> None:
        if self._state is not None:
            log.info("service %s: this manager no longer leads", self.service)
        self._keep_state()
        self._autoscaler.forget()
        self._state = self._election_state = self.view = None

    def _keep_state(self) -> None:
        """Keep the state of this term for the next one.

        If this term has written nothing and is not newer, the state that was kept before stays.
        """
        state, previous = self._state, self._previous
        if state is None:
            return
        if previous is None or state.begun or state.table_version > previous.table_version:
            self._previous = state

    def _give_up(self, now: float) -> None:
        """End the term after a bug, and discard its state."""
        log.error("service %s: a bug ended the leadership; starting a new term", self.service)
        self._failed_s = now
        election_state = self._election.state(self.service)
        self._forget()
        self._previous = None
        if election_state is not None and election_state.leads:
            self._election.give_up(self.service, election_state.holder)

    @property
    def _fence(self) -> Leads:
        assert self._election_state is not None  # set while a term lasts
        return self._election_state.answer.fence

    # -- input

    def _read(self, state: ServiceState, now: float) -> ServiceEvents:
        registry, service = self._registry, self.service
        plan, names = None, None
        if now - self._plan_read_s >= _PLAN_S:
            self._plan_read_s = now
            plan = registry.content_plan(service)
        self.due_s = math.inf
        teachers = self._changes("teachers", state.teachers.cache, now)
        students = self._changes("students", state.students.cache, now)
        is_compare_due = now - self._compared_s >= self._ttl_s / rule.BEATS_PER_TTL
        if is_compare_due or state.recovery_may_end(now):
            self._compared_s = now
            names = registry.names("teachers", service), registry.names("students", service)
        return ServiceEvents(teachers, students, names, plan)

    def _changes(self, kind: Kind, cache: WatchCache, now: float) -> Changes:
        """Return the changes; if leases have expired and this manager may sweep, sweep first."""
        cursor, permit = cache.cursor_at(now), self._election.permit()
        changes = self._registry.changes(kind, self.service, cursor)
        if changes.due_s <= 0 and permit is not None:
            self._registry.sweep(kind, self.service, permit)
            changes = self._registry.changes(kind, self.service, cursor)
        self.due_s = min(self.due_s, now + changes.due_s)
        return changes

    def _probed(self, identity: TeacherIdentity, verdict: ProbeVerdict) -> None:
        self._answers.put(ProbeAnswer(identity, verdict.status, verdict.why))
        self._wake()

    # -- output

    def _apply(self, state: ServiceState, events: ServiceEvents, now: float) -> None:
        began_s = time.perf_counter()
        instructions = state.apply(events, now)
        solve_s = time.perf_counter() - began_s if instructions.solved else self._totals.solve_s
        refusals = self._totals.refusals + instructions.refused
        self._totals = replace(self._totals, solve_s=solve_s, refusals=refusals)
        for identity, member in instructions.probes:
            assert self._prober is not None  # else there are no probes
            self._prober.probe(self.service, member, partial(self._probed, identity))
        if instructions.plan is not None:
            plan, entry = instructions.plan
            if self._registry.move_content_plan(
                self.service, self._fence, state.table_version, plan, entry
            ):
                state.wrote_plan(plan)

    def _write(self, state: ServiceState) -> bool:
        wrote = False
        for _ in range(_WRITES):
            write = state.next_write()
            if write is None:
                break
            if not self._registry.write(
                self.service,
                self._fence,
                expected=write.expected,
                version=write.version,
                rows=write.rows,
                events=write.entries,
                admitted=write.admitted,
            ):
                log.warning(
                    "service %s: another manager wrote its table; starting a new term", self.service
                )
                self._election.give_up(self.service, self._fence.holder)
                self._forget()
                return wrote
            state.wrote(write, self._election.clock())
            wrote = wrote or bool(write.rows)
            self._totals = replace(self._totals, rows=self._totals.rows + len(write.rows))
        return wrote

    def _publish(self, now: float) -> None:
        if self._state is None or (self.view and now - self._viewed_s < _VIEW_S):
            return
        self._viewed_s = now
        self.view = self._state.view(replace(self._totals, desired=self._autoscaler.desired))
