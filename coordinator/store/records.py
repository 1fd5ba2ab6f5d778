"""What a store keeps: leases, leaderships, documents, logs, and the parts of a transaction."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from ...runtime.errors import UsageError

#: Facts outlive the deadline by this factor of the TTL, so that the dead can be named.
FACTS_TTLS: Final = 5
#: Seconds, in TTLs, for which a member's beats do no more than raise its deadline, unless there is
#: something to report: of five beats one is a whole one.
PLAIN_TTLS: Final = 1.85
#: Fact of a member that was asked to drain; its own `state` may follow later.
DRAIN: Final = "drain"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MEMBER: Final = re.compile(r"[A-Za-z0-9._:/@+\[\]-]{1,200}")
_LOG_ID: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_LEFT: Final = "="


@dataclass(frozen=True, slots=True)
class LeaseSet:
    """The keys of one set of leases.

    A *followed* set has `changes`: managers read who joined, left or changed since they looked. Its
    leases end when a sweep takes out those that are past their deadline; until then a late beat
    renews them, so that an outage of Redis ends no lease. A set that is not followed has no sweeps:
    its leases end at their deadlines.

    Attributes:
        deadlines: zset member -> deadline, ms of Redis time.
        facts: prefix of the key of each member's facts, a hash.
        changes: zset member -> number of its last change; empty: nobody follows the set.
    """

    deadlines: str
    facts: str
    changes: str = ""

    def of(self, member: str) -> list[str]:
        """The keys of the scripts that concern one member."""
        keys = [self.deadlines, self.facts + member]
        return [*keys, self.changes] if self.changes else keys


class Beat(IntEnum):
    """The answer to a beat. Only UNKNOWN is false."""

    #: No such lease: register again.
    UNKNOWN = 0
    #: Renewed.
    KEPT = 1
    #: Renewed, and an operator asked this member to finish its work and leave.
    DRAIN = 2
    #: Another incarnation holds the lease.
    SUPERSEDED = 3


@dataclass(frozen=True, slots=True)
class Member:
    """One member with a lease.

    Attributes:
        member: its id within the set.
        facts: what it reported about itself; always holds `incarnation`, a decimal number.
        remaining_s: seconds until its deadline; negative when it has passed.
    """

    member: str
    facts: Mapping[str, str] = field(default_factory=dict)
    remaining_s: float = 0.0

    @property
    def incarnation(self) -> int:
        """Grows with each start of the member; 0 where a foreign writer put no number."""
        return number(self.facts.get("incarnation", ""))

    @property
    def joined(self) -> int:
        """Grows with each registration, in a set that is not followed."""
        return number(self.facts.get("joined", ""))

    @property
    def draining(self) -> bool:
        """Whether it says that it drains, or was asked to."""
        return self.facts.get("state") == "draining" or self.facts.get(DRAIN) == "1"


@dataclass(frozen=True, slots=True)
class MemberBeat:
    """One beat of many that are sent at once.

    Attributes:
        member: its id.
        incarnation: as it registered.
        facts: those that changed.
        noted: followers hear of the change.
        volatile: the facts change all the time, so that a late or lost one does no harm.
    """

    member: str
    incarnation: int
    facts: Mapping[str, str] = field(default_factory=dict)
    noted: bool = False
    volatile: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened in a followed set since a cursor.

    Attributes:
        cursor: where the next reading goes on.
        members: those that registered or whose facts changed, as they are now.
        left: ids of those that ended their lease themselves.
        lost: ids of those that a sweep took out after their deadline.
        full: `members` are all that there are, not only the changed ones; `left` and `lost` are
            those of the last minute.
        due_s: seconds until a sweep takes somebody out, unless there is a beat before; never
            above 0 when it would now; infinite for an empty set.
    """

    cursor: int
    members: tuple[Member, ...] = ()
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    full: bool = False
    due_s: float = math.inf


@dataclass(frozen=True, slots=True)
class SweepPermit:
    """How far it is known that every member could have beaten.

    Attributes:
        registry_id: of the server process of which it is known: what another one holds may be old.
        until_ms: until when, by its clock. A request that came later has lain before a server that
            hung, and is carried out first when it goes on.
    """

    registry_id: str
    until_ms: int


#: See `Leadership.change`.
LeadershipChange = Literal["", "kept", "gained", "first"]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads.

    Attributes:
        holder: name of the leader.
        token: fencing token: grows with each change of leadership, also across a Redis that lost
            its data. Every write of a leader carries it.
        change: what the call that returned this did: "" another one leads, "kept" ours was
            prolonged, "gained" ours since now, "first" the same, and nobody led before.
        registry_id: changes when another server process answers: restarted, or after a fail-over;
            empty where it was not asked for.
        time_ms: the store's clock, milliseconds since 1970.
        facts: what the leader says of itself.
        expires_in_s: seconds until it ends, unless it is prolonged; 0 where it was not read.
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
    """Condition: a field of a document has this value; "": there is none."""

    key: str
    field: str
    value: str


