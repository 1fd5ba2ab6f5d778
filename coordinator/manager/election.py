"""Which services this manager leads: takes the leases to lead and prolongs them.

A thread of its own does it, so that no long computation lets a lease lapse. Whatever it says may be
out of date a moment later; what makes that harmless is that a leader writes by compare-and-set.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...runtime.errors import AccessError, EdlError, UnavailableError
from ...scheduler import leadership as rule
from ..registry import Registry, ServiceLeadership
from ..store.records import SweepPermit

log = logging.getLogger(__name__)

#: A leader prolongs its lease each so many-th part of it.
_RENEWALS = 4
#: A leader that has not finished a look for so long does not deserve its lease.
_HUNG_S = 30.0


@dataclass(frozen=True, slots=True)
class ElectionState:
    """How a service's leadership stood when the registry was last asked.

    Attributes:
        token: ours.
        answer: what the registry said.
        asked_s: when it was asked.
        answering_since_s: since when that registry has answered without a gap.
    """

    token: str
    answer: ServiceLeadership
    asked_s: float
    answering_since_s: float

    @property
    def leads(self) -> bool:
        """Whether we lead."""
        return self.answer.leader == self.token


class Election:
    """Stands for every service that there is. Safe to use from several threads.

    Args:
        registry: where the leases are.
        address: of this manager; the first part of its tokens.
        leader_ttl_s: how long a lease to lead lasts unless it is prolonged.
        ttl_s: of members' leases.
        clock: monotonic seconds.

    Attributes:
        clock: the same.
    """

    def __init__(
        self,
        registry: Registry,
        address: str,
        leader_ttl_s: float,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._address = address
        self._leader_ttl_s = leader_ttl_s
        self._interval_s = min(leader_ttl_s / _RENEWALS, ttl_s / rule.BEATS_PER_TTL)
        self._grace_s = rule.grace_s(ttl_s)
        # After less silence than this, nobody can have missed so many beats that a lease ran out.
        self._gap_s = max(ttl_s * (1 - 1 / rule.BEATS_PER_TTL), 2 * self._interval_s)
        self.clock = clock
        self._lock = threading.Lock()
        self._tokens: dict[str, str] = {}
        self._standings: dict[str, ElectionState] = {}
        self._asked_for: set[str] = set()
        self._listed: dict[str, float] = {}
        self._looked_s = clock()
        self._watch = rule.RegistryWatch()
        self._answering = True
        self._refusal = ""
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-election", daemon=True)

    @property
    def answering(self) -> bool:
        """Whether the registry answered last."""
        return self._answering

    @property
    def refusal(self) -> str:
        """Why a registry that answers refuses to work (`RedisUnavailable.refusal`), or ""."""
        return self._refusal

    @property
    def registry_id(self) -> str:
        """Which server process answered last; empty: none has yet."""
        return self._watch.registry_id

    def start(self) -> None:
        """Begin to stand; once only."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread and give back what we lead, so that others need not wait for it."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        for service in self.led():
            if not self._resign(service):
                break  # the others run out by themselves, too

    def stand_for(self, service: str) -> None:
        """Stand for a service though the registry may not list it yet."""
        with self._lock:
            if service in self._asked_for:
                return
            self._asked_for.add(service)
        self._wake.set()

    def leave(self, service: str) -> None:
        """Undo `stand_for`: the registry decides whether there is such a service."""
        with self._lock:
            self._asked_for.discard(service)

    def standing(self, service: str) -> ElectionState | None:
        """How a service stands; None: nobody has been asked yet."""
        return self._standings.get(service)

    def leader(self, service: str) -> str:
        """Address of the manager that leads a service, as far as we know; empty: none."""
        standing = self._standings.get(service)
        return standing.answer.leader.rpartition("#")[0] if standing else ""

    def led(self) -> list[str]:
        """Names of the services that we lead, as far as we know."""
        with self._lock:
            return [name for name, standing in self._standings.items() if standing.leads]

    def stand_down(self, service: str, token: str) -> None:
        """What was done under `token` is void; stand again under another one."""
        with self._lock:
            if self._tokens.get(service) != token:
                return
            del self._tokens[service]
            self._standings.pop(service, None)
        self._wake.set()
        try:
            self._registry.resign(service, token)
        except EdlError as error:
            log.debug("the lease of %s runs out by itself: %s", service, error)

    def looked(self) -> None:
        """The thread that leads is not hung."""
        self._looked_s = self.clock()

    def permit(self) -> SweepPermit | None:
        """Leases that expired before this Redis time are deaths.

        None while recovering: expiry proves nothing yet.
        """
        watch = self._watch
        until_ms = rule.sweep_until_ms(watch, self.clock(), self._grace_s, self._gap_s)
        return None if until_ms is None else SweepPermit(watch.registry_id, until_ms)

    def stands(self, service: str) -> bool:
        """Whether it stands for a service: it had members lately."""
        return service in self._listed or service in self._standings

    def renew(self) -> None:
        """Take or prolong all leases once. Never raises."""
        try:
            with self._lock:
                asked_for = set(self._asked_for)
            names, now = {*self._registry.services(), *asked_for}, self.clock()
            listed = self._listed | dict.fromkeys(names, now)
            self._listed = rule.still_led(listed, now, self._grace_s)
            if not self._listed:  # with services, renewing their leases tests writes
                self._registry.check_writes()
                self._heard()
            for service in sorted(self._listed):
                if self._stopping:
                    return
                self._renew(service)
            for service in self._standings.keys() - self._listed.keys():
                self._resign(service)
        except (UnavailableError, AccessError) as error:
            if self._answering:
                log.warning("%s; assignments stand as they are", error)
            self._answering = False
            self._refusal = getattr(error, "refusal", "")

    def _renew(self, service: str) -> None:
        with self._lock:
            token = self._tokens.setdefault(service, f"{self._address}#{secrets.token_hex(8)}")
        asked_s = self.clock()
        answer = self._registry.lead(service, token, self._leader_ttl_s)
        now = self.clock()
        self._heard()
        self._watch = rule.registry_answered(
            self._watch, answer.registry_id, answer.time_ms, now, self._gap_s
        )
        with self._lock:
            if self._tokens.get(service) == token:
                self._standings[service] = ElectionState(
                    token, answer, asked_s, self._watch.since_s
                )

    def _heard(self) -> None:
        if not self._answering:
            log.info("the registry answers again")
        self._answering, self._refusal = True, ""

    def _resign(self, service: str) -> bool:
        """Give a lease back; returns whether the registry answered."""
        with self._lock:
            token = self._tokens.pop(service, "")
            self._standings.pop(service, None)
        try:
            self._registry.resign(service, token)
        except EdlError as error:
            log.debug("the lease of %s runs out by itself: %s", service, error)
            return False
        return True

    def _run(self) -> None:
        while not self._stopping:
            if self.clock() - self._looked_s < _HUNG_S:
                try:
                    self.renew()
                except Exception:
                    log.exception("leaderships could not be renewed because of a bug")
            self._wake.wait(self._interval_s)
            self._wake.clear()
