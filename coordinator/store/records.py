"""Records of a store: leases, leaderships, logs, the parts of a transaction, and facts as JSON."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from ...runtime.errors import RedisUnavailable, UsageError

if TYPE_CHECKING:
    from . import Store

#: Facts expire this many TTLs after a *full* heartbeat, one that extends their expiry. They outlive
#: the deadline, so that managers can describe dead members.
FACTS_TTLS: Final = 5
#: For this many TTLs after a full heartbeat, heartbeats without facts are *plain*: they only raise
#: the deadline. With 2.5 heartbeats per TTL, every fifth one is full.
PLAIN_TTLS: Final = 1.85
#: Fact of a member: "1" if it was requested to drain; the member may report its `state` later.
DRAIN: Final = "drain"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MEMBER: Final = re.compile(r"[A-Za-z0-9._:/@+\[\]-]{1,200}")
_LOG_ID: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
#: Begins the entry of a changes set for a member that ended its lease.
_LEFT: Final = "="


class WrongKeyType(RedisUnavailable):
    """A key of the call has a value of another type, written by another program."""


@dataclass(frozen=True, slots=True)
class LeaseSet:
    """The keys of a lease set.

    Managers read the changes of a *followed* set: which members joined, left or changed. Its leases
    end when a sweep removes those past their deadline. Until then a late heartbeat renews them, so
    that an outage of Redis ends no lease. In a set without `changes` there are no sweeps, and a
    lease ends at its deadline.

    Attributes:
        deadlines: zset member -> deadline, ms of Redis time.
        facts: key prefix of the members' facts, one hash each.
        changes: zset member -> number of its last change; empty: the set is not followed.
    """

    deadlines: str
    facts: str
    changes: str = ""

    def keys_of(self, member: str) -> list[str]:
        """Return the keys for scripts on one member."""
        keys = [self.deadlines, self.facts + member]
        return [*keys, self.changes] if self.changes else keys


class BeatAnswer(IntEnum):
    """The answer to a heartbeat. Only UNKNOWN is falsy."""

    #: There is no such lease: register again.
    UNKNOWN = 0
    #: Renewed.
    KEPT = 1
    #: Renewed, and the member was requested to drain.
    DRAIN = 2
    #: Another incarnation holds the lease.
    SUPERSEDED = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A member with a lease.

    Attributes:
        member: its id within the set.
        facts: its reported facts, with `incarnation`, a decimal number; {}: they are unknown.
        remaining_s: seconds until its deadline; negative after it, 0 without a deadline.
    """

    member: str
    facts: Mapping[str, str] = field(default_factory=dict)
    remaining_s: float = 0.0

    @property
    def incarnation(self) -> int:
        """Number that grows with each start of the member; 0 if the stored text is no number."""
        return number(self.facts.get("incarnation", ""))

    @property
    def joined(self) -> int:
        """Number that grows with each registration; only in sets that are not followed."""
        return number(self.facts.get("joined", ""))

    @property
    def draining(self) -> bool:
        """Whether it drains or was requested to."""
        return self.facts.get("state") == "draining" or self.facts.get(DRAIN) == "1"


