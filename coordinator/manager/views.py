"""What a manager knows of itself, for metrics and whoever asks how it is: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...scheduler.autoscale import Desired


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A service as the manager that leads it sees it. Of all managers only one has it.

    Attributes:
        term: first part of the epoch of its assignments.
        counter: second part.
        recovering: sets only grow now.
        teachers: "serving", "draining", "waiting" (for a probe) or "refused" -> how many.
        students: how many have a lease.
        idle: live teachers that nobody is assigned to.
        look_s: seconds that the last look at the registry took, the solving included.
        solve_s: seconds that the last computation of assignments took.
        rows: rows of the table written since this manager started.
        recoveries: terms begun since this manager started.
        refusals: probes that ended in a refusal since this manager started.
        desired: how many teachers the service should have; None: not decided yet.
    """

    term: int = 0
    counter: int = 0
    recovering: bool = False
    teachers: Mapping[str, int] = field(default_factory=dict)
    students: int = 0
    idle: int = 0
    look_s: float = 0.0
    solve_s: float = 0.0
    rows: int = 0
    recoveries: int = 0
    refusals: int = 0
    desired: Desired | None = None


@dataclass(frozen=True, slots=True)
class HubView:
    """The students of a service whose streams one manager holds: sums over managers are the whole.

    Attributes:
        streams: how many.
        students: state -> how many.
        wanted: teachers that they want, all together.
        assigned: teachers that they are assigned, all together.
        samples_per_second: that they train.
        starved_s, blocked_s, source_wait_s: sums of what they have reported.
        pushed: assignments sent since this manager started.
        look_s: seconds that the last look at the registry took.
    """

    streams: int = 0
    students: Mapping[str, int] = field(default_factory=dict)
    wanted: int = 0
    assigned: int = 0
    samples_per_second: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    source_wait_s: float = 0.0
    pushed: int = 0
    look_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One service at one manager.

    Attributes:
        name: of the service.
        leader: address of the manager that leads it, as known here; empty: none.
        leading: what this manager knows as its leader; None: it does not lead.
        hub: what it knows of the streams that it holds; None: it holds none.
    """

    name: str
    leader: str = ""
    leading: LeaderView | None = None
    hub: HubView | None = None


@dataclass(frozen=True, slots=True)
class ManagerView:
    """One manager.

    Attributes:
        address: its own.
        answering: whether the registry answers it and does its work.
        services: by name.
        refusal: why a registry that answers refuses to work; empty: it does not refuse.
    """

    address: str
    answering: bool
    services: tuple[ServiceView, ...] = ()
    refusal: str = ""
