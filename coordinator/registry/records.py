"""The values that a registry takes and hands out: members, beats, rows of the table, the log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

Kind = Literal["teachers", "students", "managers"]

#: (term, counter): orders the states of an assignment table; one never written is at (0, 0).
Epoch = tuple[int, int]

#: Fact of a teacher that was asked to drain; its own `state` may follow later.
DRAIN: Final = "drain"
#: Fact of a teacher whose lease was given up for it: why, in words.
GIVEN_UP: Final = "given_up"


class Beat(IntEnum):
    """What became of a beat. Only UNKNOWN is false."""

    #: No such lease, or another incarnation holds it: register again.
    UNKNOWN = 0
    #: Prolonged.
    KEPT = 1
    #: Prolonged, and somebody asked this member to finish what it has and leave.
    DRAIN = 2


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
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else 0

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
        concerns: whether managers hear of the change; None: by the names of the facts.
    """

    member: str
    incarnation: int
    facts: Mapping[str, str] = field(default_factory=dict)
    concerns: bool | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to one kind of members since a cursor.

    Attributes:
        cursor: where the next reading goes on.
        members: those that registered or whose facts changed, as they are now.
        left: ids of those that ended their lease themselves.
        lost: ids of those that a sweep took out after their deadline.
        full: `members` are all that there are, not only the changed ones; `left` and `lost` are
            those of the last minute.
        due_s: seconds until a sweep takes somebody out, unless there is a beat before; never
            above 0 when it would now; infinite when nobody is there.
    """

    cursor: int
    members: tuple[Member, ...] = ()
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    full: bool = False
    due_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who computes the assignments of a service, and what the table stands at.

    Attributes:
        leader: token of the one that leads; the asker's own when it does.
        term: first part of the table's epoch; 0: no table.
        counter: second part.
        registry_id: changes when another server process answers: restarted, or after a fail-over.
        time_ms: the registry's clock, milliseconds since 1970.
    """

    leader: str
    term: int
    counter: int
    registry_id: str
    time_ms: int = 0

    @property
    def epoch(self) -> Epoch:
        """What the next write has to expect."""
        return self.term, self.counter


@dataclass(frozen=True, slots=True)
class Mandate:
    """How far it is known that whoever has not beaten could have done so.

    Attributes:
        registry_id: of the server process of which it is known: what another one holds may be old.
        until_ms: until when, by its clock. A request that came later has lain before a server that
            hung, and is carried out first when it goes on.
    """

    registry_id: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Row:
    """The assignment of one student.

    Attributes:
        teachers: ids of the teachers that it is advised to send to.
        lost: ids of teachers known dead: what they have in flight is resent at once.
        content_id: content that all of `teachers` serve.
        next_content_id: content that the student moves to at its next epoch; empty: it stays.
        data_epoch: of the report that this was made from.
        counter: second part of the epoch of the write that brought it.
        reason: why it is what it is, in words.
        incarnation: of the student that it was made for.
    """

    teachers: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    content_id: str = ""
    next_content_id: str = ""
    data_epoch: int = 0
    counter: int = 0
    reason: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the assignment table.

    Attributes:
        epoch: of the whole table.
        rows: student id -> row; all, or those written since the epoch that was asked from.
        gone: ids of students whose rows were taken out since; empty when `full`.
        full: `rows` are all that there are.
    """

    epoch: Epoch = (0, 0)
    rows: Mapping[str, Row] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    full: bool = True


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event of a service's log; `id` and `time_ms` are given by the registry.

    Attributes:
        kind: "registered", "left", "lost", "draining", ... (message `Event`).
        subject: who it is about.
        text: what happened and why, in words.
        before: for "assigned": ids of the set before.
        after: ids of the set after.
        id: its place in the log; grows with time.
        time_ms: when, milliseconds since 1970 of the registry's clock.
    """

    kind: str
    subject: str
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    id: str = ""
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DesiredCount:
    """How many teachers a service should have, as its leader has said last.

    Attributes:
        count: so many.
        reason: why, in words.
        since_ms: since when it is so many, by the registry's clock; given by the registry.
        at_ms: when the leader said so last, by the same.
    """

    count: int
    reason: str = ""
    since_ms: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Which content a service is meant to serve; an upgrade runs while `next_content_id` is set.

    Attributes:
        content_id: the declared content; empty: whatever came first.
        next_content_id: what it moves to; empty: no upgrade runs.
        at: "epoch": each student when it begins its next one; "now": at once.
        version: grows with each change; 0: nobody declared anything.
        since_ms: when it was changed last, by the registry's clock; given by the registry.
    """

    content_id: str = ""
    next_content_id: str = ""
    at: str = ""
    version: int = 0
    since_ms: int = 0
