"""One agent: its machine's place in the mesh, and what follows from orders and from its owner."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from ... import __version__
from ...coordinator.machines import Deployment, MachineBoard, Order, Report, open_machines
from ...coordinator.registry import connect
from ...errors import AccessError, LeaseSuperseded, UnavailableError
from ...lifecycle import Stop
from .fetching import Cache
from .hardware import OtherLoad, memory_bytes
from .hosting import Host
from .lending import LendingMemory, Lent, lend
from .settings import AgentSettings
from .yielding import Corner

log = logging.getLogger(__name__)

#: How soon it is seen that the machine is asked for.
_TICK_S: Final = 0.1
#: Seconds between two looks at what other processes do.
_LOAD_S: Final = 1.0


def run_agent(settings: AgentSettings, stop: Stop, announce: Callable[[str], None]) -> None:
    """Lend this machine to the mesh until `stop` is requested, then let its teacher finish.

    Args:
        settings: of the agent.
        stop: ends it.
        announce: given one line when the machine is registered.

    Raises:
        UsageError: another agent has the name here, or the cache cannot be written.
        RegistryUnavailable: Redis does not answer at the start.
        AccessError: Redis does not let this agent in.
        LeaseSuperseded: a newer agent has taken the name.
    """
    corner = Corner(settings.cache, settings.machine_id)
    with corner.held():
        cache = Cache(settings.cache, settings.cache_bytes)
        board = open_machines(settings.coordinator)
        registry = connect(settings.coordinator)
        try:
            incarnation = registry.time_ms()
        finally:
            registry.close()
        try:
            _Agent(settings, corner, cache, board, incarnation).live(stop, announce)
        finally:
            board.close()


class _Agent:
    """What an agent knows; all of it happens in the thread that calls `live`."""

    def __init__(
        self,
        settings: AgentSettings,
        corner: Corner,
        cache: Cache,
        board: MachineBoard,
        incarnation: int,
    ) -> None:
        self._settings = settings
        self._corner = corner
        self._cache = cache
        self._board = board
        self._incarnation = incarnation
        self._changed = threading.Event()
        self._host = Host(settings, cache, self._changed.set)
        self._order = Order()
        self._lent = Lent(True)
        self._memory = LendingMemory()
        lending = settings.lending
        self._other = OtherLoad() if lending.most_load is not None else None
        self._load = 0.0
        self._loaded_s = 0.0
        self._memory_bytes = memory_bytes()
        self._cached: tuple[str, ...] = cache.contents()
        self._sent: Report | None = None
        self._beat_s = 0.0
        self._answering = True

    def live(self, stop: Stop, announce: Callable[[str], None]) -> None:
        self._host.start()
        try:
            self._look_around()
            self._join()
            announce(
                f"machine {self._settings.machine_id} has {','.join(self._settings.devices)} "
                "for the mesh"
            )
            while not stop.requested:
                self._look_around()
                self._host.want(self._wanted())
                self._tell()
                self._changed.wait(_TICK_S)
                self._changed.clear()
        finally:
            self._leave()

    def _leave(self) -> None:
        """The teacher finishes what it has; until then the machine lives, and takes no order."""
        ending = threading.Thread(target=self._host.stop, name="edl-host-end", daemon=True)
        ending.start()
        while ending.is_alive():
            with contextlib.suppress(LeaseSuperseded):  # the newer one beats for the machine
                self._tell(leaving=True)
            ending.join(_TICK_S)
        try:
            self._board.leave(self._settings.machine_id, self._incarnation)
        except (UnavailableError, AccessError) as error:
            log.debug("the machine's life runs out by itself: %s", error)
        self._corner.tell({"state": "yielded"})

    def _look_around(self) -> None:
        """Whether the machine is lent now."""
        now = time.monotonic()
        if self._other is not None and now - self._loaded_s >= _LOAD_S:
            self._load, self._loaded_s = self._other.cores(), now
        asked_s = self._corner.asked_for_s()
        until_s = None if asked_s is None else now + asked_s
        before = self._lent
        self._lent, self._memory = lend(
            self._load, until_s, self._memory, now, self._settings.lending
        )
        if before.lent != self._lent.lent:
            log.info("%s", self._lent.why or "this machine is lent to the mesh again")

    def _wanted(self) -> Deployment | None:
        return self._order.deployment if self._lent.lent else None

    def _tell(self, *, leaving: bool = False) -> None:
        """A beat, when one is due or there is something to tell; follow the order that answers."""
        report, now = self._report(leaving), time.monotonic()
        news = self._sent is None or _told(report) != _told(self._sent)
        if not news and now < self._beat_s:
            return
        if news:
            self._corner.tell({"state": report.state, "service": report.service, "why": report.why})
        if not self._answering and now < self._beat_s:
            return
        self._beat_s = now + self._settings.beat_s
        try:
            self._beat(report if report != self._sent else None)
            if not self._answering:
                log.info("Redis answers again")
            self._answering = True
        except (UnavailableError, AccessError) as error:
            if self._answering:
                log.warning("%s; this machine keeps what it has, and tries again", error)
            self._answering = False

    def _beat(self, report: Report | None) -> None:
        own = self._settings
        order = self._board.beat(own.machine_id, self._incarnation, own.ttl_s, report)
        if order is None:
            self._join()
            return
        self._sent = report or self._sent
        # Without a number it is no order: Redis was emptied, or nobody has led yet.
        if order.number and order != self._order:
            self._order = order
            log.info("order %d: %s", self._order.number, _in_words(self._order))
            self._changed.set()

    def _join(self) -> None:
        report = self._report(False)
        own = self._settings
        self._board.join(own.machine_id, self._incarnation, report, own.ttl_s)
        self._sent, self._beat_s = report, 0.0

    def _report(self, leaving: bool) -> Report:
        view, own = self._host.view, self._settings
        if view.state != "fetching":
            self._cached = self._cache.contents()
        state, why = view.state, view.why
        if not self._lent.lent:
            why = self._lent.why
            if self._host.empty:
                state = "yielded"
        return Report(
            host=socket.gethostname(),
            devices=own.devices,
            memory_bytes=self._memory_bytes,
            version=__version__,
            state=state,
            service=view.service,
            content_id=view.content_id,
            teacher_id=own.machine_id,
            order=self._order.number,
            load=round(self._memory.load, 1),
            until_s=round(self._lent.until_s),
            why=why,
            blocked=view.blocked,
            troubles=view.troubles,
            cached=self._cached,
            leaving=leaving or not self._lent.lent,
        )


def _told(report: Report) -> tuple[object, ...]:
    """What of a report does not wait for the next beat."""
    return report.state, report.service, report.why, report.blocked, report.leaving


def _in_words(order: Order) -> str:
    return f"a teacher of {order.service} ({order.why})" if order.service else f"none ({order.why})"