@dataclass(frozen=True, slots=True)
class NumberIs:
    """Condition: a field of a document is this number; a missing or foreign value counts as 0."""

    key: str
    field: str
    value: int


@dataclass(frozen=True, slots=True)
class RankIs:
    """Condition: a member of a ranked set has this rank."""

    key: str
    member: str
    rank: int


@dataclass(frozen=True, slots=True)
class Once:
    """A transaction that is done already under this id counts as done now.

    For a call that the client repeats because its answer was lost. It comes before conditions on
    what the transaction itself changes.
    """

    key: str
    id: str


@dataclass(frozen=True, slots=True)
class Put:
    """Set fields of a document; None or "" deletes one."""

    key: str
    fields: Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Set a field of a document to the store's time, ms since 1970."""

    key: str
    field: str


@dataclass(frozen=True, slots=True)
class PutRows:
    """Set or delete rows of a document whose changes are numbered (`Store.changed_rows`).

    Attributes:
        key: of the document.
        changes: zset row -> counter of its last change.
        counter: number of this change.
        kept: rows whose changes are remembered.
        rows: None deletes one.
    """

    key: str
    changes: str
    counter: int
    kept: int
    rows: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete keys."""

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class AddRanked:
    """Add members to a ranked set, with their ranks."""

    key: str
    members: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RemoveRanked:
    """Remove members from a ranked set."""

    key: str
    members: Sequence[str]


@dataclass(frozen=True, slots=True)
class Append:
    """Append an entry to a log, of which the last `kept` entries stay."""

    key: str
    fields: Mapping[str, str]
    kept: int
    keep_s: float
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Keep:
    """Let keys expire after this time, unless it is prolonged."""

    keys: Sequence[str]
    seconds: float


Condition = Leads | FieldIs | NumberIs | RankIs | Once
Change = Put | Stamp | PutRows | Delete | AddRanked | RemoveRanked | Append | Keep


@dataclass(frozen=True, slots=True)
class LogRecord:
    """An entry of a log; `id` orders entries, and is where reading goes on."""

    id: str
    fields: Mapping[str, str]

    @property
    def time_ms(self) -> int:
        """When it was appended, by the store's clock, milliseconds since 1970."""
        return log_position(self.id)[0]


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of the shards of a training: its generation, free shards, leased shards."""

    generation: str
    free: str
    leased: str


def number(text: str) -> int:
    """A stored number; 0 for none, or for what is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0


def is_member(member: str) -> bool:
    """Whether an id that was read could have been written by us."""
    return _MEMBER.fullmatch(member) is not None


def check_member(what: str, member: str, hint: str = "") -> str:
    """Return an id; raises UsageError, with `what` it is of, when it cannot stand in a key."""
    if not is_member(member):
        raise UsageError(
            f"{what} is 1 to 200 letters, digits or '._-:/@+[]', not {member!r:.240}{hint}"
        )
    return member


def is_name(name: str) -> bool:
    """Whether a name that was read, of what has keys of its own, could have been written by us."""
    return _NAME.fullmatch(name) is not None


def check_name(what: str, name: str, hint: str = "") -> str:
    """Return such a name; raises UsageError, with `what` it is of, when it cannot be one."""
    if not is_name(name):
        raise UsageError(
            f"{what} is 1 to 128 letters, digits, '.', '_' or '-', not {name!r:.160}{hint}"
        )
    return name


def is_change(name: str) -> bool:
    """Whether an entry among changes could have been written by us."""
    return is_member(name.removeprefix(_LEFT))


def left(member: str) -> str:
    """How a member that ended its lease itself is noted among changes."""
    return _LEFT + member


def split_changes(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Entries among changes: members, and those that ended their lease themselves."""
    noted: tuple[list[str], list[str]] = [], []
    for name in names:
        noted[name.startswith(_LEFT)].append(name.removeprefix(_LEFT))
    return noted


def log_position(record_id: str) -> tuple[int, int]:
    """The order of an entry of a log; "" is before all.

    Raises:
        UsageError: it is no id of an entry.
    """
    if not record_id:
        return -1, 0
    if _LOG_ID.fullmatch(record_id) is None:
        raise UsageError(
            f"the id of an event is two numbers as in 1700000000000-0, not {record_id!r:.80}"
        )
    time_ms, count = record_id.split("-")
    return int(time_ms), int(count)
