"""The coordination store: three primitives on Redis, in Redis time.

A *lease set* holds the facts and the deadline of each live member; heartbeats extend the deadline.
A *leadership* has one holder at a time, with a fencing token that grows with each change. A
*document* is a hash changed by compare-and-set: `Store.commit` makes all changes if all conditions
hold, for example that the writer still leads. There are also logs and sets of recently used names.
The registry, the job and machine boards and the queue are schemas on top.

`RedisStore` uses Redis or Valkey. `MemoryStore` is within one process, for tests, for training on
one node, and for `memory://NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ...runtime.errors import UsageError
from .records import (
    Append,
    Beat,
    Change,
    Changes,
    Condition,
    Leadership,
    LeaseSet,
    LogRecord,
    Member,
    MemberBeat,
    ShardKeys,
    SweepPermit,
)
from .redis_url import is_redis_url, masked

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+(:\d+)?", re.ASCII)


class Leases(Protocol):
    """Sets of members with deadlines. The step of each member is atomic."""

    def register(
        self, leases: LeaseSet, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        """Start leases of `ttl_s` seconds, or restart them with these facts.

        Args:
            leases: the set.
            members: id -> facts. The greatest `incarnation`, a decimal number, holds the id.
            ttl_s: seconds after the last heartbeat at which the lease expires.

        Returns:
            Ids held by a greater incarnation; these were not changed.
        """
        ...

    def beat(self, leases: LeaseSet, beat: MemberBeat, ttl_s: float) -> Beat:
        """Renew a lease and add the changed facts."""
        ...

    def beat_many(self, beats: Sequence[tuple[LeaseSet, MemberBeat]], ttl_s: float) -> list[Beat]:
        """Renew many leases in few round trips; the answers are in the order of `beats`."""
        ...

    def leave(self, leases: LeaseSet, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False if there is none, or another incarnation holds it."""
        ...

    def request_drain(self, leases: LeaseSet, member: str) -> bool:
        """Request a member of a followed set to drain; its next heartbeat returns DRAIN.

        Its `state` is "draining" from now on. Returns False if it has no lease.
        """
        ...

    def members(self, leases: LeaseSet) -> list[Member]:
        """Return the members whose deadline has not passed, sorted by id."""
        ...

    def read(self, leases: LeaseSet, names: Sequence[str]) -> list[Member]:
        """Return the named members that have facts, in that order, expired ones included."""
        ...

    def names(self, leases: LeaseSet) -> set[str]:
        """Return the ids that no sweep has removed; cheap, as it reads no facts."""
        ...

    def changes(self, leases: LeaseSet, cursor: int = 0) -> Changes:
        """Return the changes of a followed set since `cursor`; 0: all members.

        With a cursor older than a minute, changes may be missing: start again from 0.
        """
        ...

    def sweep(self, leases: LeaseSet, permit: SweepPermit | None = None) -> list[str]:
        """Remove at most 1,000 expired members from a followed set, and return their ids.

        With a permit, none is removed after its time, or by another server process than its own.
        """
        ...


class Store(Protocol):
    """A coordination store. Methods may be called from any thread.

    Leaderships and documents change in atomic steps. All methods raise RedisUnavailable if the
    store does not answer or refuses, Unauthenticated if it rejects the user or password, and
    Forbidden if the user lacks the permission.
    """

    @property
    def leases(self) -> Leases:
        """The lease sets."""
        ...

    @property
    def url(self) -> str:
        """URL for messages, without the password."""
        ...

    def time_ms(self) -> int:
        """Return the store's clock, in milliseconds since 1970."""
        ...

    def server_info(self) -> dict[str, str]:
        """Return `server_name`, `version`, `role` and `maxmemory_policy`; {} in memory."""
        ...

    def check_writes(self) -> bool:
        """Test without writing whether writes are accepted; False: the user may not test it."""
        ...

    def close(self) -> None:
        """Close the connections. A closed store reconnects when it is used."""
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
        """Take a leadership if it is free, or renew ours; returns who leads.

        Args:
            key: key of the leadership.
            holder: our name.
            ttl_s: seconds until it ends without a renewal.
            keep_s: keys that the leader keeps alive -> seconds until they expire.
            facts: what the leader publishes about itself.
            identify: fill in `Leadership.registry_id`.
        """
        ...

    def leader(self, key: str) -> Leadership | None:
        """Return the leader with its facts and the time left; None: there is none."""
        ...

    def resign(self, key: str, holder: str) -> bool:
        """Give a leadership back; False if `holder` does not have it."""
        ...

    # --- documents

    def read(self, *keys: str) -> list[dict[str, str]]:
        """Read documents in one atomic step; {} for one that does not exist."""
        ...

    def fields(self, key: str, names: Sequence[str]) -> list[str | None]:
        """Read fields of a document."""
        ...

    def changed_rows(
        self, key: str, changes: str, since: tuple[int, int] | None
    ) -> tuple[bool, tuple[int, int], dict[str, str]]:
        """Read the rows of a document that `PutRows` changed since an epoch (`=term`, `=counter`).

        Returns:
            Whether these are all rows, the present epoch, and row -> text, "" for a deleted row.
            All rows include the fields that begin with "=".
        """
        ...

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> int:
        """Make all changes if all conditions hold.

        Returns:
            0 if the changes were made, else the position of the first failed condition, from 1.
        """
        ...

    # --- logs and recently used names

    def log(self, key: str, after: str = "", count: int = 0, last: int = 0) -> list[LogRecord]:
        """Return log entries after an id, oldest first: the first `count` or the last `last`."""
        ...

    def append(self, entry: Append) -> str:
        """Append to a log without a leadership; returns the id of the entry."""
        ...

    def record_use(self, key: str, name: str, keep_s: float | None = None) -> None:
        """Record that a name is in use now; delete names not used for `keep_s` seconds."""
        ...

    def used_names(self, key: str, since_ms: int | None = None) -> list[str]:
        """Return the names used since then, sorted."""
        ...

    def forget(self, key: str, name: str, age_s: float) -> None:
        """Delete a name whose last use is more than `age_s` seconds ago."""
        ...

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Return whether each key exists; keys may belong to different services."""
        ...

    # --- shards

    def lease_shard(
        self,
        keys: ShardKeys,
        generation: int,
        epoch: int,
        rank: int,
        request_number: int | None,
        most: int | None,
        keep_s: float,
    ) -> tuple[int, int] | str | None:
        """Lease the first free shard of an epoch; see `JobBoard.lease`.

        Returns:
            Start and stop; None if no shard is free; the number of the current generation as text
            if it is not `generation` ("": there is none).
        """
        ...


def open_store(url: str, timeout_s: float = 1.0) -> Store:
    """Return the store at `url`; it connects at its first use.

    Args:
        url: URL of a Redis as `redis_url` takes it, or `memory://NAME` for a store within this
            process, shared by name.
        timeout_s: timeout of a connection and of each answer, in seconds.

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
        f"the URL of a coordinator is for example redis://127.0.0.1:6379, not {masked(url)!r}{hint}"
    )
