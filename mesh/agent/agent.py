"""The agent: registers its machine, follows the coordinator's orders, and yields to the owner."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ... import __version__
from ...coordinator.beat_relay import BeatRelay
from ...coordinator.machines import MachineBoard, MachineOrder, Report, open_machines
from ...coordinator.registry import connect
from ...runtime.errors import AccessError, LeaseSuperseded, UnavailableError
from ...runtime.lifecycle import Stop
from .agent_directory import AgentDirectory
from .hardware import OtherLoad, memory_bytes
from .lending import LendingDecision, LendingMemory, decide_lending
from .model_cache import ModelCache
from .settings import AgentSettings
from .teacher_host import TeacherHost

log = logging.getLogger(__name__)

#: Seconds between checks whether to yield.
_TICK_S: Final = 0.1
#: Seconds between measurements of the load of other processes.
_LOAD_INTERVAL_S: Final = 1.0


def run_agent(settings: AgentSettings, stop: Stop, say: Callable[[str], None]) -> None:
    """Lend this machine to the mesh until `stop` is requested, then drain its teacher.

    Args:
        settings: settings of the agent.
        stop: ends the agent.
        say: called with one line once the machine is registered.

    Raises:
        UsageError: an agent of this name runs here, the cache cannot be used, or the load cannot
            be measured.
        RedisUnavailable, AccessError: at the start, Redis does not answer, or denies access.
        LeaseSuperseded: a newer agent has registered the same name.
    """
    directory = AgentDirectory(settings.cache, settings.machine_id)
    with directory.lock(), contextlib.ExitStack() as stack:
        cache = ModelCache(settings.cache, settings.cache_bytes)
        board = stack.enter_context(contextlib.closing(open_machines(settings.coordinator)))
        registry = stack.enter_context(contextlib.closing(connect(settings.coordinator)))
        relay = BeatRelay(registry, settings.beat_relay)
        stack.callback(relay.stop)
        incarnation = registry.time_ms()
        relay.start()
        _Agent(settings, directory, cache, board, incarnation, stop).run(say)


class _Agent:
    """The state of an agent. Only `_yield_after_drain` runs in another thread than `run`."""

    def __init__(
        self,
        settings: AgentSettings,
        directory: AgentDirectory,
        cache: ModelCache,
        board: MachineBoard,
        incarnation: int,
        stop: Stop,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._cache = cache
        self._board = board
        self._incarnation = incarnation
        self._stop = stop
        self._changed = threading.Event()
        self._host = TeacherHost(settings, cache, self._changed.set, self._yield_after_drain)
        self._order = MachineOrder()
        self._lending = LendingDecision(True)
        self._lending_memory = LendingMemory()
        lending = settings.lending
        self._other_load = OtherLoad() if lending.max_load is not None else None
        self._load = 0.0
        self._load_measured_s = 0.0
        self._memory_bytes = memory_bytes()
        self._cached_models: tuple[str, ...] = cache.contents()
        self._sent_report: Report | None = None
        self._written_state = ""
        self._beat_due_s = 0.0
        self._redis_answers = True

    def run(self, say: Callable[[str], None]) -> None:
        self._host.start()
        try:
            self._check_lending()
            self._join(self._report(leaving=False))
            say(
                f"machine {self._settings.machine_id} lends {','.join(self._settings.devices)} "
                "to the mesh"
            )
            while not self._stop.requested:
                self._check_lending()
                self._host.set_wanted(self._order.deployment if self._lending.lent else None)
                self._report_if_due()
                self._changed.wait(_TICK_S)
                self._changed.clear()
        finally:
            self._leave()

    def _yield_after_drain(self) -> None:
        """Yield until 'edl agent yield --end', because `edl drain` has drained the teacher.

        If this agent is stopping too, `edl drain` was not the cause: a machine that shuts down
        sends SIGTERM to agent and teacher, and must be lent again after its next start.
        """
        if not self._stop.requested:
            self._directory.request_yield(None)

    def _leave(self) -> None:
        """Drain the teacher without following new orders, then end the registration."""
        stop_thread = threading.Thread(target=self._host.stop, name="edl-host-end", daemon=True)
        stop_thread.start()
        while stop_thread.is_alive():
            with contextlib.suppress(LeaseSuperseded):  # a newer agent sends the heartbeats
                self._report_if_due(leaving=True)
            stop_thread.join(_TICK_S)
        try:
            self._board.leave(self._settings.machine_id, self._incarnation)
        except (UnavailableError, AccessError) as error:
            log.debug("the registration expires by itself: %s", error)
        self._directory.write_state("yielded")

    def _check_lending(self) -> None:
        """Update `_lending`, with a new measurement of the load if one is due."""
        now = time.monotonic()
        if self._other_load is not None and now - self._load_measured_s >= _LOAD_INTERVAL_S:
            self._load, self._load_measured_s = self._other_load.cores(), now
        yield_left_s, before = self._directory.yield_left_s(), self._lending
        self._lending, self._lending_memory = decide_lending(
            self._load, yield_left_s, self._lending_memory, now, self._settings.lending
        )
        if before.lent != self._lending.lent:
            log.info("%s", self._lending.why or "this machine is lent to the mesh again")

    def _report_if_due(self, *, leaving: bool = False) -> None:
        """Send a heartbeat if one is due or an urgent field changed; adopt the order it returns."""
        report, now = self._report(leaving), time.monotonic()
        if report.state != self._written_state:
            self._directory.write_state(report.state)
            self._written_state = report.state
        changed = self._sent_report is None or _urgent_fields(report) != _urgent_fields(
            self._sent_report
        )
        # While Redis does not answer, changes wait for the next heartbeat.
        if now < self._beat_due_s and not (changed and self._redis_answers):
            return
        self._beat_due_s = now + self._settings.beat_s
        try:
            self._send_beat(report)
            if not self._redis_answers:
                log.info("Redis answers again")
            self._redis_answers = True
        except (UnavailableError, AccessError) as error:
            if self._redis_answers:
                log.warning("%s; the teacher keeps running; retrying", error)
            self._redis_answers = False

    def _send_beat(self, report: Report) -> None:
        settings, changed = self._settings, report if report != self._sent_report else None
        order = self._board.beat(settings.machine_id, self._incarnation, settings.ttl_s, changed)
        if order is None:
            self._join(report)
            return
        self._sent_report = report
        # Order number 0 means no order: Redis is empty, or no manager has been leader yet.
        if order.number and order != self._order:
            self._order = order
            log.info("order %d: %s", self._order.number, _describe(self._order))
            self._changed.set()

    def _join(self, report: Report) -> None:
        settings = self._settings
        self._board.join(settings.machine_id, self._incarnation, report, settings.ttl_s)
        self._sent_report, self._beat_due_s = report, 0.0

    def _report(self, leaving: bool) -> Report:
        status, settings = self._host.status, self._settings
        if status.state != "fetching":
            self._cached_models = self._cache.contents()
        if not self._lending.lent:
            state = "yielded" if self._host.is_empty else status.state
            status = replace(status, state=state, why=self._lending.why)
        return replace(
            status,
            host=socket.gethostname(),
            devices=settings.devices,
            memory_bytes=self._memory_bytes,
            version=__version__,
            teacher_id=settings.machine_id,
            order=self._order.number,
            load=round(self._lending_memory.load, 1),
            until_s=round(self._lending.left_s),  # a number of seconds, in spite of its name
            cached=self._cached_models,
            leaving=leaving or not self._lending.lent,  # takes no orders, perhaps only for a while
        )


def _urgent_fields(report: Report) -> tuple[object, ...]:
    """Return the fields of a report that are sent at once when they change."""
    return report.state, report.service, report.why, report.blocked, report.leaving


def _describe(order: MachineOrder) -> str:
    return f"a teacher of {order.service} ({order.why})" if order.service else f"none ({order.why})"
