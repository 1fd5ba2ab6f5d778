"""The machine board within one process: the twin of the one in Redis."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..registry import keys as registry_keys
from ..registry.records import LogEntry
from . import keys
from .board import Beaten, Lead
from .checks import check_incarnation, check_ttl, superseded
from .records import (
    Deployment,
    Machine,
    Order,
    Report,
    deployment_from,
    order_from,
    report_from,
    written,
)


@dataclass(slots=True)
class _Held:
    """What stands of a machine; its report is JSON, as in Redis."""

    joined: int
    incarnation: int
    ttl_s: float
    deadline_s: float
    report: str


class MemoryMachines:
    """See `MachineBoard`. Several agents and managers of one process may share it.

    Args:
        clock: seconds since 1970.
    """

    _named: ClassVar[dict[str, MemoryMachines]] = {}
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._joined = 0
        self._machines: dict[str, _Held] = {}
        self._orders: dict[str, str] = {}
        self._deployments: dict[str, str] = {}
        self._leader = ("", 0.0)
        self._led = False
        self._logs: dict[str, list[LogEntry]] = defaultdict(list)

    @classmethod
    def shared(cls, url: str) -> MemoryMachines:
        """The board that everybody in this process gets who names this URL."""
        with cls._named_lock:
            return cls._named.setdefault(url, cls())

    # --- operators

    def deploy(self, deployment: Deployment, before: Deployment | None = None) -> bool:
        with self._lock:
            if deployment_from(self._deployments.get(deployment.service, "")) != before:
                return False
            stamped = replace(deployment, since_ms=int(self._clock() * 1000))
            self._deployments[deployment.service] = written(stamped)
            return True

    def deployments(self) -> list[Deployment]:
        with self._lock:
            found = [deployment_from(text) for _, text in sorted(self._deployments.items())]
        return [one for one in found if one is not None]

    # --- agents

    def join(self, machine_id: str, incarnation: int, report: Report, ttl_s: float) -> None:
        keys.check_machine(machine_id)
        check_incarnation(incarnation)
        ttl_s, text = check_ttl(ttl_s) / 1000, written(report)
        with self._lock:
            held = self._living().get(machine_id)
            if held is not None and held.incarnation > incarnation:
                raise superseded(machine_id)
            self._joined += 1
            deadline_s = self._clock() + ttl_s
            self._machines[machine_id] = _Held(self._joined, incarnation, ttl_s, deadline_s, text)

    def beat(self, machine_id: str, incarnation: int, report: Report | None = None) -> Beaten:
        keys.check_machine(machine_id)
        with self._lock:
            held = self._living().get(machine_id)
            if held is None:
                return Beaten("unknown")
            if held.incarnation != check_incarnation(incarnation):
                return Beaten("superseded")
            if report is not None:
                held.report = written(report)
            held.deadline_s = self._clock() + held.ttl_s
            return Beaten("known", order_from(self._orders.get(machine_id)))

    def leave(self, machine_id: str, incarnation: int) -> None:
        keys.check_machine(machine_id)
        with self._lock:
            held = self._living().get(machine_id)
            if held is not None and held.incarnation == check_incarnation(incarnation):
                del self._machines[machine_id]

    # --- managers

    def machines(self) -> list[Machine]:
        with self._lock:
            now_s = self._clock()
            found = [
                Machine(
                    machine_id,
                    held.incarnation,
                    held.joined,
                    report_from(held.report),
                    order_from(self._orders.get(machine_id)),
                    held.deadline_s - now_s,
                )
                for machine_id, held in self._living().items()
            ]
        return sorted(found, key=lambda machine: machine.joined)

    def lead(self, token: str, ttl_s: float) -> Lead:
        ttl_s = check_ttl(ttl_s) / 1000
        with self._lock:
            before = self._leads()
            if before not in ("", token):
                return ""
            self._leader = (token, self._clock() + ttl_s)
            if before:
                return "kept"
            first, self._led = not self._led, True
            return "first" if first else "gained"

    def resign(self, token: str) -> None:
        with self._lock:
            if self._leader[0] == token:
                self._leader = ("", 0.0)

    def order(self, token: str, orders: Mapping[str, Order | None]) -> bool:
        texts = {
            keys.check_machine(machine_id): None if order is None else written(order)
            for machine_id, order in orders.items()
        }
        with self._lock:
            if self._leads() != token:
                return False
            for machine_id, text in texts.items():
                if text is None:
                    self._orders.pop(machine_id, None)
                else:
                    self._orders[machine_id] = text
            return True

    def forget(self, token: str, service: str) -> bool:
        registry_keys.check_service(service)
        with self._lock:
            standing = deployment_from(self._deployments.get(service, ""))
            if self._leads() != token or standing is None or not standing.withdrawn:
                return False
            del self._deployments[service]
            return True

    def note(self, service: str, entries: Sequence[LogEntry]) -> None:
        registry_keys.check_service(service)
        with self._lock:
            log = self._logs[service]
            for entry in entries:
                now_ms = int(self._clock() * 1000)
                log.append(replace(entry, id=f"{now_ms}-{len(log)}", time_ms=now_ms))

    def noted(self, service: str) -> list[LogEntry]:
        with self._lock:
            return list(self._logs[registry_keys.check_service(service)])

    def close(self) -> None:
        pass

    # --- within the lock

    def _living(self) -> dict[str, _Held]:
        now_s = self._clock()
        self._machines = {m: held for m, held in self._machines.items() if held.deadline_s > now_s}
        return self._machines

    def _leads(self) -> str:
        token, until_s = self._leader
        return token if until_s > self._clock() else ""
