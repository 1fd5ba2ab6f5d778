"""The machine board: which machines are there for teachers, and what they are to serve.

A *machine* is one agent (`edl agent`), alive as long as it beats: it registers with its devices
before anybody knows what it will serve (the paper, section 3.1). A *deployment* says which model
serves a service. One manager leads the placement, and writes *orders*: the one that stands is what
the machine does, so that nothing is lost when an order is never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ...runtime.errors import LeaseSuperseded
from ..registry import keys as registry_keys
from ..store import (
    Append,
    Beat,
    Change,
    Delete,
    FieldIs,
    Keep,
    Leadership,
    Leads,
    MemberBeat,
    Put,
    Store,
)
from ..store.facts import check_ttl
from . import keys
from .records import (
    Deployment,
    Machine,
    MachineOrder,
    Report,
    deployment_from,
    order_from,
    report_from,
    written,
)

#: How long orders outlive the last manager, and deployments.
_ORDERS_KEEP_S: Final = 86_400.0
_DEPLOYMENTS_KEEP_S: Final = 30 * 86_400.0


class MachineBoard:
    """See the module. Every method may be called from any thread.

    All raise UsageError where a name cannot stand in a key (1 to 200 letters, digits or
    '._-:/@+[]' for a machine), and RegistryUnavailable, Unauthenticated or Forbidden where the
    store does not do it.

    Args:
        store: where it is kept.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- operators

    def deploy(self, deployment: Deployment, before: Deployment | None = None) -> bool:
        """Say what a service is served by.

        Args:
            deployment: what it is.
            before: what it replaces; None: nothing that can be understood stands there.

        Returns:
            False, and nothing was done, where something else than `before` stands.
        """
        service = deployment.service
        stands = self.store.fields(keys.DEPLOYMENTS, [service])[0] or ""
        if _deployment_of(service, stands) != before:
            return False
        text = written(replace(deployment, since_ms=self.store.time_ms()))
        unchanged = FieldIs(keys.DEPLOYMENTS, service, stands)
        changes: list[Change] = [Put(keys.DEPLOYMENTS, {service: text}), _KEEP_DEPLOYMENTS]
        return self.store.commit([unchanged], changes) == 0

    def deployments(self) -> list[Deployment]:
        """All of them, by service; what cannot be understood is left out."""
        (found,) = self.store.read(keys.DEPLOYMENTS)
        read = [_deployment_of(service, text) for service, text in sorted(found.items())]
        return [one for one in read if one is not None]

    # --- agents

    def join(self, machine_id: str, incarnation: int, report: Report, ttl_s: float) -> None:
        """Be a machine, alive for `ttl_s` seconds after this and after each beat.

        Raises:
            LeaseSuperseded: a greater incarnation lives under the name.
        """
        facts = {"incarnation": str(incarnation), "report": written(report)}
        own = {keys.check_machine(machine_id): facts}
        if self.store.leases.register(keys.MACHINES, own, check_ttl(ttl_s)):
            raise LeaseSuperseded(
                f"another agent runs as machine {machine_id}, and began later: end one of the two,"
                " or name them apart with --machine"
            )

    def beat(
        self, machine_id: str, incarnation: int, ttl_s: float, report: Report | None = None
    ) -> MachineOrder | None:
        """Prolong the life of a machine; `report` replaces the former one.

        Returns:
            What it is to do. None where it has to join: it is dead, was never there, or a newer
            agent has its name.
        """
        facts = {} if report is None else {"report": written(report)}
        beat = MemberBeat(keys.check_machine(machine_id), incarnation, facts)
        if self.store.leases.beat(keys.MACHINES, beat, check_ttl(ttl_s)) != Beat.KEPT:
            return None
        # Beside the script: its user may read orders and not write them.
        return order_from(self.store.fields(keys.ORDERS, [machine_id])[0])

    def leave(self, machine_id: str, incarnation: int) -> None:
        """End being a machine; without effect where another incarnation has the name."""
        self.store.leases.leave(keys.MACHINES, keys.check_machine(machine_id), incarnation)

    # --- managers

    def machines(self) -> list[Machine]:
        """Those alive, in the order in which they joined."""
        living = self.store.leases.members(keys.MACHINES)
        (orders,) = self.store.read(keys.ORDERS)
        found = [
            Machine(
                one.member,
                one.incarnation,
                one.joined,
                report_from(one.facts.get("report", "")),
                order_from(orders.get(one.member)),
                one.remaining_s,
            )
            for one in living
        ]
        return sorted(found, key=lambda machine: machine.joined)

    def lead(self, holder: str, ttl_s: float) -> Leadership:
        """Take the lead of the placement if it is free, or prolong our own."""
        kept = {keys.ORDERS: _ORDERS_KEEP_S, keys.DEPLOYMENTS: _DEPLOYMENTS_KEEP_S}
        led = self.store.lead(keys.LEADER, holder, check_ttl(ttl_s), keep_s=kept)
        if led.change in ("gained", "first"):
            self.store.commit([fence_of(led)], _REFUSE_OLDER_AGENTS)
        return led

    def resign(self, holder: str) -> None:
        """Give the lead back; without effect where another one has it."""
        self.store.resign(keys.LEADER, holder)

    def order(self, fence: Leads, orders: Mapping[str, MachineOrder | None]) -> bool:
        """Write orders, by machine; None takes one away.

        Returns:
            False, and nothing was done, where another one leads.
        """
        texts = {
            keys.check_machine(machine_id): None if order is None else written(order)
            for machine_id, order in orders.items()
        }
        changes: list[Change] = [Put(keys.ORDERS, texts), Keep([keys.ORDERS], _ORDERS_KEEP_S)]
        return self.store.commit([fence], changes) == 0

    def forget(self, fence: Leads, service: str) -> bool:
        """Take away a deployment that is withdrawn.

        Returns:
            Whether it was done: `fence` leads, and it has not been deployed anew.
        """
        registry_keys.check_service(service)
        stands = self.store.fields(keys.DEPLOYMENTS, [service])[0] or ""
        deployment = _deployment_of(service, stands)
        if deployment is None or not deployment.withdrawn:
            return False
        unchanged = FieldIs(keys.DEPLOYMENTS, service, stands)
        return self.store.commit([fence, unchanged], [Put(keys.DEPLOYMENTS, {service: None})]) == 0

    def close(self) -> None:
        """End the connections that it keeps."""
        self.store.close()


def fence_of(led: Leadership) -> Leads:
    """What the writes of the placement's leader carry."""
    return Leads(keys.LEADER, led.holder, led.token)


def _deployment_of(service: str, text: str) -> Deployment | None:
    """The deployment of a service; None where it cannot be understood, or is another one's."""
    found = deployment_from(text)
    return found if found is not None and found.service == service else None


_KEEP_DEPLOYMENTS: Final = Keep([keys.DEPLOYMENTS], _DEPLOYMENTS_KEEP_S)
#: An agent of before the coordination store would register under a key that nobody reads any more.
#: With a value of another type there, it is refused, and says so.
_REFUSE_OLDER_AGENTS: Final = (
    Delete([keys.FORMER_FACTS]),
    Append(
        keys.FORMER_FACTS,
        {"text": "written by a newer version of edl-dist: update the agent"},
        1,
        _ORDERS_KEEP_S,
    ),
)
