"""Keeps a lease alive: registers, sends heartbeats, and goes on after outages of the registry."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from ..runtime.errors import AccessError, LeaseSuperseded, RedisUnavailable
from ..scheduler.leadership import BEATS_PER_TTL
from .registry import Kind, Registry
from .registry.schema import GIVEN_UP, are_volatile, concerns_managers
from .store.records import PLAIN_TTLS, BeatAnswer, MemberBeat

log = logging.getLogger(__name__)

#: TTL in seconds of a lease that is given up: long enough for managers to notice it.
_LAST_TTL_S: Final = 0.2
#: Maximum number of characters of the reason for giving up a lease, as written to the registry.
_MAX_REASON_LENGTH: Final = 300
#: Attempts per TTL while the registry does not answer.
_ATTEMPTS_PER_TTL: Final = 6
#: A thread may wake shortly before the moment at which all members of its host send. Up to this
#: share of the interval it counts as on time. Otherwise it would send again at that moment.
_EARLY_SHARE: Final = 0.05


class Heartbeat:
    """One lease, and the thread that renews it.

    The first heartbeat is sent at a random time within the first interval, so that members that
    start together do not send theirs in waves. If the registry gathers heartbeats, members of one
    host send theirs at the same moments instead.

    Args:
        registry: where the lease is; the caller closes it.
        kind: kind of member.
        service: service of the member; "" for managers.
        member: id of the member.
        facts: returns the facts of the member; called by `start`, and then in the heartbeat's
            thread before each heartbeat. `incarnation` is required and must not change. Only
            changed facts are sent. Facts that change with every batch wait up to about two TTLs,
            unless another fact has changed.
        ttl_s: seconds without a heartbeat after which the member counts as dead.
        on_superseded: called once, in the heartbeat's thread, after a newer incarnation has taken
            the id and the heartbeats have ended.
        on_drain: called once, in the heartbeat's thread, when the member is asked to drain.
            Heartbeats go on.
    """

    def __init__(
        self,
        registry: Registry,
        kind: Kind,
        service: str,
        member: str,
        facts: Callable[[], Mapping[str, str]],
        ttl_s: float,
        *,
        on_superseded: Callable[[LeaseSuperseded], None] | None = None,
        on_drain: Callable[[], None] | None = None,
    ) -> None:
        self._registry = registry
        self._kind = kind
        self._service = service
        self._member = member
        self._facts = facts
        self._ttl_s = ttl_s
        self._on_superseded = on_superseded
        self._on_drain = on_drain
        self._sent_facts: dict[str, str] = {}
        self._notified_facts: dict[str, str] = {}  # as managers were last notified of them
        self._facts_sent_s = 0.0
        self._registered = False
        self._answering = True
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"edl-heartbeat-{member}", daemon=True
        )

    @property
    def answering(self) -> bool:
        """Whether the last heartbeat succeeded: the registry answered and permitted access."""
        return self._answering

    def start(self) -> None:
        """Register in the caller's thread, then start to send heartbeats.

        Raises:
            RedisUnavailable: the registry does not answer; nothing was started.
            AccessError: it refuses access; nothing was started.
            LeaseSuperseded: a newer incarnation holds the id; nothing was started.
        """
        self._register(dict(self._facts()))
        self._thread.start()

    def update(self) -> None:
        """Let the thread send a heartbeat with the changed facts now. Does not block."""
        self._wake.set()

    def give_up(self, why: str, timeout_s: float = 5.0) -> None:
        """End the heartbeats and the lease, as if the member had died. Idempotent; never raises.

        As soon as students learn of it, they resend the open requests of this teacher to others.
        After `stop` they would wait for its answers instead. `why` is written to the service's log.
        """
        if self._stopping:
            return
        self.stop(leave=False, timeout_s=timeout_s)
        if self._registered:
            with contextlib.suppress(RedisUnavailable, AccessError, LeaseSuperseded):
                # `notify`: managers have to see it, and a plain heartbeat cannot shorten the lease.
                facts = {GIVEN_UP: why[:_MAX_REASON_LENGTH]}
                incarnation = int(self._sent_facts["incarnation"])
                beat = MemberBeat(self._member, incarnation, facts, notify=True)
                self._registry.beat(self._kind, self._service, beat, _LAST_TTL_S)

    def stop(self, leave: bool = True, timeout_s: float = 5.0) -> None:
        """End the heartbeats and, with `leave`, the lease. Idempotent; never raises.

        If the registry does not answer, the lease expires at its deadline.
        """
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        if leave and self._registered:
            with contextlib.suppress(RedisUnavailable, AccessError):
                self._registry.leave(
                    self._kind, self._service, self._member, int(self._sent_facts["incarnation"])
                )

    def _run(self) -> None:
        interval_s = self._ttl_s / BEATS_PER_TTL
        due = time.monotonic() + random.random() * interval_s
        if self._registry.gathers_beats:
            due = self._next_moment(time.monotonic(), interval_s)
        while True:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            if self._stopping:
                return
            per_ttl = BEATS_PER_TTL if self._beat() else _ATTEMPTS_PER_TTL
            if not self._registered:
                return
            due = self._next_moment(time.monotonic(), self._ttl_s / per_ttl)

    def _next_moment(self, now: float, interval_s: float) -> float:
        if not self._registry.gathers_beats:
            return now + interval_s
        # All members of this host send at multiples of the interval.
        return (math.floor(now / interval_s + _EARLY_SHARE) + 1) * interval_s

    def _beat(self) -> bool:
        """Send a heartbeat; return False if the registry does not answer or refuses access."""
        try:
            self._renew(self._latest_facts())
        except (RedisUnavailable, AccessError) as error:
            if self._answering:
                log.warning("%s; %s goes on and tries again", error, self._member)
            self._answering = False
            return False
        except LeaseSuperseded as error:
            self._registered = False
            log.warning("%s; this process sends no more heartbeats", error)
            if self._on_superseded is not None:
                self._on_superseded(error)
            return True
        if not self._answering:
            log.info("the registry answers again; the lease of %s is valid", self._member)
        self._answering = True
        return True

    def _latest_facts(self) -> dict[str, str]:
        """Return the current facts, or the last sent ones if the callback fails.

        The heartbeats go on after such a failure, because the member still lives.
        """
        try:
            return dict(self._facts())
        except Exception:
            log.exception("the facts of %s cannot be read; its heartbeats go on", self._member)
            return self._sent_facts

    def _renew(self, facts: dict[str, str]) -> None:
        changed = {
            name: value for name, value in facts.items() if self._sent_facts.get(name) != value
        }
        now = time.monotonic()
        volatile = are_volatile(changed)
        if volatile and now - self._facts_sent_s < self._ttl_s * PLAIN_TTLS:
            changed, facts = {}, self._sent_facts
        notify = concerns_managers(self._kind, changed, self._notified_facts)
        incarnation = int(facts["incarnation"])
        beat = MemberBeat(self._member, incarnation, changed, notify, volatile)
        answer = self._registry.beat(self._kind, self._service, beat, self._ttl_s)
        if answer is BeatAnswer.UNKNOWN:
            self._register(facts)
            log.warning(
                "the lease of %s %s had run out, or Redis had lost it; registered again",
                self._kind.removesuffix("s"),
                self._member,
            )
            return
        self._sent_facts = facts
        if changed or now - self._facts_sent_s >= self._ttl_s * PLAIN_TTLS:
            self._facts_sent_s = now
        if notify:
            self._notified_facts = facts
        if answer is BeatAnswer.DRAIN and self._on_drain is not None:
            begin_drain, self._on_drain = self._on_drain, None
            log.info("%s was asked to drain", self._member)
            try:
                begin_drain()
            except Exception:
                log.exception("%s could not begin to drain; its heartbeats go on", self._member)

    def _register(self, facts: dict[str, str]) -> None:
        self._registry.register(self._kind, self._service, self._member, facts, self._ttl_s)
        self._sent_facts = self._notified_facts = facts
        self._facts_sent_s = time.monotonic()
        self._registered = True
