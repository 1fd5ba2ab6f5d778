"""The service manager: its three threads, and the public methods that pass them work.

Any number of managers may use one registry. A manager has a subscription hub for each service; the
hub holds the streams of the students that connected to this manager. The manager's election tries
to take the leadership of each service. The leader of a service computes the assignments.

A hub and a leader exchange data only through the registry, even within one process. So all state of
a manager can be rebuilt from the registry and the students, and a manager may die at any time.

One thread runs all hubs, one runs all leaders, and one renews the leaderships. So a long
computation of assignments neither delays a hub nor lets a leadership expire.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...proto import coordinator_pb2 as pb
from ...runtime.errors import AccessError, UnavailableError
from ...scheduler.autoscale import AutoscaleConfig
from ...scheduler.leadership import BEATS_PER_TTL
from ..config import ManagerConfig
from ..registry import Registry
from .election import Election
from .leader import Leader
from .overview import Overview
from .prober import Prober
from .service_state import LeaderView
from .student_sessions import AssignmentStream, StudentCaller
from .subscription_hub import HubView, SubscriptionHub

log = logging.getLogger(__name__)

#: Between two reads of the registry, the hubs handle all events that are queued at first, and
#: further ones until they have handled this many.
_EVENTS_AT_ONCE = 1000
#: Seconds between two updates of the `HubView`s.
_VIEW_S = 0.25
#: Shortest pause between two passes of the leaders, in seconds: changes that arrive meanwhile are
#: processed together.
_LEAST_PAUSE_S = 0.005

#: The name of a service, and the function to call with its hub.
_HubEvent = tuple[str, Callable[[SubscriptionHub], None]]
#: Event: a leader has written assignments, so the hubs read the registry at once.
_REFRESH: Final[_HubEvent] = ("", lambda hub: None)


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One service at one manager.

    Attributes:
        name: name of the service.
        leader: address of the manager that leads the service, as known here; empty: none.
        leading: view of this manager's leader; None: this manager does not lead the service.
        hub: view of this manager's hub; None: it holds no streams of the service.
    """

    name: str
    leader: str = ""
    leading: LeaderView | None = None
    hub: HubView | None = None


@dataclass(frozen=True, slots=True)
class ManagerView:
    """One manager.

    Attributes:
        redis_available: whether Redis answers this manager and accepts its writes.
        services: the services, sorted by name.
        refusal: why the registry answers but refuses writes; empty: it does not refuse them.
    """

    redis_available: bool
    services: tuple[ServiceView, ...] = ()
    refusal: str = ""


