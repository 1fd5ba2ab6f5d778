"""The coordination store: three primitives on Redis, in Redis time.

A *lease set* knows which members are alive: facts, and a deadline that beats raise. A *leadership*
has one holder at a time, under a fencing token that grows with each change. A *document* is a hash
that is changed by compare-and-set: `Store.commit` runs all changes if all conditions hold, one of
them that the writer still leads. Beside them there are logs, and sets of names that were in use
lately. The registry, the boards of jobs and machines and the queue are schemas on top.

`RedisStore` keeps it in Redis or Valkey; `MemoryStore` keeps it within a process, for tests, for a
training of one node and for `memory://NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ...runtime.errors import UsageError
from .records import (
    FACTS_TTLS,
    AddRanked,
    Append,
    Beat,
    Change,
    Changes,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leadership,
    Leads,
    LeaseSet,
    LogRecord,
    Member,
    MemberBeat,
    NumberIs,
    Once,
    Put,
    PutRows,
    ShardKeys,
    Stamp,
    SweepPermit,
)
from .redis_url import is_redis_url, masked

__all__ = [
    "FACTS_TTLS",
    "AddRanked",
    "Append",
    "Beat",
    "Change",
    "Changes",
    "Condition",
    "Delete",
    "FieldIs",
    "Keep",
    "Leadership",
    "Leads",
    "LeaseSet",
    "Leases",
    "LogRecord",
    "Member",
    "MemberBeat",
    "NumberIs",
    "Once",
    "Put",
    "PutRows",
    "ShardKeys",
    "Stamp",
    "Store",
    "SweepPermit",
    "open_store",
]

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+(:\d+)?", re.ASCII)


class Leases(Protocol):
    """Sets of members with deadlines. Each member's step is atomic."""

    def register(
        self, leases: LeaseSet, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        """Begin leases of `ttl_s` seconds, or begin them anew with these facts.

        Args:
            leases: which set.
            members: id -> facts; `incarnation`, a decimal number, decides who holds the id.
            ttl_s: seconds without a beat after which a member is dead.

        Returns:
            Ids that a greater incarnation holds; nothing was done for them.
        """
        ...

    def beat(self, leases: LeaseSet, beat: MemberBeat, ttl_s: float) -> Beat:
        """Renew a lease, and add the facts that changed."""
        ...

    def beat_many(self, beats: Sequence[tuple[LeaseSet, MemberBeat]], ttl_s: float) -> list[Beat]:
        """Many beats in few round trips; their answers in their order."""
        ...

    def leave(self, leases: LeaseSet, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False when there is none, or another incarnation holds it."""
        ...

    def request_drain(self, leases: LeaseSet, member: str) -> bool:
        """Ask a member of a followed set to leave; its next beat returns DRAIN.

        False when it has no lease. Its `state` is "draining" from now on.
        """
        ...

    def members(self, leases: LeaseSet) -> list[Member]:
        """Those whose deadline has not passed, by id."""
        ...

    def read(self, leases: LeaseSet, names: Sequence[str]) -> list[Member]:
        """Those named that have facts, in that order; one whose lease is over has no time left."""
        ...

    def names(self, leases: LeaseSet) -> set[str]:
        """Ids of those that no sweep has taken out; cheap, it reads no facts."""
        ...

    def changes(self, leases: LeaseSet, cursor: int = 0) -> Changes:
        """What happened in a followed set since `cursor`; all members for 0.

        A cursor older than a minute may miss changes: start again from 0.
        """
        ...

    def sweep(self, leases: LeaseSet, permit: SweepPermit | None = None) -> list[str]:
        """Take members past their deadline out of a followed set, at most 1,000, and name them.

        A permit bounds which expired leases count as deaths.
        """
        ...


class Store(Protocol):
    """See the module. Every method may be called from any thread, and is one atomic step.

    All raise RegistryUnavailable when the store does not answer or refuses, Unauthenticated when it
    does not know our user or password, Forbidden when that user may not do this.
    """

    @property
    def leases(self) -> Leases:
        """The lease sets."""
        ...

    @property
    def url(self) -> str:
        """Where it is, for messages: without a password."""
        ...

    def time_ms(self) -> int:
        """The store's clock: milliseconds since 1970."""
        ...

    def server_info(self) -> dict[str, str]:
        """What answers: `server_name`, `version`, `role`, `maxmemory_policy`; nothing in memory."""
        ...

    def check_writes(self) -> bool:
        """Find out whether writes are accepted, without writing; False: our user may not try."""
        ...

    def close(self) -> None:
        """Let go of connections. A closed store opens them again when it is used."""
        ...

    # --- leadership

    def lead(
        self,
        key: str,
        holder: str,
        ttl_s: float,
        *,
        keep_s: Mapping[str, float] | None = None,
        facts: str = "",
        identify: bool = False,
    ) -> Leadership:
        """Take a leadership that is free, or prolong our own; the answer says who leads.

        Args:
            key: of the leadership.
            holder: our name.
            ttl_s: seconds after which it ends, unless it is prolonged.
            keep_s: keys that the leader keeps alive: seconds until each expires.
            facts: what the leader says of itself.
            identify: report `Leadership.registry_id`.
        """
        ...

    def leader(self, key: str) -> Leadership | None:
        """Who leads, with its facts and the time that is left; None: nobody."""
        ...

    def resign(self, key: str, holder: str) -> bool:
        """Give a leadership back; False when `holder` does not have it."""
        ...

    # --- documents

    def read(self, *keys: str) -> list[dict[str, str]]:
        """Documents as they stand at one moment; {} for one that does not exist."""
        ...

    def fields(self, key: str, names: Sequence[str]) -> list[str | None]:
        """Some fields of a document."""
        ...

    def changed_rows(
        self, key: str, changes: str, since: tuple[int, int] | None
    ) -> tuple[bool, tuple[int, int], dict[str, str]]:
        """Rows of a document that `PutRows` changed since an epoch (`=term`, `=counter`).

        Returns:
            Whether these are all rows, the epoch now, and row -> text: "" was deleted. All rows
            come with the fields that begin with "=".
        """
        ...

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> int:
        """Make all changes if all conditions hold.

        Returns:
            0 when it was done, else the position of the first condition that does not hold, from 1.
        """
        ...

    # --- logs, and names in use

    def log(self, key: str, after: str = "", count: int = 0, last: int = 0) -> list[LogRecord]:
        """Entries of a log behind an id, oldest first: the first `count`, or the `last` so many."""
        ...

    def append(self, entry: Append) -> str:
        """Append to a log, whoever leads; returns the entry's id."""
        ...

    def sign(self, key: str, name: str, keep_s: float | None = None) -> None:
        """Remember that a name is in use now; forget those that were not for `keep_s`."""
        ...

    def signed(self, key: str, since_ms: int | None = None) -> list[str]:
        """Names that were in use since then, sorted."""
        ...

    def forget(self, key: str, name: str, age_s: float) -> None:
        """Forget a name, if it was in use longer ago than `age_s`."""
        ...

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Which keys exist; they may belong to different services."""
        ...

    # --- shards

    def lease_shard(
        self,
        keys: ShardKeys,
        generation: int,
        epoch: int,
        rank: int,
        question: int | None,
        most: int | None,
        keep_s: float,
    ) -> tuple[int, int] | str | None:
        """Lease the first free shard of an epoch; see `JobBoard.lease`.

        Returns:
            Start and stop; None when there is none; the current generation's number as text ("":
            there is none) when it is another one.
        """
        ...


def open_store(url: str, timeout_s: float = 1.0) -> Store:
    """The store at `url`; it connects when it is first used.

    Args:
        url: of a Redis, as `redis_url` takes it, or `memory://NAME` for one within this process,
            shared by its name.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: `url` is neither.
    """
    if url.partition(":")[0].lower() == "memory":
        from .memory_store import MemoryStore

        return MemoryStore.shared(url)
    if is_redis_url(url):
        from .redis_store import RedisStore

        return RedisStore(url, timeout_s)
    hint = f"; did you mean redis://{url}?" if _HOST_AND_PORT.fullmatch(url) else ""
    raise UsageError(
        f"a coordinator is named by a URL such as redis://127.0.0.1:6379, not {masked(url)!r}{hint}"
    )