@dataclass(frozen=True, slots=True)
class MemberBeat:
    """A heartbeat of a member.

    Attributes:
        member: its id.
        incarnation: its incarnation when it registered.
        facts: changed facts.
        notify: whether managers have to be notified of the change.
        volatile: the facts change all the time, so a late or lost update is harmless.
    """

    member: str
    incarnation: int
    facts: Mapping[str, str] = field(default_factory=dict)
    notify: bool = False
    volatile: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a followed set since a cursor.

    Attributes:
        cursor: cursor for the next read.
        members: current state of members that registered or changed.
        left: ids of members that ended their lease.
        lost: ids of members that a sweep removed after their deadline.
        full: `members` are all members, not only changed ones. Then `left` and `lost` have members
            that changed in the last minute. Such a member past its deadline is in `lost` even if no
            sweep has removed it.
        due_s: seconds until the next lease expires without a heartbeat; 0 or less: a sweep would
            remove one now; infinite for an empty set.
    """

    cursor: int
    members: tuple[Member, ...] = ()
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    full: bool = False
    due_s: float = math.inf


@dataclass(frozen=True, slots=True)
class SweepPermit:
    """Permits the removal of expired members: all live members had time to send heartbeats.

    Attributes:
        registry_id: id of the Redis process for which this is known; another may have old data.
        until_ms: end of the permit, by the clock of that process. It is needed because heartbeats
            and a sweep wait while Redis hangs, and the sweep may run first afterwards.
    """

    registry_id: str
    until_ms: int


#: See `Leadership.change`.
LeadershipChange = Literal["", "kept", "gained", "first"]


@dataclass(frozen=True, slots=True)
class Leadership:
    """A leadership as read or changed by a call.

    Attributes:
        holder: name of the leader.
        token: fencing token. It grows with each change of leadership, even if Redis lost its data.
            Every write of a leader carries it.
        change: what the call did. "": nothing, another holder leads; "kept": it renewed ours;
            "gained": it took the leadership; "first": it took the leadership, and the store knows
            no earlier leader.
        registry_id: id of the Redis process, which changes with a restart or failover; empty if it
            was not requested.
        time_ms: the store's clock, milliseconds since 1970.
        facts: what the leader publishes about itself.
        expires_in_s: seconds until it ends without a renewal; 0 if it was not read.
    """

    holder: str
    token: int
    change: LeadershipChange = ""
    registry_id: str = ""
    time_ms: int = 0
    facts: str = ""
    expires_in_s: float = 0.0


# --- transactions


@dataclass(frozen=True, slots=True)
class Leads:
    """Condition: `holder` leads under this fencing token."""

    key: str
    holder: str
    token: int


@dataclass(frozen=True, slots=True)
class FieldIs:
    """Condition: a field of a document has this value; "": the field does not exist."""

    key: str
    field: str
    value: str


@dataclass(frozen=True, slots=True)
class NumberIs:
    """Condition: a field of a document is this number; missing or invalid values count as 0."""

    key: str
    field: str
    value: int


@dataclass(frozen=True, slots=True)
class ScoreIs:
    """Condition: a member of a sorted set has this score."""

    key: str
    member: str
    score: float


@dataclass(frozen=True, slots=True)
class Once:
    """Condition that makes a transaction idempotent.

    If this id is that of the latest transaction, the call succeeds and changes nothing. This is for
    clients that repeat a call because its answer was lost, as the client of Redis does. The
    condition must come before conditions on values that the transaction itself changes.

    Attributes:
        key: key of a document; its field `=write` has the latest id.
        id: id of this transaction.
    """

    key: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class Put:
    """Set fields of a document; None or "" deletes a field."""

    key: str
    fields: Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Set a field of a document to the store's time, ms since 1970."""

    key: str
    field: str


@dataclass(frozen=True, slots=True)
class PutRows:
    """Set or delete rows of a document with numbered changes (`RedisStore.changed_rows`).

    Attributes:
        key: key of the document.
        changes_key: zset row -> counter of its last change.
        counter: number of this change.
        kept: number of rows whose changes are kept.
        rows: row -> text; None deletes a row.
    """

    key: str
    changes_key: str
    counter: int
    kept: int
    rows: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete keys."""

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class AddToSortedSet:
    """Add members with their scores to a sorted set."""

    key: str
    members: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RemoveFromSortedSet:
    """Remove members from a sorted set."""

    key: str
    members: Sequence[str]


@dataclass(frozen=True, slots=True)
class Append:
    """Append an entry to a log.

    The log then expires `keep_s` seconds later; each entry sets this anew. The log keeps the last
    `kept` entries; unless `exact`, Redis may keep somewhat more.
    """

    key: str
    fields: Mapping[str, str]
    kept: int
    keep_s: float
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Keep:
    """Set the expiry of keys."""

    keys: Sequence[str]
    seconds: float


Condition = Leads | FieldIs | NumberIs | ScoreIs | Once
Change = Put | Stamp | PutRows | Delete | AddToSortedSet | RemoveFromSortedSet | Append | Keep


@dataclass(frozen=True, slots=True)
class LogRecord:
    """An entry of a log; ids grow, and a reader continues after the last id that it has read."""

    id: str
    fields: Mapping[str, str]

    @property
    def time_ms(self) -> int:
        """When it was appended, in milliseconds since 1970 by the store's clock."""
        return log_position(self.id)[0]


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of a training's shards: its generation, free and leased shards, filled epochs."""

    generation: str
    free: str
    leased: str
    filled: str


