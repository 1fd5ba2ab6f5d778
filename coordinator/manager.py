"""The service manager: one thread that looks at leases, hears students, tells each its teachers."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import RegistryUnavailable, RetryableError
from ..proto import coordinator_pb2 as pb
from .config import ManagerConfig
from .desk import Desk, Stream
from .heartbeat import BEATS_PER_TTL
from .registry import Registry

log = logging.getLogger(__name__)

_EVENTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class _Heard:
    stream: Stream
    report: pb.StudentReport
    first: bool


@dataclass(frozen=True, slots=True)
class _Ended:
    stream: Stream
    report: pb.StudentReport
    clean: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    answer: Future[list[pb.ServiceStatus]]


class Manager:
    """Decides for the services of which it holds subscriptions.

    All state belongs to its thread; the public methods only put events into its queue. It keeps
    nothing that the registry or the students do not have, so it may die at any moment. Students
    look for the oldest manager; others stand by and hold no students until it is gone.

    Every 50 ms it asks the registry, for each service, to take out the dead and to name what has
    changed since the last look; facts are read of changed members only. While the registry does
    not answer, nobody is taken out and assignments stand.

    Args:
        registry: the leases; stays the caller's to close.
        config: its settings.
    """

    def __init__(self, registry: Registry, config: ManagerConfig | None = None) -> None:
        self._registry = registry
        self._config = config or ManagerConfig()
        self._grace_s = self._config.ttl_s * (1 + 1 / BEATS_PER_TTL)
        self._desks: dict[str, Desk] = {}
        self._events: queue.SimpleQueue[_Heard | _Ended | _Asked | None] = queue.SimpleQueue()
        self._answering = True
        self._mistake = ""
        self._looked_s = time.monotonic()
        # Leases found at the start may be those of a registry that was away itself.
        self._sweep_from_s = self._looked_s + self._grace_s
        self._thread = threading.Thread(target=self._run, name="edl-manager", daemon=True)

    @property
    def beat_s(self) -> float:
        """How often students have to report, in seconds."""
        return self._config.ttl_s / BEATS_PER_TTL

    def start(self) -> None:
        """Begin; once only."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Leases of students stay: they move to another manager."""
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def subscribe(self, stream: Stream, report: pb.StudentReport) -> None:
        """A student opened a stream with this first report."""
        self._events.put(_Heard(stream, report, first=True))

    def report(self, stream: Stream, report: pb.StudentReport) -> None:
        """A student says how it is, on a stream that it opened before."""
        self._events.put(_Heard(stream, report, first=False))

    def end(self, stream: Stream, report: pb.StudentReport, *, clean: bool) -> None:
        """A stream is over; `clean` when its student closed it, so that it needs no teacher."""
        self._events.put(_Ended(stream, report, clean))

    def own_students(self, timeout_s: float = 5.0) -> list[pb.ServiceStatus]:
        """Students, terms and counters as this manager knows them, without teachers.

        Raises:
            RetryableError: the manager's thread did not answer in time.
        """
        answer: Future[list[pb.ServiceStatus]] = Future()
        self._events.put(_Asked(answer))
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise RetryableError("the service manager is too busy to answer") from None

    # -- its thread

    def _run(self) -> None:
        while True:
            interval_s = self._config.sweep_s if self._answering else self._config.outage_sweep_s
            due_s = self._looked_s + interval_s
            if not self._take_events(due_s):
                return
            now = time.monotonic()
            if now >= due_s:
                with self._surviving():
                    self._look(now)
            for desk in self._desks.values():
                with self._surviving():
                    desk.tell()
                    if self._answering:
                        desk.write(now)

    def _take_events(self, until_s: float) -> bool:
        """Handle what has come, waiting for the first until `until_s`; False: stop."""
        for number in range(_EVENTS_AT_ONCE):
            wait_s = max(0.0, until_s - time.monotonic()) if number == 0 else 0.0
            try:
                event = self._events.get(timeout=wait_s) if wait_s else self._events.get_nowait()
            except queue.Empty:
                return True
            if event is None:
                return False
            with self._surviving():
                self._handle(event, time.monotonic())
        return True

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """The thread outlives a registry that is away, and a mistake of its own."""
        try:
            yield
        except RegistryUnavailable as error:
            if self._answering:
                log.warning("%s; assignments stand as they are", error)
            self._answering = False
        except Exception as error:
            if repr(error) != self._mistake:  # the same one may come back 20 times a second
                log.exception("the service manager failed at one step and goes on")
            self._mistake = repr(error)

    def _handle(self, event: _Heard | _Ended | _Asked, now: float) -> None:
        if isinstance(event, _Asked):
            event.answer.set_result([desk.students(now) for desk in self._desks.values()])
            return
        name = event.report.service
        desk = self._desks.get(name) or self._open(name, now)
        if isinstance(event, _Ended):
            desk.ended(event.stream, event.report.student_id, now, clean=event.clean)
        elif event.first:
            desk.subscribed(event.stream, event.report, now)
        else:
            desk.reported(event.stream, event.report, now)

    def _open(self, name: str, now: float) -> Desk:
        term_ms = int(time.time() * 1000)
        with self._surviving():
            term_ms = self._registry.time_ms()
        desk = self._desks[name] = Desk(self._registry, name, self._config.ttl_s, term_ms, now)
        with self._surviving():  # so that the first assignment is a whole one
            desk.look(now, sweeping=False)
        return desk

    def _look(self, now: float) -> None:
        gap_s, self._looked_s = now - self._looked_s, now
        for desk in self._desks.values():
            desk.expire(now)
        if not self._answering or gap_s > self._config.ttl_s:
            self._registry.time_ms()
            self._recover(now)
        for name, desk in list(self._desks.items()):
            with self._surviving():
                desk.look(now, sweeping=now >= self._sweep_from_s)
            if not self._answering:
                return
            if desk.is_idle(now):
                del self._desks[name]

    def _recover(self, now: float) -> None:
        """The registry answers again: leases in it may be old, or not there any more."""
        log.info("the registry answers again; nobody is taken out for %.1f s", self._grace_s)
        self._answering = True
        self._sweep_from_s = now + self._grace_s
        for desk in self._desks.values():
            desk.forgive(now)
