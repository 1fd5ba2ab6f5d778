"""What a registry of leases is: who is alive, told by deadlines in the registry's own time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ...errors import RegistryUnavailable, StartCancelled, UsageError
from .noted import concerns_managers
from .records import (
    Beat,
    Changes,
    DesiredCount,
    Epoch,
    Kind,
    Leadership,
    LogEntry,
    Mandate,
    Member,
    MemberBeat,
    Plan,
    Row,
    Table,
)
from .redis_url import is_redis_url, masked

if TYPE_CHECKING:
    from ...lifecycle import Stop

_T = TypeVar("_T")

__all__ = [
    "FACTS_TTLS",
    "PLAIN_TTLS",
    "Beat",
    "Changes",
    "DesiredCount",
    "Epoch",
    "Kind",
    "Leadership",
    "LogEntry",
    "Mandate",
    "Member",
    "MemberBeat",
    "Plan",
    "Registry",
    "Row",
    "Table",
    "concerns_managers",
    "connect",
    "masked",
    "with_patience",
]

#: Seconds, in TTLs, for which a member's beats do no more than raise its deadline, as far as there
#: is nothing to tell that cannot wait: of five beats one does all (`redis_beats`).
PLAIN_TTLS: Final = 1.85
#: Facts outlive the deadline by this factor of the TTL, so that the dead can be named.
FACTS_TTLS: Final = 5
_HOST_AND_PORT = re.compile(r"[\w.-]+(:\d+)?", re.ASCII)
#: Calls of a starting process to a Redis that does not answer in time.
START_ATTEMPTS: Final = 8


class Registry(Protocol):
    """Leases with deadlines, and per service one table that the holder of a lease may write.

    Every method is one atomic step where it does not say otherwise. Each may raise
    RegistryUnavailable when the registry does not answer, Unauthenticated when it does not know
    our user or password, Forbidden when that user may not do this. `service` is "" for the kind
    "managers". Names that cannot stand in a key raise UsageError.
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

    def register_many(
        self, kind: Kind, service: str, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        """Many at once, id -> facts, each as one atomic step.

        Returns:
            Ids that a greater incarnation holds.
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
        concerns: bool | None = None,
    ) -> Beat:
        """Prolong a lease; `facts` are those that changed.

        `concerns` says whether managers hear of the change; None: by the names of the facts.
        """
        ...

    def beat_many(
        self, kind: Kind, service: str, beats: Sequence[MemberBeat], ttl_s: float
    ) -> list[Beat]:
        """Many beats in few round trips, each one atomic step; their answers in their order."""
        ...

    def request_drain(self, service: str, teacher_id: str) -> bool:
        """Ask a teacher to finish what it has and leave; False when it has no lease.

        Its state is "draining" from now on, and its next beat returns DRAIN.
        """
        ...

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False when there is none, or another incarnation holds it."""
        ...

    def members(self, kind: Kind, service: str) -> list[Member]:
        """Those whose deadline has not passed, by id."""
        ...

    def read(self, kind: Kind, service: str, names: Sequence[str]) -> list[Member]:
        """Those named that have facts, in that order; one whose lease is over has no time left."""
        ...

    def names(self, kind: Kind, service: str) -> set[str]:
        """Ids of those that no sweep has taken out; cheap, it reads no facts."""
        ...

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        """What happened since `cursor`; all members for 0.

        Facts are read for changed members only, so that looking every 100 ms costs nearly nothing
        when nothing happened; and it says when a sweep is worth its price. A cursor older than a
        minute may miss changes: start again from 0. Who left is known by its own mark, not by what
        has expired: an outage makes nobody leave.
        """
        ...

    def sweep(self, kind: Kind, service: str, mandate: Mandate | None = None) -> list[str]:
        """Take out those whose deadline has passed, at most 1,000 at once, and name them.

        With a mandate nobody is taken out beyond it.
        """
        ...

    def services(self) -> list[str]:
        """Names of the services that have teachers or students, sorted."""
        ...

    def logs(self) -> list[str]:
        """Names of the services that have a log, sorted: also those where nobody is left."""
        ...

    def server_info(self) -> dict[str, str]:
        """What answers: `server_name`, `version`, `role`, `maxmemory_policy`; nothing in memory."""
        ...

    def check_writes(self) -> bool:
        """Find out whether writes are accepted, without writing; False: our user may not try.

        Raises:
            RegistryUnavailable: they are refused, or the registry does not answer.
        """
        ...

    def time_ms(self) -> int:
        """The registry's clock: milliseconds since 1970."""
        ...

    def lead(self, service: str, token: str, ttl_s: float) -> Leadership:
        """Take the lease to compute a service's assignments if it is free, or prolong our own.

        Whoever holds it, the answer says so.
        """
        ...

    def resign(self, service: str, token: str) -> bool:
        """Give that lease back; False when `token` does not hold it."""
        ...

    def write(
        self,
        service: str,
        token: str,
        expected: Epoch,
        epoch: Epoch,
        rows: Mapping[str, Row | None],
        events: Sequence[LogEntry] = (),
        admitted: Mapping[str, int | None] | None = None,
    ) -> bool:
        """Change the assignment table, the log and who is admitted, in one step or not at all.

        Args:
            service: whose table.
            token: has to hold the lease of `lead` now.
            expected: the epoch that the table has to stand at.
            epoch: what it stands at afterwards; above `expected` if there are rows.
            rows: student id -> row, None to take it out. Other rows stay as they are.
            events: appended to the log.
            admitted: teacher id -> incarnation that was probed well, None to forget it.

        Returns:
            False when another one leads or the table stands elsewhere: nothing was written.

        Raises:
            UsageError: `epoch` is not above `expected`.
        """
        ...

    def table(self, service: str, since: Epoch | None = None) -> Table:
        """Rows written since an epoch; all of them after another term, or for None."""
        ...

    def admitted(self, service: str) -> dict[str, int]:
        """Teacher id -> incarnation that was probed well."""
        ...

    def events(self, service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        """The log, oldest first: what came after an id; with `last`, the latest so many of it."""
        ...

    def plan(self, service: str) -> Plan:
        """Which content the service is meant to serve."""
        ...

    def set_plan(self, service: str, plan: Plan, expected_version: int) -> bool:
        """Change it, as version `expected_version` + 1; False when another version stands."""
        ...

    def move_plan(
        self, service: str, token: str, epoch: Epoch, plan: Plan, entry: LogEntry
    ) -> bool:
        """Change it as the leader, and say so in the log: both or neither.

        Args:
            service: whose.
            token: has to hold the lease of `lead` now.
            epoch: what the table has to stand at.
            plan: what it becomes; `version` is the one that has to stand until now.
            entry: appended to the log.

        Returns:
            False when another one leads, or the table or the plan is another one.
        """
        ...

    def desired(self, service: str) -> DesiredCount | None:
        """How many teachers the service should have; None: no leader has said so lately."""
        ...

    def set_desired(
        self, service: str, token: str, count: int, reason: str, entry: LogEntry | None = None
    ) -> bool:
        """Say how many teachers the service should have, as its leader; kept for ten minutes.

        Args:
            service: whose.
            token: has to hold the lease of `lead` now.
            count: so many.
            reason: why, in words.
            entry: appended to the log, or none.

        Returns:
            False when another one leads: nothing was written.
        """
        ...

    def close(self) -> None:
        """Let go of connections. A closed registry opens them again when it is used."""
        ...


def with_patience(call: Callable[[], _T], stop: Stop, attempts: int = START_ATTEMPTS) -> _T:
    """Make a call that a process needs to start, again if Redis does not answer in time.

    Args:
        call: what to do; it must be harmless to repeat, as a late answer may follow a success.
        stop: once it is requested, no further attempt is made.
        attempts: how often; each takes up to twice the timeout of the connection, 2 s by default.

    Raises:
        RegistryUnavailable: Redis cannot be reached, or did not answer any attempt.
        StartCancelled: it did not answer, and `stop` was requested.
    """
    while True:
        attempts -= 1
        try:
            return call()
        except RegistryUnavailable as error:
            if stop.requested:
                raise StartCancelled(str(error)) from None
            if not (attempts and error.timed_out):
                raise


def connect(url: str, timeout_s: float = 1.0) -> Registry:
    """Return the registry at `url`; it connects when it is first used.

    Args:
        url: a Redis by `redis://[user:password@]host:port[/db]`, `rediss://...` (TLS),
            `unix:///path`, `redis+sentinel://host:port[,host:port...]/MASTER[/db]` or
            `rediss+sentinel://...`, with the parameters that `redis_url` names; or
            `memory://NAME` (a registry within this process, shared by its name).
        timeout_s: seconds after which one step counts as not answered.

    Raises:
        UsageError: `url` is none of these.
    """
    if url.partition(":")[0].lower() == "memory":
        from .memory_registry import MemoryRegistry

        return MemoryRegistry.shared(url)
    if is_redis_url(url):
        from .redis_registry import RedisRegistry

        return RedisRegistry(url, timeout_s=timeout_s)
    hint = f"; did you mean redis://{url}?" if _HOST_AND_PORT.fullmatch(url) else ""
    raise UsageError(
        f"a coordinator is named by a URL such as redis://127.0.0.1:6379, not {masked(url)!r}{hint}"
    )
