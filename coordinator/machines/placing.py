"""Applies the placement: the leading manager reads machines and demands, and writes orders."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from ...runtime.errors import AccessError, UnavailableError
from ...runtime.lifecycle import Periodic
from ...scheduler.autoscale import AutoscaleConfig
from ..config import DEFAULT_TTL_S
from ..registry import LogEntry, Registry
from ..store.records import Leads, WrongKeyType
from .board import MachineBoard, fence_of
from .placement import (
    Change,
    PlacedMachine,
    RefusedTeachers,
    TeacherDemand,
    demand_of,
    desired_of,
    place,
)
from .schema import Deployment, Machine, MachineOrder, retry_key

log = logging.getLogger(__name__)

#: Seconds between two rounds.
_ROUND_S: Final = 0.5
#: TTL of the leadership, in rounds.
_ROUNDS_PER_TTL: Final = 8
#: Share of a TTL for which a new leader writes no orders: a little more than the time between two
#: heartbeats. After an outage or a loss of Redis's data, machines register again in this time.
_SETTLE_TTLS: Final = 0.5
SETTLE_S: Final = _SETTLE_TTLS * DEFAULT_TTL_S
#: Seconds for which a withdrawn deployment stays: a machine that was cut off when it was withdrawn
#: gives up its teacher when it returns.
WITHDRAWN_KEEP_S: Final = 86_400.0
_DEFAULTS: Final = AutoscaleConfig()


class Placer:
    """Campaigns for the leadership of the placement, and places machines while it leads.

    Args:
        board: the machine board.
        registry: the registry with teachers, students, and the numbers from autoscaling.
        defaults: settings of autoscaling that deployments lack. In its first `idle_to_zero_s`
            seconds, a deployment has teachers even without a student, so that its user sees it
            work.
        address: address of this manager; the name under which it leads begins with it.
        round_s: seconds between two rounds.
        ttl_s: TTL of the machines' leases; a new leader writes no orders for half of it.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        board: MachineBoard,
        registry: Registry,
        defaults: AutoscaleConfig = _DEFAULTS,
        *,
        address: str = "",
        round_s: float = _ROUND_S,
        ttl_s: float = DEFAULT_TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._registry = registry
        self._defaults = defaults
        self._holder = f"{address}#{secrets.token_hex(8)}"
        self._ttl_s = round_s * _ROUNDS_PER_TTL
        self._settle_s = _SETTLE_TTLS * ttl_s
        self._clock = clock
        self._since_s: float | None = None  # when this manager gained the leadership
        # At the last round, with their new orders; None: there was no round in this term.
        self._last_machines: dict[str, Machine] | None = None
        self._last_deployments: Sequence[Deployment] = ()
        self._emptied = False  # whether Redis lost its data, and deployments are to be restored
        self._unreadable: set[str] = set()  # services whose demand could not be read
        self._refused_teachers = RefusedTeachers()
        self._answering = True
        self._thread = Periodic("edl-placement", round_s, self._try_to_reconcile)

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and give the leadership back."""
        self._thread.stop()
        with contextlib.suppress(UnavailableError, AccessError):
            self._board.resign(self._holder)

    def reconcile(self) -> bool:
        """Run one round; return whether this manager leads.

        Raises:
            UnavailableError, AccessError: the registry does not answer or refuses.
        """
        # Read first: if Redis loses its data after this read, `lead` returns "first".
        deployments: Sequence[Deployment] = self._board.deployments()
        leadership, now = self._board.lead(self._holder, self._ttl_s), self._clock()
        leads = bool(leadership.change)
        self._emptied = leadership.change == "first" or (self._emptied and leads)
        if self._emptied:
            deployments = self._restore_deployments()
        self._last_deployments = deployments
        if not leads:
            self._since_s, self._last_machines = None, None
            return False
        if leadership.change != "kept" or self._since_s is None:
            self._since_s = now
        if now - self._since_s < self._settle_s:
            return True
        self._place(deployments, self._board.machines(), fence_of(leadership))
        return True

    def _restore_deployments(self) -> Sequence[Deployment]:
        """Deploy again what this manager knows and Redis has lost; return all deployments."""
        present = {deployment.service for deployment in self._board.deployments()}
        for deployment in self._last_deployments:
            if deployment.service not in present and self._board.deploy(deployment):
                log.warning("Redis lost the deployment of %s: written again", deployment.service)
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
        by_service = {deployment.service: deployment for deployment in deployments}
        live = {machine.machine_id: machine for machine in machines}
        first_round, last = self._last_machines is None, self._last_machines or {}
        lost = [machine for name, machine in last.items() if name not in live]
        demands, refused_ids = self._demands(deployments, machines)
        refused = {
            (machine.machine_id, service)
            for machine in machines
            if machine.report.teacher_id in refused_ids.get(service := _service_of(machine), ())
        }
        avoided = self._refused_teachers.update(refused, self._clock())
        changes = place(
            [_placed_machine(machine, by_service, refused, avoided) for machine in machines],
            demands,
        )
        # In the first round, orders of machines that were lost before are deleted, too.
        ordered = self._board.ordered_machines() if first_round else last
        orders: dict[str, MachineOrder | None] = dict.fromkeys(set(ordered) - live.keys())
        for change in changes:
            orders[change.machine_id] = _order(live[change.machine_id], change, by_service)
        if orders and not self._board.order(fence, orders):
            return  # another manager leads now, and will place the machines
        events = _moves(changes, live, lost)
        # A former leader has logged the failures that there are in the first round.
        for service, failure in () if first_round else _new_failures(deployments, machines, last):
            events[service].append(failure)
        for service, entries in events.items():
            self._registry.add_events(service, entries)
            for entry in entries:
                log.info("%s %s %s: %s", service, entry.kind, entry.subject, entry.text)
        self._last_machines = {
            name: replace(machine, order=orders.get(name) or machine.order)
            for name, machine in live.items()
        }
        for deployment in deployments:
            service = deployment.service
            if not deployment.withdrawn or self._age_s(deployment) < WITHDRAWN_KEEP_S:
                continue
            if not any(_may_run(machine, service) for machine in machines):
                self._board.forget(fence, service)

    def _demands(
        self, deployments: Sequence[Deployment], machines: Sequence[Machine]
    ) -> tuple[list[TeacherDemand], dict[str, Set[str]]]:
        """Return the demands, and service -> ids of refused teachers, of readable services.

        Machines of other services keep their orders.
        """
        unreadable, demands, refused = set(), list[TeacherDemand](), dict[str, Set[str]]()
        for deployment in deployments:
            service = deployment.service
            try:
                refused[service] = self._registry.refused(service).keys()
                demands.append(self._demand(deployment, machines, refused[service]))
            except WrongKeyType as error:
                unreadable.add(service)
                if service not in self._unreadable:
                    log.warning("service %s: its machines keep their orders: %s", service, error)
        self._unreadable = unreadable
        return demands, refused

    def _demand(
        self, deployment: Deployment, machines: Sequence[Machine], refused: Set[str]
    ) -> TeacherDemand:
        service = deployment.service
        if deployment.withdrawn:
            return TeacherDemand(service, deployment.content_id, 0, 0, deployment.priority)
        on_machines = {m.report.teacher_id for m in machines} | {m.machine_id for m in machines}
        elsewhere = len(self._registry.names("teachers", service) - on_machines - refused)
        config = deployment.autoscale_config(self._defaults)
        least = min(deployment.min, config.limit)
        published = self._registry.desired(service)
        now = self._clock()
        desired = desired_of(
            None if published is None else published.count,
            least=least,
            has=elsewhere + sum(_service_of(machine) == service for machine in machines),
            students=published is None and bool(self._registry.names("students", service)),
            age_s=self._age_s(deployment),
            led_s=now - (now if self._since_s is None else self._since_s),
            idle_s=config.idle_to_zero_s,
        )
        return demand_of(
            service,
            deployment.content_id,
            least=least,
            most=config.limit,
            desired=desired,
            elsewhere=elsewhere,
            priority=deployment.priority,
        )

    def _age_s(self, deployment: Deployment) -> float:
        """Return the seconds since a deployment was written."""
        return (self._registry.time_ms() - deployment.since_ms) / 1000


def _moves(
    changes: Sequence[Change], live: Mapping[str, Machine], lost: Iterable[Machine]
) -> defaultdict[str, list[LogEntry]]:
    """Return service -> events of the machines that it got or lost."""
    events: defaultdict[str, list[LogEntry]] = defaultdict(list)
    for change in changes:
        before = _service_of(live[change.machine_id])
        if before and before != change.service:
            events[before].append(LogEntry("released", change.machine_id, change.why))
        if change.service:
            events[change.service].append(LogEntry("placed", change.machine_id, change.why))
    for machine in lost:
        if service := _service_of(machine):
            text = "the machine is gone: its agent sends no heartbeats any more"
            events[service].append(LogEntry("released", machine.machine_id, text))
    return events


def _new_failures(
    deployments: Sequence[Deployment], machines: Sequence[Machine], last: Mapping[str, Machine]
) -> Iterator[tuple[str, LogEntry]]:
    """Yield services and the events of failures that machines had not in the last round."""
    for machine in machines:
        former = last.get(machine.machine_id)
        for deployment in deployments:
            failure = machine.report.trouble_with(deployment)
            if not failure:
                continue
            if former is None or former.report.trouble_with(deployment) != failure:
                yield deployment.service, LogEntry("failed", machine.machine_id, failure)


def _service_of(machine: Machine) -> str:
    """Return the service of a machine: of its order, else (if Redis lost it) of its report."""
    return machine.order.service if machine.order.number else machine.report.service


def _placed_machine(
    machine: Machine,
    by_service: Mapping[str, Deployment],
    refused: Set[tuple[str, str]],
    avoided: Set[tuple[str, str]],
) -> PlacedMachine:
    """Return a machine for `place`; see `RefusedTeachers.update` for the last two arguments."""
    report, service, name = machine.report, _service_of(machine), machine.machine_id
    ordered = machine.order.deployment
    blocked = set(report.blocked)
    return PlacedMachine(
        name,
        service=service,
        content_id=report.content_id if ordered is None else ordered.content_id,
        serves=report.state == "serving"
        and report.service == service
        and (name, service) not in refused,
        available=report.state != "yielded" and not report.leaving,
        refuses=frozenset(
            other
            for other, deployment in by_service.items()
            if retry_key(deployment) in blocked or (name, other) in avoided
        ),
        cached=frozenset(report.cached),
    )


def _order(machine: Machine, change: Change, by_service: Mapping[str, Deployment]) -> MachineOrder:
    number = max(machine.order.number, machine.report.order) + 1
    return MachineOrder(number, by_service.get(change.service), change.why)


def _may_run(machine: Machine, service: str) -> bool:
    """Return whether a machine may still run a teacher of a service."""
    working = machine.report.state in ("fetching", "starting", "serving", "draining")
    return machine.order.service == service or (working and machine.report.service == service)
