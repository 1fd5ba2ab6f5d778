"""Applies the placement: the leading manager reads machines and demands, and writes orders."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...runtime.errors import AccessError, UnavailableError
from ...runtime.lifecycle import Periodic
from ..registry import LogEntry, Registry
from ..store.records import Leads, WrongKeyType
from .board import MachineBoard, fence_of
from .placement import FRESH_S, Change, PlacedMachine, TeacherDemand, demand_of, desired_of, place
from .schema import Deployment, Machine, MachineOrder, retry_key

log = logging.getLogger(__name__)

#: Seconds between two rounds.
_ROUND_S: Final = 0.5
#: TTL of the leadership, in rounds.
_ROUNDS_PER_TTL: Final = 8
#: Seconds for which a new leader writes no orders. After an outage or a loss of Redis's data,
#: machines need this time to register again.
SETTLE_S: Final = 3.0


class Placer:
    """Campaigns for the lead of the placement, and places machines while it leads.

    Args:
        board: the machine board.
        registry: the registry with teachers, students, and the numbers from autoscaling.
        idle_s: seconds without a student after which a service has no teachers. A new deployment
            counts as a student, so that the operator sees it work.
        address: address of this manager; its name as a leader begins with it.
        round_s: seconds between two rounds.
        settle_s: seconds for which a new leader writes no orders.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        board: MachineBoard,
        registry: Registry,
        *,
        idle_s: float = FRESH_S,
        address: str = "",
        round_s: float = _ROUND_S,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._registry = registry
        self._idle_s = idle_s
        self._holder = f"{address}#{secrets.token_hex(8)}"
        self._ttl_s = round_s * _ROUNDS_PER_TTL
        self._settle_s = settle_s
        self._clock = clock
        self._since_s: float | None = None
        self._known: dict[str, Machine] = {}
        self._deployed: Sequence[Deployment] = ()
        self._emptied = False
        self._unreadable: set[str] = set()
        self._answering = True
        self._thread = Periodic("edl-placement", round_s, self._try_to_reconcile)

    def start(self) -> None:
        """Start the thread; only once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and give the lead back."""
        self._thread.stop()
        with contextlib.suppress(UnavailableError, AccessError):
            self._board.resign(self._holder)

    def reconcile(self) -> bool:
        """Run one round; returns whether this manager leads.

        Raises:
            UnavailableError, AccessError: the registry does not answer or refuses.
        """
        # Read first: a loss of Redis's data after it makes `lead` return "first".
        deployments: Sequence[Deployment] = self._board.deployments()
        led, now = self._board.lead(self._holder, self._ttl_s), self._clock()
        leads = bool(led.change)
        self._emptied = led.change == "first" or (self._emptied and leads)
        if self._emptied:
            deployments = self._restored()
        self._deployed = deployments
        if not leads:
            self._since_s, self._known = None, {}
            return False
        if led.change != "kept" or self._since_s is None:
            self._since_s = now
        if now - self._since_s < self._settle_s:
            return True
        self._place(deployments, self._board.machines(), fence_of(led))
        return True

    def _restored(self) -> Sequence[Deployment]:
        """Deploy again what this manager knows and Redis has lost; returns all deployments."""
        there = {one.service for one in self._board.deployments()}
        for one in self._deployed:
            if not one.withdrawn and one.service not in there and self._board.deploy(one):
                log.warning("Redis lost the deployment of %s: deployed again", one.service)
        self._emptied = False
        return self._board.deployments()

    def _try_to_reconcile(self) -> None:
        try:
            self.reconcile()
            self._answering = True
        except (UnavailableError, AccessError) as error:
            if self._answering:
                log.warning("%s; machines keep their orders", error)
            self._answering = False

    def _place(
        self, deployments: Sequence[Deployment], machines: Sequence[Machine], fence: Leads
    ) -> None:
        by_service = {one.service: one for one in deployments}
        living = {machine.machine_id: machine for machine in machines}
        lost = [name for name in self._known if name not in living]
        changes = place(
            [_placed_machine(machine, by_service) for machine in machines],
            list(self._demands(deployments, machines)),
        )
        orders: dict[str, MachineOrder | None] = dict.fromkeys(lost)
        for change in changes:
            orders[change.machine_id] = _order(living[change.machine_id], change, by_service)
        if orders and not self._board.order(fence, orders):
            return  # another one leads now and sees the same
        events = self._moves(changes, living, lost)
        for service, trouble in self._troubles(deployments, machines):
            events[service].append(trouble)
        for service, entries in events.items():
            self._registry.add_events(service, entries)
            for entry in entries:
                log.info("%s %s %s: %s", service, entry.kind, entry.subject, entry.text)
        self._known = {
            name: replace(machine, order=orders.get(name) or machine.order)
            for name, machine in living.items()
        }
        for one in deployments:
            if one.withdrawn and not any(_involved(machine, one.service) for machine in machines):
                self._board.forget(fence, one.service)

    def _demands(
        self, deployments: Sequence[Deployment], machines: Sequence[Machine]
    ) -> Iterator[TeacherDemand]:
        """Yield the demand of each service that can be read; machines of others stay."""
        unreadable = set()
        for one in deployments:
            try:
                yield self._demand(one, machines)
            except WrongKeyType as error:
                unreadable.add(one.service)
                if one.service not in self._unreadable:
                    log.warning(
                        "service %s: its machines keep their orders: %s", one.service, error
                    )
        self._unreadable = unreadable

    def _demand(self, deployment: Deployment, machines: Sequence[Machine]) -> TeacherDemand:
        service = deployment.service
        if deployment.withdrawn:
            return TeacherDemand(service, deployment.content_id, 0, 0, deployment.priority)
        own = {name for one in machines for name in (one.machine_id, one.report.teacher_id)}
        elsewhere = len(self._registry.names("teachers", service) - own)
        published = self._registry.desired(service)
        now = self._clock()
        desired = desired_of(
            None if published is None else published.count,
            least=deployment.min,
            has=elsewhere + sum(_service_of(one) == service for one in machines),
            students=published is None and bool(self._registry.names("students", service)),
            age_s=(self._registry.time_ms() - deployment.since_ms) / 1000,
            led_s=now - (now if self._since_s is None else self._since_s),
            idle_s=self._idle_s,
        )
        return demand_of(
            service,
            deployment.content_id,
            least=deployment.min,
            most=deployment.max,
            desired=desired,
            elsewhere=elsewhere,
            priority=deployment.priority,
        )

    def _moves(
        self, changes: Sequence[Change], living: Mapping[str, Machine], lost: Sequence[str]
    ) -> defaultdict[str, list[LogEntry]]:
        """Return the events of machines given and taken, by service."""
        found: defaultdict[str, list[LogEntry]] = defaultdict(list)
        for change in changes:
            before = _service_of(living[change.machine_id])
            if before and before != change.service:
                found[before].append(LogEntry("released", change.machine_id, change.why))
            if change.service:
                found[change.service].append(LogEntry("placed", change.machine_id, change.why))
        for name in lost:
            if service := _service_of(self._known[name]):
                text = "the machine is gone: its agent sends no heartbeats any more"
                found[service].append(LogEntry("released", name, text))
        return found

    def _troubles(
        self, deployments: Sequence[Deployment], machines: Sequence[Machine]
    ) -> Iterator[tuple[str, LogEntry]]:
        """Yield services and the events of new failures on machines."""
        for machine in machines:
            former = self._known.get(machine.machine_id)
            for one in deployments:
                trouble = machine.report.trouble_with(one)
                if trouble and (former is None or former.report.trouble_with(one) != trouble):
                    yield one.service, LogEntry("failed", machine.machine_id, trouble)


def _service_of(machine: Machine) -> str:
    """Return the service of a machine: of its order, else (if Redis lost it) of its report."""
    return machine.order.service if machine.order.number else machine.report.service


def _placed_machine(machine: Machine, by_service: Mapping[str, Deployment]) -> PlacedMachine:
    report, service = machine.report, _service_of(machine)
    ordered = machine.order.deployment
    blocked = set(report.blocked)
    return PlacedMachine(
        machine.machine_id,
        service=service,
        content_id=report.content_id if ordered is None else ordered.content_id,
        serves=report.state == "serving" and report.service == service,
        available=report.state != "yielded" and not report.leaving,
        refuses=frozenset(name for name, one in by_service.items() if retry_key(one) in blocked),
        cached=frozenset(report.cached),
    )


def _order(machine: Machine, change: Change, by_service: Mapping[str, Deployment]) -> MachineOrder:
    number = max(machine.order.number, machine.report.order) + 1
    return MachineOrder(number, by_service.get(change.service), change.why)


def _involved(machine: Machine, service: str) -> bool:
    """Return whether a machine may still run a teacher of a service."""
    at_work = machine.report.state in ("fetching", "starting", "serving", "draining")
    return machine.order.service == service or (at_work and machine.report.service == service)
