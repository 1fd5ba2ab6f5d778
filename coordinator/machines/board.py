"""The machine board: the machines that run agents, and what they serve.

A *machine* is an agent (`edl agent`) with a TTL lease. It registers with its devices, before
anything is deployed on it (section 3.1 of the paper). A *deployment* names the model of a service.
One manager leads the placement and writes *orders*. A machine carries out its latest order, so
nothing is lost if it never reads an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ...runtime.errors import LeaseSuperseded
from ..registry.schema import check_service
from ..store import Store
from ..store.records import (
    Append,
    BeatAnswer,
    Change,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leadership,
    Leads,
    MemberBeat,
    Once,
    Put,
    check_ttl,
    load_facts,
)
from .schema import (
    DEPLOYMENTS,
    FORMER_FACTS,
    LEADER,
    MACHINES,
    ORDERS,
    Deployment,
    Machine,
    MachineOrder,
    Report,
    check_machine,
    deployment_from,
    json_of,
    order_from,
)

#: Seconds for which orders and deployments stay after the last write, or renewal by a leader.
_ORDERS_KEEP_S: Final = 86_400.0
_DEPLOYMENTS_KEEP_S: Final = 30 * 86_400.0


class MachineBoard:
    """The machine board; its methods may be called from any thread.

    All raise RedisUnavailable, Unauthenticated or Forbidden as the store does. They raise
    UsageError if a name is invalid: the name of a machine must have 1 to 200 letters, digits or
    '._-:/@+[]'.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- users: deploy and withdraw services

    def deploy(self, deployment: Deployment, before: Deployment | None = None) -> bool:
        """Write a deployment if the current one is `before`.

        Args:
            deployment: the new deployment.
            before: the expected current deployment; None: there is none, or it is invalid.

        Returns:
            Whether it was written.
        """
        service = deployment.service
        current = self.store.fields(DEPLOYMENTS, [service])[0] or ""
        if _deployment_of(service, current) != before:
            return False
        text = json_of(replace(deployment, since_ms=self.store.time_ms()))
        conditions: list[Condition] = [Once(DEPLOYMENTS), FieldIs(DEPLOYMENTS, service, current)]
        changes: list[Change] = [Put(DEPLOYMENTS, {service: text}), _KEEP_DEPLOYMENTS]
        return self.store.commit(conditions, changes) == 0

    def deployments(self) -> list[Deployment]:
        """Return all valid deployments, sorted by service."""
        (texts,) = self.store.read(DEPLOYMENTS)
        parsed = [_deployment_of(service, text) for service, text in sorted(texts.items())]
        return [deployment for deployment in parsed if deployment is not None]

    # --- agents

    def join(self, machine_id: str, incarnation: int, report: Report, ttl_s: float) -> None:
        """Register a machine; its lease ends `ttl_s` seconds after this and after each heartbeat.

        Raises:
            LeaseSuperseded: a greater incarnation has the name.
        """
        facts = {"incarnation": str(incarnation), "report": json_of(report)}
        leases, machine_id = self.store.leases, check_machine(machine_id)
        if not leases.register(MACHINES, machine_id, facts, check_ttl(ttl_s)):
            raise LeaseSuperseded(
                f"another agent runs as machine {machine_id}, and began later: end one of the two,"
                " or name them apart with --machine"
            )

    def beat(
        self, machine_id: str, incarnation: int, ttl_s: float, report: Report | None = None
    ) -> MachineOrder | None:
        """Renew the lease of a machine; `report` replaces the former one.

        Returns:
            Its order. None if it has to join, because its lease is over or a newer agent has its
            name.
        """
        facts = {} if report is None else {"report": json_of(report)}
        beat = MemberBeat(check_machine(machine_id), incarnation, facts)
        if self.store.leases.beat(MACHINES, beat, check_ttl(ttl_s)) != BeatAnswer.KEPT:
            return None
        # The heartbeat's script cannot read the order: for each key of a script, Redis requires the
        # permission to write, and agents may only read orders.
        return order_from(self.store.fields(ORDERS, [machine_id])[0])

    def leave(self, machine_id: str, incarnation: int) -> None:
        """End the lease; no effect if another incarnation has the name."""
        self.store.leases.leave(MACHINES, check_machine(machine_id), incarnation)

    # --- managers

    def machines(self) -> list[Machine]:
        """Return the machines with a lease, in the order in which they joined."""
        live = self.store.leases.members(MACHINES)
        (orders,) = self.store.read(ORDERS)
        machines = [
            Machine(
                machine_id=member.member,
                incarnation=member.incarnation,
                joined=member.joined,
                report=Report.from_json(load_facts(member.facts.get("report", ""))),
                order=order_from(orders.get(member.member)),
                expires_in_s=member.remaining_s,
            )
            for member in live
        ]
        return sorted(machines, key=lambda machine: machine.joined)

    def ordered_machines(self) -> list[str]:
        """Return the machines with an order, also those without a lease."""
        return list(self.store.read(ORDERS)[0])

    def lead(self, holder: str, ttl_s: float) -> Leadership:
        """Take the leadership of the placement if it is free, or renew ours."""
        kept = {ORDERS: _ORDERS_KEEP_S, DEPLOYMENTS: _DEPLOYMENTS_KEEP_S}
        leadership = self.store.lead(LEADER, holder, check_ttl(ttl_s), keep_s=kept)
        if leadership.change in ("gained", "first"):
            self.store.commit([fence_of(leadership)], _REFUSE_OLDER_AGENTS)
        return leadership

    def resign(self, holder: str) -> None:
        """Give the leadership back; no effect if another manager has it."""
        self.store.resign(LEADER, holder)

    def order(self, fence: Leads, orders: Mapping[str, MachineOrder | None]) -> bool:
        """Write orders; `orders`: machine -> its order, None deletes it.

        Returns:
            Whether they were written: False if another manager leads.
        """
        texts = {
            check_machine(machine_id): None if order is None else json_of(order)
            for machine_id, order in orders.items()
        }
        changes: list[Change] = [Put(ORDERS, texts), Keep([ORDERS], _ORDERS_KEEP_S)]
        return self.store.commit([fence], changes) == 0

    def forget(self, fence: Leads, service: str) -> bool:
        """Delete a withdrawn deployment.

        Returns:
            Whether it was deleted: False if another manager leads, or it was deployed again.
        """
        check_service(service)
        current = self.store.fields(DEPLOYMENTS, [service])[0] or ""
        deployment = _deployment_of(service, current)
        if deployment is None or not deployment.withdrawn:
            return False
        unchanged = FieldIs(DEPLOYMENTS, service, current)
        return self.store.commit([fence, unchanged], [Put(DEPLOYMENTS, {service: None})]) == 0

    def close(self) -> None:
        """Close the connections."""
        self.store.close()


def fence_of(leadership: Leadership) -> Leads:
    """Return the fence of writes by the leader of the placement."""
    return Leads(LEADER, leadership.holder, leadership.token)


def _deployment_of(service: str, text: str) -> Deployment | None:
    """Parse the deployment of a service; None: it is invalid, or of another service."""
    deployment = deployment_from(text)
    return deployment if deployment is not None and deployment.service == service else None


_KEEP_DEPLOYMENTS: Final = Keep([DEPLOYMENTS], _DEPLOYMENTS_KEEP_S)
#: Agents of older versions register under a key that no manager reads any more. A value of another
#: type there makes Redis refuse these agents, and they log the refusal.
_REFUSE_OLDER_AGENTS: Final = (
    Delete([FORMER_FACTS]),
    Append(
        FORMER_FACTS,
        {"text": "written by a newer version of edl-dist: update the agent"},
        1,
        _ORDERS_KEEP_S,
    ),
)
