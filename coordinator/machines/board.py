"""The machine board: which machines are there for teachers, and what they are to serve; a contract.

A *machine* is one agent (`edl agent`), alive as long as it beats: it registers with its devices
before anybody knows what it will serve (the paper, section 3.1). A *deployment* says which model
serves a service. One manager leads the placement, and writes *orders*: the one that stands is what
the machine does, so that nothing is lost when an order is never read. `redis_board.py` keeps a
board in Redis, in Redis time; `memory_board.py` is its twin for one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from ..registry.records import LogEntry
from .records import Deployment, Machine, Order, Report

__all__ = [
    "Beaten",
    "Deployment",
    "Lead",
    "LogEntry",
    "Machine",
    "MachineBoard",
    "Order",
    "Report",
]

#: How long what the board holds of machines outlives the last beat of any.
#: How long deployments outlive the last manager.
DEPLOYMENTS_KEEP_S: Final = 30 * 86_400.0

#: "": another one leads; "kept": as before; "gained": since this call; "first": so, and nobody led
#: before, since the board is new or has lost all that it held.
Lead = Literal["", "kept", "gained", "first"]


@dataclass(frozen=True, slots=True)
class Beaten:
    """What a beat is answered.

    Attributes:
        standing: "known": it lives on; "unknown": it is dead, or was never there, and has to join;
            "superseded": a newer agent has its name.
        order: what it is to do.
    """

    standing: Literal["known", "unknown", "superseded"]
    order: Order = field(default_factory=Order)


class MachineBoard(Protocol):
    """See the module. Every method may be called from any thread.

    All raise UsageError where a name cannot stand in a key (1 to 200 letters, digits or
    '._-:/@+[]' for a machine), and RegistryUnavailable, Unauthenticated or Forbidden where Redis
    does not do it.
    """

    # --- operators

    def deploy(self, deployment: Deployment, before: Deployment | None = None) -> bool:
        """Say what a service is served by.

        Args:
            deployment: what it is.
            before: what it replaces; None: nothing that can be understood stands there.

        Returns:
            False, and nothing was done, where something else than `before` stands.
        """

    def deployments(self) -> list[Deployment]:
        """All of them, by service; what cannot be understood is left out."""

    # --- agents

    def join(self, machine_id: str, incarnation: int, report: Report, ttl_s: float) -> None:
        """Be a machine, alive for `ttl_s` seconds after this and after each beat.

        Raises:
            LeaseSuperseded: a greater incarnation lives under the name.
        """

    def beat(self, machine_id: str, incarnation: int, report: Report | None = None) -> Beaten:
        """Prolong the life of a machine; `report` replaces the former one."""

    def leave(self, machine_id: str, incarnation: int) -> None:
        """End being a machine; without effect where another incarnation has the name."""

    # --- managers

    def machines(self) -> list[Machine]:
        """Those alive, in the order in which they joined."""

    def lead(self, token: str, ttl_s: float) -> Lead:
        """Take the lead of the placement if it is free, or prolong our own."""

    def resign(self, token: str) -> None:
        """Give the lead back; without effect where another one has it."""

    def order(self, token: str, orders: Mapping[str, Order | None]) -> bool:
        """Write orders, by machine; None takes one away.

        Returns:
            False, and nothing was done, where `token` does not lead.
        """

    def forget(self, token: str, service: str) -> bool:
        """Take away a deployment that is withdrawn.

        Returns:
            Whether it was done: `token` leads, and it has not been deployed anew.
        """

    def note(self, service: str, entries: Sequence[LogEntry]) -> None:
        """Append to the log of a service, where `edl events` shows it."""

    def noted(self, service: str) -> list[LogEntry]:
        """The log of a service, oldest first."""

    def close(self) -> None:
        """End the connections that it keeps."""
