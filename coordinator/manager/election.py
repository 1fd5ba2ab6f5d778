"""The election: takes and renews the leaderships of services for this manager.

It has its own thread, so that no long computation lets a leadership expire. Its answers may be
outdated a moment later, which is harmless: each write of a leader carries its fencing token.
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
from ..store.records import Leads, SweepPermit

log = logging.getLogger(__name__)

#: Renewals per TTL of a leadership.
_RENEWALS = 4
#: Seconds without a finished round of the leaders' thread, after which leaderships are not renewed.
_HUNG_S = 30.0


@dataclass(frozen=True, slots=True)
class ElectionState:
    """The leadership of a service at the last renewal.

    Attributes:
        holder: our name as a holder, new after each resignation.
        answer: answer of the registry.
        asked_s: time before the call, by the election's clock.
        answering_since_s: since when the Redis process of `answer` has answered without a gap.
    """

    holder: str
    answer: ServiceLeadership
    asked_s: float
    answering_since_s: float

    @property
    def basis(self) -> tuple[Leads, str, float]:
        """The fence, the id of the Redis process, and since when it has answered without a gap.

        The term is over when one of them changes.
        """
        return self.answer.fence, self.answer.registry_id, self.answering_since_s

    @property
    def leads(self) -> bool:
        """Whether this manager leads."""
        return self.answer.leader == self.holder


class Election:
    """Campaigns for each service with members. Thread-safe.

    Args:
        registry: has the leaderships.
        address: address of this manager; its names as a holder begin with it.
        leader_ttl_s: TTL of a leadership, in seconds.
        ttl_s: TTL of members' leases, in seconds.
        clock: returns monotonic seconds.

    Attributes:
        clock: as passed.
        answering: whether the registry answered the last calls, and did not refuse all services.
        refusal: why the registry answers but refuses to work (`RedisUnavailable.refusal`); else "".
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
        self._grace_s = rule.grace_s(ttl_s)
        # A silence of the registry that is shorter than this lets no lease expire.
        self._gap_s = ttl_s * (1 - 1 / rule.BEATS_PER_TTL)
        # One late renewal must not look like a silence.
        self._interval_s = min(leader_ttl_s / _RENEWALS, self._gap_s / 2)
        self.clock = clock
        self._lock = threading.Lock()
        self._holders: dict[str, str] = {}
        self._states: dict[str, ElectionState] = {}
        self._requested: set[str] = set()  # services that the registry may not list yet
        self._listed: dict[str, float] = {}  # service -> when last listed or requested
        self._refused: set[str] = set()  # services whose renewal failed last time
        self._alive_s = clock()  # when the leaders' thread was last alive
        self._watch = rule.RegistryWatch()
        self.answering = True
        self.refusal = ""
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-election", daemon=True)

    @property
    def registry_id(self) -> str:
        """Id of the Redis process that answered last; empty: none has yet."""
        return self._watch.registry_id

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the thread and give the leaderships back, so that others can lead at once."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        for service in self.led_services():
            if not self._resign(service):
                break  # the registry does not answer; the leaderships expire

    def campaign_for(self, service: str) -> None:
        """Campaign for a service that the registry may not list yet."""
        with self._lock:
            if service in self._requested:
                return
            self._requested.add(service)
        self._wake.set()

    def end_campaign_for(self, service: str) -> None:
        """Undo `campaign_for`: campaign only while the registry lists the service."""
        with self._lock:
            self._requested.discard(service)

    def state(self, service: str) -> ElectionState | None:
        """Return the leadership of a service at its last renewal; None: unknown yet."""
        return self._states.get(service)

    def leader(self, service: str) -> str:
        """Return the address of the manager that leads a service, as known here; empty: none."""
        state = self._states.get(service)
        return state.answer.leader.rpartition("#")[0] if state else ""

    def led_services(self) -> list[str]:
        """Return the names of the services that this manager leads, as known here."""
        with self._lock:
            return [name for name, state in self._states.items() if state.leads]

    def give_up(self, service: str, holder: str) -> None:
        """Give up a leadership that we have as `holder`; campaign again as another holder."""
        with self._lock:
            if self._holders.get(service) != holder:
                return
        self._resign(service)
        self._wake.set()

    def note_leaders_alive(self) -> None:
        """Record that the leaders' thread is not hanging."""
        self._alive_s = self.clock()

    def permit(self) -> SweepPermit | None:
        """Return a permit to remove expired members.

        None: the registry is silent, or has not answered for long enough yet. Then an expired lease
        proves nothing.
        """
        watch = self._watch
        until_ms = rule.sweep_until_ms(watch, self.clock(), self._grace_s, self._gap_s)
        return None if until_ms is None else SweepPermit(watch.registry_id, until_ms)

    def campaigns_for(self, service: str) -> bool:
        """Return whether it campaigns for a service, which was recently listed or requested."""
        return service in self._listed or service in self._states

    def renew(self) -> None:
        """Take or renew all leaderships once. Errors of the registry are logged, not raised."""
        try:
            with self._lock:
                requested = set(self._requested)
            names, now = {*self._registry.services(), *requested}, self.clock()
            listed = self._listed | dict.fromkeys(names, now)
            # Lead a service without members for a while, to log the loss of its last member.
            self._listed = {name: at for name, at in listed.items() if now - at < self._grace_s}
            if not self._listed:  # else renewing the leaderships tests whether writes are accepted
                self._registry.check_writes()
                self._note_answer()
            self._renew_all()
            for service in self._states.keys() - self._listed.keys():
                self._resign(service)
        except (UnavailableError, AccessError) as error:
            if self.answering:
                log.warning("%s; assignments stay unchanged", error)
            self.answering = False
            self.refusal = getattr(error, "refusal", "")

    def _renew_all(self) -> None:
        """Renew each leadership, even if the registry refuses some.

        Raises:
            UnavailableError: the registry does not answer, or refuses all.
            AccessError: the registry refuses all.
        """
        refused: dict[str, UnavailableError | AccessError] = {}
        for service in sorted(self._listed):
            if self._stopping:
                return
            try:
                self._renew(service)
            except (UnavailableError, AccessError) as error:
                self._registry.check_writes()  # raises if Redis refuses writes of every service
                refused[service] = error
        if refused and len(refused) == len(self._listed):
            raise next(iter(refused.values()))
        for service in refused.keys() - self._refused:
            log.warning("service %s: its leadership is not renewed: %s", service, refused[service])
        self._refused = set(refused)

    def _renew(self, service: str) -> None:
        with self._lock:
            holder = self._holders.setdefault(service, f"{self._address}#{secrets.token_hex(8)}")
        asked_s = self.clock()
        answer = self._registry.lead(service, holder, self._leader_ttl_s)
        now = self.clock()
        self._note_answer()
        self._watch = rule.registry_answered(
            self._watch, answer.registry_id, answer.time_ms, asked_s, now, self._gap_s
        )
        with self._lock:
            if self._holders.get(service) == holder:
                self._states[service] = ElectionState(holder, answer, asked_s, self._watch.since_s)

    def _note_answer(self) -> None:
        if not self.answering:
            log.info("the registry answers again")
        self.answering, self.refusal = True, ""

    def _resign(self, service: str) -> bool:
        """Give a leadership back; return whether the registry answered."""
        with self._lock:
            holder = self._holders.pop(service, "")
            self._states.pop(service, None)
        try:
            self._registry.resign(service, holder)
        except EdlError as error:
            log.debug("the leadership of %s will expire: %s", service, error)
            return False
        return True

    def _run(self) -> None:
        while not self._stopping:
            if self.clock() - self._alive_s < _HUNG_S:
                try:
                    self.renew()
                except Exception:
                    log.exception("leaderships could not be renewed because of a bug")
            self._wake.wait(self._interval_s)
            self._wake.clear()
