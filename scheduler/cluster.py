"""What a cluster is made of: kinds of devices, how many, what they cost, how they are wired.

Section 3.1 of the paper has two kinds, dedicated and elastic ones; here a kind is a line of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Literal

from .units import Bytes, BytesPerSecond, Count, NotNegative, Number, SecondsOrZero

#: What a device may do in a plan.
Role = Literal["student", "teacher"]
#: A share above 0: what is there at no time is left out of a cluster.
Availability = Annotated[float, Number("share", above=0, at_most=1)]


@dataclass(frozen=True, slots=True)
class Link:
    """How a device is reached.

    Attributes:
        bandwidth_bytes_per_s: each way, of all that goes over it together.
        latency_s: one way.
        jitter: standard deviation of the time of one transfer, as a share of it.
    """

    bandwidth_bytes_per_s: BytesPerSecond = 1.25e9
    latency_s: SecondsOrZero = 0.0
    jitter: NotNegative = 0.0

    def __post_init__(self) -> None:
        numbers = (self.bandwidth_bytes_per_s, self.latency_s, self.jitter)
        if not (all(map(isfinite, numbers)) and numbers[0] > 0 and min(numbers[1:]) >= 0):
            raise ValueError(f"a link has a bandwidth above 0, and neither is negative: {numbers}")


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that are alike.

    Attributes:
        name: of the kind; rates of a job name it.
        count: how many there are.
        price_per_hour: of one, in the cluster's currency; 0: it is lent for nothing.
        memory_bytes: of one; None: enough for anything.
        link: to the rest of the cluster; each device has one of its own.
        tenure: "dedicated" devices stay; "spot" ones come and go, and are teachers alone.
        availability: the share of the time that one is there.
        roles: what it may do.

    Raises:
        ValueError: a bound is broken, or a spot device is to be a student.
    """

    name: str
    count: Count = 1
    price_per_hour: NotNegative = 0.0
    memory_bytes: Bytes | None = None
    link: Link = Link()
    tenure: Literal["dedicated", "spot"] = "dedicated"
    availability: Availability = 1.0
    roles: tuple[Role, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a kind of devices has a name")
        if self.count < 1 or not 0 <= self.price_per_hour < float("inf"):
            raise ValueError(f"{self.name}: needs count >= 1 and price_per_hour >= 0")
        if not 0 < self.availability <= 1:
            raise ValueError(f"{self.name}: needs 0 < availability <= 1, not {self.availability}")
        if self.roles is not None and not self.roles:
            raise ValueError(f"{self.name}: roles: at least one of student and teacher")
        if self.tenure == "spot" and self.roles is not None and "student" in self.roles:
            raise ValueError(f"{self.name}: spot devices leave at any time: roles: [teacher]")

    def may_be(self, role: Role) -> bool:
        """Whether it may do that."""
        if self.roles is None:
            return role == "teacher" or self.tenure == "dedicated"
        return role in self.roles

    @property
    def expected(self) -> float:
        """How many are there on average."""
        return self.count * self.availability


@dataclass(frozen=True, slots=True)
class Cluster:
    """All devices that a plan may use.

    Attributes:
        devices: their kinds, each name once.
        currency: of the prices.

    Raises:
        ValueError: there is none, or two of one name.
    """

    devices: tuple[DeviceKind, ...]
    currency: str = "$"

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.devices]
        if not names:
            raise ValueError("a cluster has at least one kind of devices")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two kinds of devices are called {twice[0]!r}")

    def kind(self, name: str) -> DeviceKind:
        """The kind of that name.

        Raises:
            ValueError: there is none.
        """
        for kind in self.devices:
            if kind.name == name:
                return kind
        known = ", ".join(kind.name for kind in self.devices)
        raise ValueError(f"the cluster has no devices {name!r}; there are: {known}")
