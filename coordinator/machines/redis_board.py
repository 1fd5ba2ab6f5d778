"""The machine board in Redis or Valkey: one script for each thing that is done, in Redis time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from ..registry import keys as registry_keys
from ..registry.records import LogEntry
from ..registry.redis_session import RedisSession
from . import keys
from .board import DEPLOYMENTS_KEEP_S, Beaten, Lead
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

_DEPLOYMENTS_MS: Final = round(DEPLOYMENTS_KEEP_S * 1000)
_OWN: Final = (keys.ALIVE, keys.FACTS)
_LEADS: Final[tuple[Lead, ...]] = ("", "kept", "gained", "first")
#: As the registry keeps the logs of services.
_LOG_MS: Final = 7 * 86_400_000
_LOG_KEPT: Final = 10_000


class RedisMachines(RedisSession):
    """See `MachineBoard`."""

    scripts: ClassVar[str] = __package__

    # --- operators

    def deploy(self, deployment: Deployment, before: Deployment | None = None) -> bool:
        with self._translated():
            found: Any = self._redis.hget(keys.DEPLOYMENTS, deployment.service)
        standing = found or ""
        read = deployment_from(standing)
        if (read if read is None or read.service == deployment.service else None) != before:
            return False
        text = written(replace(deployment, since_ms=self.time_ms()))
        args = deployment.service, text, _DEPLOYMENTS_MS, standing
        return bool(self._run("deploy", [keys.DEPLOYMENTS], *args))

    def deployments(self) -> list[Deployment]:
        with self._translated():
            found: Any = self._redis.hgetall(keys.DEPLOYMENTS)
        read = [(name, deployment_from(text)) for name, text in sorted(found.items())]
        return [one for name, one in read if one is not None and one.service == name]

    # --- agents

    def join(self, machine_id: str, incarnation: int, report: Report, ttl_s: float) -> None:
        args = keys.check_machine(machine_id), check_incarnation(incarnation), check_ttl(ttl_s)
        if not self._run("join", _OWN, *args, written(report)):
            raise superseded(machine_id)

    def beat(self, machine_id: str, incarnation: int, report: Report | None = None) -> Beaten:
        told = () if report is None else (written(report),)
        args = keys.check_machine(machine_id), check_incarnation(incarnation)
        match self._run("beat", _OWN, *args, *told):
            case 0:
                return Beaten("unknown")
            case 2:
                return Beaten("superseded")
        # Beside the script: its user may read orders and not write them.
        with self._translated():
            text: Any = self._redis.hget(keys.ORDERS, machine_id)
        return Beaten("known", order_from(text))

    def leave(self, machine_id: str, incarnation: int) -> None:
        args = keys.check_machine(machine_id), check_incarnation(incarnation)
        self._run("leave", _OWN, *args)

    # --- managers

    def machines(self) -> list[Machine]:
        now_ms, *found = self._run("machines", [*_OWN, keys.ORDERS])
        living = []
        rows = zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True)
        for machine_id, deadline, text, order in rows:
            numbers, report = text.split(" ", 3)[:3], text.partition("{")
            if len(numbers) < 3 or not all(part.isdigit() for part in numbers):
                continue
            if keys.is_machine(machine_id):
                joined, incarnation, _ = map(int, numbers)
                told = report_from(report[1] + report[2])
                left_s = (float(deadline) - int(now_ms)) / 1000
                standing = order_from(order or None)
                living.append(Machine(machine_id, incarnation, joined, told, standing, left_s))
        return sorted(living, key=lambda machine: machine.joined)

    def lead(self, token: str, ttl_s: float) -> Lead:
        where = [keys.LEADER, keys.ORDERS, keys.DEPLOYMENTS]
        answer = self._run("lead", where, token, check_ttl(ttl_s), _DEPLOYMENTS_MS)
        return _LEADS[int(answer)]

    def resign(self, token: str) -> None:
        self._run("resign", [keys.LEADER], token)

    def order(self, token: str, orders: Mapping[str, Order | None]) -> bool:
        args = []
        for machine_id, order in orders.items():
            args += [keys.check_machine(machine_id), "" if order is None else written(order)]
        return bool(self._run("order", [keys.LEADER, keys.ORDERS], token, *args))

    def forget(self, token: str, service: str) -> bool:
        registry_keys.check_service(service)
        return bool(self._run("forget", [keys.LEADER, keys.DEPLOYMENTS], token, service))

    def note(self, service: str, entries: Sequence[LogEntry]) -> None:
        key, now_ms = registry_keys.events(service), self.time_ms()
        with self._translated(), self._redis.pipeline(transaction=False) as pipe:
            for entry in entries:
                told: dict[Any, Any] = {
                    "kind": entry.kind,
                    "subject": entry.subject,
                    "text": entry.text,
                    "before": " ".join(entry.before),
                    "after": " ".join(entry.after),
                }
                pipe.xadd(key, told, maxlen=_LOG_KEPT, approximate=True)
            pipe.pexpire(key, _LOG_MS)
            pipe.zadd(registry_keys.SERVICES, {service: now_ms})  # so that its log is found
            pipe.execute()

    def noted(self, service: str) -> list[LogEntry]:
        with self._translated():
            found: Any = self._redis.xrange(registry_keys.events(service))
        return [
            LogEntry(
                told.get("kind", ""),
                told.get("subject", ""),
                told.get("text", ""),
                tuple(told.get("before", "").split()),
                tuple(told.get("after", "").split()),
                event_id,
                registry_keys.event_place(event_id)[0],
            )
            for event_id, told in found
        ]