def number(text: str) -> int:
    """Parse a stored number; 0 if it is missing or invalid."""
    return int(text) if is_number(text) else 0


def is_number(text: str) -> bool:
    """Return whether a text is a stored number: at most 20 digits."""
    return text.isascii() and text.isdigit() and len(text) <= 20


def is_member(member: str) -> bool:
    """Return whether a text is a valid member id."""
    return _MEMBER.fullmatch(member) is not None


def check_member(what: str, member: str, hint: str = "") -> str:
    """Return `member`. Raises UsageError, which calls the id `what`, if it is invalid."""
    if not is_member(member):
        raise UsageError(
            f"{what} is 1 to 200 letters, digits or '._-:/@+[]', not {member!r:.240}{hint}"
        )
    return member


def is_name(name: str) -> bool:
    """Return whether a text is a valid name of a service or of an elastic training."""
    return _NAME.fullmatch(name) is not None


def check_name(what: str, name: str, hint: str = "") -> str:
    """Return `name`. Raises UsageError, which calls the name `what`, if it is invalid."""
    if not is_name(name):
        raise UsageError(
            f"{what} is 1 to 128 letters, digits, '.', '_' or '-', not {name!r:.160}{hint}"
        )
    return name


def is_change(name: str) -> bool:
    """Return whether an entry of a changes set is valid."""
    return is_member(name.removeprefix(_LEFT))


def left_entry(member: str) -> str:
    """Return the entry of a changes set for a member that ended its lease."""
    return _LEFT + member


def split_changes(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split entries of a changes set into members and ids that ended their lease."""
    members: list[str] = []
    left: list[str] = []
    for name in names:
        if name.startswith(_LEFT):
            left.append(name.removeprefix(_LEFT))
        else:
            members.append(name)
    return members, left


def log_position(record_id: str) -> tuple[int, int]:
    """Return the sort key of a log entry's id; "" sorts first.

    Raises:
        UsageError: the id is invalid.
    """
    if not record_id:
        return -1, 0
    if _LOG_ID.fullmatch(record_id) is None:
        raise UsageError(
            f"the id of an event is two numbers as in 1700000000000-0, not {record_id!r:.80}"
        )
    time_ms, count = record_id.split("-")
    return int(time_ms), int(count)


#: Names and their values, which JSON can hold.
Facts = Mapping[str, Any]

_MOST_BYTES: Final = 1 << 20


def dump_facts(facts: Facts) -> str:
    """Return facts as JSON, in which NaN and Infinity are allowed.

    Raises UsageError if they are not JSON or larger than 1 MiB.
    """
    try:
        text = json.dumps(dict(facts), separators=(",", ":"), allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a record must be JSON: {error}") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"a record has {len(text)} bytes, more than 1 MiB: {str(facts)[:80]}")
    return text


def load_facts(text: str) -> dict[str, Any]:
    """Parse the facts of `dump_facts`; {} if the text is invalid."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """An entry of a timeline: a log whose entries have facts; see `LogRecord`."""

    entry_id: str
    at_ms: int
    body: Facts


def timeline_entry(key: str, body: Facts, kept: int, keep_s: float) -> Append:
    """Return the change that appends to a timeline, of which the last `kept` entries are kept."""
    return Append(key, {"body": dump_facts(body)}, kept, keep_s)


def read_timeline(store: Store, key: str, since: str, count: int) -> list[TimelineEntry]:
    """Return the first `count` entries after id `since`, oldest first; "": from the start."""
    return [
        TimelineEntry(record.id, record.time_ms, load_facts(record.fields.get("body", "")))
        for record in store.log(key, since, count)
    ]


def check_ttl(ttl_s: float) -> float:
    """Return `ttl_s`. Raises UsageError if it is not 0.001 to 86,400 seconds."""
    if not 0.001 <= ttl_s <= 86_400:
        raise UsageError(f"a time to live is 0.001 to 86400 seconds, not {ttl_s!r}")
    return ttl_s
