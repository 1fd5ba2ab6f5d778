"""What a registry of leases is: who is alive, told by deadlines in the registry's own time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..errors import UsageError

Kind = Literal["teachers", "students", "managers"]

#: Facts outlive the deadline by this factor of the TTL, so that the dead can be named.
FACTS_TTLS = 3

#: Facts of a teacher that change with every batch.
_VOLATILE = frozenset({"in_flight", "samples_per_second"})
#: Facts of a student on which assignments depend.
_WANTED = frozenset({"want", "min", "priority"})

_REDIS_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class Member:
    """One member with a lease.

    Attributes:
        member: its id within the service.
        facts: what it told about itself; always holds `incarnation`, a decimal number.
        remaining_s: seconds until its deadline; negative when it has passed.
    """

    member: str
    facts: Mapping[str, str] = field(default_factory=dict)
    remaining_s: float = 0.0

    @property
    def incarnation(self) -> int:
        """Grows with each start of the member; 0 where a foreign writer put no number."""
        value = self.facts.get("incarnation", "")
        return int(value) if value.isascii() and value.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to one kind of members since a cursor.

    Attributes:
        cursor: where the next reading goes on.
        members: those that registered or whose facts changed, as they are now.
        left: ids of those that ended their lease themselves.
        lost: ids of those that a sweep took out after their deadline.
        full: `members` are all that there are, not only the changed ones.
    """

    cursor: int
    members: tuple[Member, ...] = ()
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    full: bool = False


class Registry(Protocol):
    """Leases with deadlines. Every method is one atomic step, and may raise RegistryUnavailable.

    `service` is "" for the kind "managers". Names that cannot stand in a key raise UsageError.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages: without a password."""
        ...

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        """Begin a lease of `ttl_s` seconds, or begin it anew with these facts in place of others.

        Args:
            kind: which kind of member.
            service: which service it belongs to.
            member: its id.
            facts: what it tells; `incarnation`, a decimal number, decides who holds the id.
            ttl_s: seconds without a beat after which it is dead.

        Raises:
            LeaseSuperseded: a greater incarnation holds the id.
            RegistryUnavailable: the registry does not answer.
        """
        ...

    def beat(
        self,
        kind: Kind,
        service: str,
        member: str,
        ttl_s: float,
        *,
        incarnation: int,
        facts: Mapping[str, str] | None = None,
    ) -> bool:
        """Prolong a lease; `facts` are those that changed.

        Returns:
            False when there is no such lease or another incarnation holds it: register again.
        """
        ...

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False when there is none, or another incarnation holds it."""
        ...

    def members(self, kind: Kind, service: str) -> list[Member]:
        """Those whose deadline has not passed, by id."""
        ...

    def names(self, kind: Kind, service: str) -> set[str]:
        """Ids of those that no sweep has taken out; cheap, it reads no facts."""
        ...

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        """What happened since `cursor`; all members for 0.

        Facts are read for changed members only, so that looking every 50 ms costs nearly nothing
        when nothing happened. A cursor older than a minute may miss changes: start again from 0.
        """
        ...

    def sweep(self, kind: Kind, service: str) -> list[str]:
        """Take out those whose deadline has passed, at most 1,000 at once, and name them."""
        ...

    def services(self) -> list[str]:
        """Names of the services that have teachers or students, sorted."""
        ...

    def time_ms(self) -> int:
        """The registry's clock: milliseconds since 1970."""
        ...

    def close(self) -> None:
        """Let go of connections. A closed registry opens them again when it is used."""
        ...


def connect(url: str, timeout_s: float = 1.0) -> Registry:
    """Return the registry at `url`; it connects when it is first used.

    Args:
        url: `redis://[:password@]host:port[/db]`, `rediss://...`, `unix:///path`, or `memory://NAME`
            (a registry within this process, shared by its name).
        timeout_s: seconds after which one step counts as not answered.

    Raises:
        UsageError: `url` is none of these.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        from .memory_registry import MemoryRegistry

        return MemoryRegistry.shared(url)
    if scheme in _REDIS_SCHEMES:
        from .redis_registry import RedisRegistry

        return RedisRegistry(url, timeout_s=timeout_s)
    raise UsageError(
        f"a coordinator is named by a URL such as redis://127.0.0.1:6379, not {masked(url)!r}"
    )


def concerns_managers(kind: Kind, facts: Iterable[str]) -> bool:
    """Whether a change of these facts is noted for managers, or reaches `edl status` only."""
    if kind == "students":
        return not _WANTED.isdisjoint(facts)
    return not _VOLATILE.issuperset(facts)


def masked(url: str) -> str:
    """The URL as it may stand in a message, valid or not: user and password are hidden."""
    # Up to the last '@': a password that is not percent-encoded may hold whatever ends a host.
    shown = re.sub(r"^(\w+://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.split("[?#]", shown, maxsplit=1)[0]