class Manager:
    """One service manager. Its methods are thread-safe; only `stop` and `status` may block.

    Args:
        registry: registry of the mesh; the caller closes it.
        config: settings.
        address: address at which students reach this manager; also its id.
        prober: probes teachers if `config.admission` is set; None: all are admitted.
        scaling_of: returns the autoscale settings of a service; called often, by the leaders'
            thread only. None: those of `config`.
    """

    def __init__(
        self,
        registry: Registry,
        config: ManagerConfig | None = None,
        *,
        address: str = "",
        prober: Prober | None = None,
        scaling_of: Callable[[str], AutoscaleConfig] | None = None,
    ) -> None:
        self._registry = registry
        self._config = config = config or ManagerConfig()
        self._address = address
        self._prober = prober
        self._scaling_of = scaling_of or (lambda _: config.autoscale)
        self._election = Election(registry, address, config.leader_ttl_s, config.ttl_s)
        self._overview = Overview(registry, self._election.leader)
        self._hubs: dict[str, SubscriptionHub] = {}
        self._hub_views: dict[str, HubView] = {}
        self._leaders: dict[str, Leader] = {}
        self._events: queue.SimpleQueue[_HubEvent | None] = queue.SimpleQueue()
        self._leaders_wake = threading.Event()
        self._stopping = False
        self._guards = {name: _ErrorGuard(name) for name in ("hubs", "leaders")}
        self._threads = [
            threading.Thread(target=self._run_hubs, name="edl-hubs", daemon=True),
            threading.Thread(target=self._run_leaders, name="edl-leaders", daemon=True),
        ]

    @property
    def beat_s(self) -> float:
        """Seconds between two reports of a student."""
        return self._config.ttl_s / BEATS_PER_TTL

    def start(self) -> None:
        """Start the threads; call it once."""
        self._election.start()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the threads and give the leaderships back.

        The leases of students remain valid while their students move to another manager.
        """
        self._stopping = True
        self._events.put(None)
        self._leaders_wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)
        self._election.stop(timeout_s)

    def subscribe(
        self, stream: AssignmentStream, report: pb.StudentReport, caller: StudentCaller
    ) -> None:
        """Accept a stream that a student opened; `report` is the first on it.

        The stream ends with Forbidden if the caller may not report as this student, and with
        LeaseSuperseded once a newer incarnation of the student uses this or another manager.
        """
        self._events.put((report.service, lambda hub: hub.subscribed(stream, report, caller)))

    def report(self, stream: AssignmentStream, report: pb.StudentReport) -> None:
        """Process a further report on an open stream."""
        self._events.put((report.service, lambda hub: hub.reported(stream, report)))

    def end(self, stream: AssignmentStream, report: pb.StudentReport, *, clean: bool) -> None:
        """Process the end of a stream; `clean`: the student closed it and returns its teachers."""
        student = report.student_id
        self._events.put((report.service, lambda hub: hub.ended(stream, student, clean=clean)))

    def view(self) -> ManagerView:
        """Return what this manager knew a moment ago, without a call to the registry."""
        leading = {name: leader.view for name, leader in list(self._leaders.items())}
        names = sorted({*leading, *self._hub_views})
        services = tuple(
            ServiceView(
                name,
                self._election.leader(name),
                leading.get(name),
                self._hub_views.get(name),
            )
            for name in names
        )
        election = self._election
        return ManagerView(election.answering, services, election.refusal)

    def status(self, service: str = "", max_members: int = 0) -> pb.MeshStatus:
        """Return the status of the mesh, see `Overview.status`. Blocks while it reads the registry.

        Raises:
            UnavailableError, AccessError: the registry does not answer or refuses.
        """
        return self._overview.status(service, max_members)

    # -- the hubs' thread

    def _run_hubs(self) -> None:
        guard, refreshed_s = self._guards["hubs"], time.monotonic()
        viewed_s = refreshed_s
        while True:
            due_s = refreshed_s + self._interval_s(guard)
            refresh_now = self._handle_events(due_s, guard)
            if self._stopping:
                return
            now = time.monotonic()
            refreshing = refresh_now or now >= due_s
            if refreshing:
                refreshed_s = now
            for hub in list(self._hubs.values()):
                if self._stopping:
                    return
                with guard.catch_errors():
                    self._serve(hub, now, refreshing=refreshing)
            if now - viewed_s >= _VIEW_S:
                viewed_s = now
                self._hub_views = {name: hub.view() for name, hub in self._hubs.items()}

    def _serve(self, hub: SubscriptionHub, now: float, *, refreshing: bool) -> None:
        settled = hub.settle(now)
        if not (settled or refreshing):
            return
        if settled:
            self._leaders_wake.set()
        hub.refresh(now, self._election.registry_id)
        hub.push_assignments()  # before writing the reports, which may be thousands
        if hub.write(now):
            self._leaders_wake.set()
        self._guards["hubs"].answering = True
        if hub.is_idle(now):
            del self._hubs[hub.service]
            self._election.end_campaign_for(hub.service)

    def _handle_events(self, until_s: float, guard: _ErrorGuard) -> bool:
        """Handle the queued events; wait for a first one until `until_s`.

        Returns:
            Whether `_REFRESH` was among them.
        """
        refresh_now = False
        # All of them, however many have queued up while a hanging registry blocked this thread.
        for number in range(max(_EVENTS_AT_ONCE, self._events.qsize())):
            wait_s = max(0.0, until_s - time.monotonic()) if number == 0 else 0.0
            try:
                event = self._events.get(timeout=wait_s) if wait_s else self._events.get_nowait()
            except queue.Empty:
                break
            if event is None:
                break
            if event is _REFRESH:
                refresh_now = True
                continue
            service, handle = event
            with guard.catch_errors():
                handle(self._hub(service))
        return refresh_now

    def _hub(self, service: str) -> SubscriptionHub:
        hub = self._hubs.get(service)
        if hub is None:
            ttl_s, now = self._config.ttl_s, time.monotonic()
            hub = self._hubs[service] = SubscriptionHub(
                self._registry, service, ttl_s, self._address, now
            )
            self._election.campaign_for(service)
        return hub

    # -- the leaders' thread

    def _run_leaders(self) -> None:
        guard = self._guards["leaders"]
        while not self._stopping:
            began_s = time.monotonic()
            self._election.note_leaders_alive()
            for name in self._election.led_services():
                if name not in self._leaders:
                    self._leaders[name] = self._leader(name)
            for name in [n for n in self._leaders if not self._election.campaigns_for(n)]:
                del self._leaders[name]
            for leader in list(self._leaders.values()):
                if self._stopping:
                    return
                with guard.catch_errors():
                    if leader.reconcile(time.monotonic()):
                        self._events.put(_REFRESH)
                    guard.answering = True
            time.sleep(_LEAST_PAUSE_S)
            # Wake up early when the next lease expires, to notice a death at once.
            expiries = [leader.due_s for leader in self._leaders.values() if leader.due_s > began_s]
            due_s = min([began_s + self._interval_s(guard), *expiries])
            self._leaders_wake.wait(max(0.0, due_s - time.monotonic()))
            self._leaders_wake.clear()

    def _leader(self, service: str) -> Leader:
        return Leader(
            self._registry,
            service,
            self._config,
            self._election,
            self._address,
            self._prober,
            wake=self._leaders_wake.set,
            scaling=lambda: self._scaling_of(service),
        )

    def _interval_s(self, guard: _ErrorGuard) -> float:
        return self._config.sweep_s if guard.answering else self._config.outage_sweep_s


class _ErrorGuard:
    """Logs errors of the registry, and exceptions from bugs, so that a thread survives them.

    Attributes:
        answering: whether the registry answered the thread's last call. `catch_errors` sets it to
            False, and the thread sets it to True.
    """

    def __init__(self, name: str) -> None:
        self.answering = True
        self._name = name
        self._last_error = ""

    @contextmanager
    def catch_errors(self) -> Iterator[None]:
        try:
            yield
        except (UnavailableError, AccessError) as error:
            self.answering = False
            log.debug("the thread of the %s goes on without the registry: %s", self._name, error)
        except Exception as error:
            if repr(error) != self._last_error:  # it may recur many times a second
                log.exception("the thread of the %s failed at one step and goes on", self._name)
            self._last_error = repr(error)
