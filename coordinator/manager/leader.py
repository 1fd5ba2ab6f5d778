"""The leader of one service at one manager: reads the registry, probes teachers, writes the table.

What to do is decided in `service_state.py` and `scheduler/`; this carries it out. It is used by the
thread that leads alone, except for answers to probes, which come from any thread.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ...runtime.errors import AccessError, UnavailableError
from ...scheduler import leadership as rule
from ...scheduler.admission import TeacherIdentity
from ...scheduler.autoscale import AutoscaleConfig
from ..config import ManagerConfig
from ..heartbeat import BEATS_PER_TTL
from ..registry import (
    FACTS_TTLS,
    Changes,
    Kind,
    Leads,
    Registry,
)
from .autoscaling import Autoscaler
from .election import Election
from .prober import Prober, Verdict
from .rosters import ProbeAnswer
from .service_state import ServiceEvents, ServiceSnapshot, ServiceState
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
        self._state: ServiceState | None = None
        self._former: ServiceState | None = None  # ours, and nobody has led since
        self._ground: _Ground | None = None
        self._mistake_s = float("-inf")
        self._due_s = math.inf
        self._seldom_s = self._compared_s = self._viewed_s = float("-inf")
        self._answers: queue.SimpleQueue[ProbeAnswer] = queue.SimpleQueue()
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
        state = self._current(now)
        if state is None:
            return False
        events = (
            self._read(state, now) if state.begun else ServiceEvents()
        )  # else all was just read
        self._carry_out(state, replace(events, answers=self._take_answers()), now)
        wrote = self._write(state)
        if self._state is state and state.begun:
            self._autoscaler.look(state, self._fence, now)
        self._sums = replace(self._sums, look_s=time.perf_counter() - began_s)
        self._publish(now)
        return wrote

    # -- its term

    def _current(self, now: float) -> ServiceState | None:
        standing = self._election.standing(self.service)
        if standing is None or not standing.leads:
            self._forget()
            if standing is not None:
                self._former = None
            return None
        answer = standing.answer
        ground = _Ground(answer.fence, answer.registry_id, standing.answering_since_s)
        state = self._state
        if (
            state is not None
            and ground == self._ground
            and not state.is_void(answer.epoch, answer.time_ms, standing.asked_s)
        ):
            return state
        if now - self._mistake_s < _MISTAKE_S:
            return None
        self._remember()
        return self._begin(answer.time_ms, ground, now)

    def _begin(self, time_ms: int, ground: _Ground, now: float) -> ServiceState:
        registry, service = self._registry, self.service
        found = ServiceSnapshot(
            time_ms,
            teachers=registry.changes("teachers", service, 0),
            students=registry.changes("students", service, 0),
            table=registry.table(service, None),
            admitted=registry.admitted(service),
            plan=registry.plan(service),
        )
        self._state = state = ServiceState(
            found,
            self._former,
            now,
            grace_s=self._grace_s,
            lost_s=FACTS_TTLS * self._ttl_s,
            rng=None if self._prober is None else self._rng,
            leader=self._address,
        )
        self._ground, self._compared_s = ground, now
        self._sums = replace(self._sums, recoveries=self._sums.recoveries + 1)
        log.info("service %s: leads term %d", service, state.term)
        return state

    def _forget(self) -> None:
        if self._state is not None:
            log.info("service %s: leads no more", self.service)
        self._remember()
        self._autoscaler.forget()
        self._state = self._ground = self._view = None

    def _remember(self) -> None:
        """Keep the term that is over, unless it wrote nothing, and one that did is remembered."""
        state, former = self._state, self._former
        if state is None:
            return
        if former is None or state.begun or state.epoch > former.epoch:
            self._former = state

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

    def _read(self, state: ServiceState, now: float) -> ServiceEvents:
        registry, service = self._registry, self.service
        plan, names = None, None
        if now - self._seldom_s >= _SELDOM_S:
            self._seldom_s = now
            plan = registry.plan(service)
        self._due_s = math.inf
        teachers = self._changes("teachers", state.teachers.cache, now)
        students = self._changes("students", state.students.cache, now)
        is_time = now - self._compared_s >= self._ttl_s / BEATS_PER_TTL
        if is_time or state.recovery_is_over(now):
            self._compared_s = now
            names = registry.names("teachers", service), registry.names("students", service)
        return ServiceEvents(teachers, students, names, plan)

    def _changes(self, kind: Kind, cache: WatchCache, now: float) -> Changes:
        """What has happened, the deaths of this moment included where they may be told."""
        cursor, permit = cache.cursor_at(now), self._election.permit()
        changes = self._registry.changes(kind, self.service, cursor)
        if changes.due_s <= 0 and permit is not None:
            self._registry.sweep(kind, self.service, permit)
            changes = self._registry.changes(kind, self.service, cursor)
        self._due_s = min(self._due_s, now + changes.due_s)
        return changes

    def _take_answers(self) -> list[ProbeAnswer]:
        answers = []
        while not self._answers.empty():
            answers.append(self._answers.get_nowait())
        return answers

    def _answered(self, identity: TeacherIdentity, verdict: Verdict) -> None:
        self._answers.put(ProbeAnswer(identity, verdict.word, verdict.why))
        self._wake()

    # -- what goes out

    def _carry_out(self, state: ServiceState, events: ServiceEvents, now: float) -> None:
        began_s = time.perf_counter()
        todo = state.apply(events, now)
        solve_s = time.perf_counter() - began_s if todo.solved else self._sums.solve_s
        refusals = self._sums.refusals + todo.refused
        self._sums = replace(self._sums, solve_s=solve_s, refusals=refusals)
        for identity, member in todo.probes:
            assert self._prober is not None  # else nobody is to be probed
            self._prober.probe(self.service, member, partial(self._answered, identity))
        if todo.plan is not None:
            plan, entry = todo.plan
            if self._registry.move_plan(self.service, self._fence, state.epoch, plan, entry):
                state.planned(plan)

    def _write(self, state: ServiceState) -> bool:
        wrote = False
        for _ in range(_WRITES):
            write = state.next_write()
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
            state.wrote(write, self._election.clock())
            wrote = wrote or bool(write.rows)
            self._sums = replace(self._sums, rows=self._sums.rows + len(write.rows))
        return wrote

    def _publish(self, now: float) -> None:
        if self._state is None or (self._view and now - self._viewed_s < _VIEW_S):
            return
        self._viewed_s = now
        sums = self._sums
        self._view = replace(
            self._state.view(),
            look_s=sums.look_s,
            solve_s=sums.solve_s,
            rows=sums.rows,
            recoveries=sums.recoveries,
            refusals=sums.refusals,
            desired=self._autoscaler.desired,
        )
