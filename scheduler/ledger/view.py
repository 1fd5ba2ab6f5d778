"""What the ledger knows, for those who decide about flow, windows, hedges and ejections."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .dispatch import Dispatcher, is_useless
from .events import Span
from .state import UNLABELLED, LedgerRequest, Tables


@dataclass(frozen=True, slots=True)
class InFlight:
    """One request that somebody is at work on.

    Attributes:
        request: its number.
        spans: its rows.
        attempt: of the last copy that was sent.
        teachers: whose answer would count, sorted; empty once one has come, or none is wanted.
    """

    request: int
    spans: tuple[Span, ...]
    attempt: int
    teachers: tuple[str, ...]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(span.rows for span in self.spans)


class LedgerLoad(NamedTuple):
    """How much there is, and how far the teachers are taken up.

    Attributes:
        volume_bytes, queued, unlabelled: as of `LedgerView`.
        batch_bytes: most that a batch had so far, inputs and, as far as they are known, labels.
        window_batches: batches that fill the windows of the usable ones, of the rows that the last
            batch had. Before there is one, it is known only of those that take a batch as it is.
        free_windows: requests that could be sent now; 0 also when there is no usable teacher.
        teachers: how many are there and not revoked.
        idle: how many of the usable ones have nothing in flight.
    """

    volume_bytes: int
    batch_bytes: int
    queued: int
    unlabelled: int
    window_batches: int
    free_windows: int
    teachers: int
    idle: int


class LedgerView:
    """The reading side of a ledger: nothing here changes anything."""

    def __init__(self) -> None:
        self.accepted = 0  # answers that counted
        self._tables = Tables()
        self._dispatcher = Dispatcher()

    # ---------------------------------------------------------------------------- the batches

    @property
    def volume_bytes(self) -> int:
        """Bytes of batches that are labelled and not taken, inputs and labels (Algorithm 1)."""
        return self._tables.volume_bytes

    @property
    def labelled(self) -> int:
        """Batches that are labelled, or poison, and not taken."""
        return len(self._tables.batches) - self._tables.unlabelled

    def has_next(self, *, ordered: bool) -> bool:
        """Whether the next batch that the student may take is labelled, or released.

        In order that is the first of those that are not taken, else any.
        """
        if ordered:
            first = next(iter(self._tables.batches.values()), None)
            return first is not None and first.stage is not UNLABELLED
        return self.labelled > 0

    @property
    def queued(self) -> int:
        """Batches with rows that wait for a teacher, or to be looked up in a store."""
        return len(self._tables.queue) + len(self._tables.withheld)

    @property
    def withheld(self) -> Collection[int]:
        """Those of them that a store is asked for first: not sent before `Found`."""
        return self._tables.withheld.keys()

    def awaits_store(self, batch: int) -> bool:
        """Whether a store is asked for a batch that is not over, before it comes to teachers."""
        tables = self._tables
        return batch in tables.withheld or batch not in tables.batches

    @property
    def refusers(self) -> frozenset[str]:
        """Teachers that have refused a batch which is unlabelled still."""
        batches = self._tables.refused.values()
        return frozenset(name for batch in batches for name in batch.refusals or ())

    def is_useless(self, teacher: str) -> bool:
        """Whether `teacher` has labelled nothing and is to be ejected for what it has refused."""
        teachers = self._tables.teachers
        if (known := teachers.get(teacher)) is None:
            return False
        return is_useless(known, teachers.values(), self._tables.waiting())

    @property
    def unlabelled(self) -> int:
        """Batches with rows that wait or are in flight: the work that is outstanding."""
        return self._tables.unlabelled

    @property
    def head(self) -> int | None:
        """The batch that the stream waits for: the first unlabelled one; None without any."""
        batches = self._tables.batches.values()
        return next((b.id for b in batches if b.stage is UNLABELLED), None)

    def labelled_by(self, batch: int) -> tuple[tuple[Span, str], ...]:
        """The rows of `batch` that teachers have labelled, in order, each with its teacher.

        Empty for a batch that is over, or that was labelled before it came.
        """
        known = self._tables.batches.get(batch)
        return tuple(sorted(known.labels)) if known else ()

    def makers(self, batch: int) -> tuple[str, ...]:
        """The teachers that have labelled rows of `batch`, sorted; see `labelled_by`."""
        known = self._tables.batches.get(batch)
        if known is None:
            return ()
        if len(known.labels) == 1:  # as nearly always
            return (known.labels[0][1],)
        return tuple(sorted({teacher for _, teacher in known.labels}.union(known.makers)))

    # --------------------------------------------------------------------------- the requests

    @property
    def in_flight(self) -> int:
        """Copies of requests in flight, unwanted ones too: they fill windows all the same."""
        return sum(len(teacher.in_flight) for teacher in self._tables.teachers.values())

    def in_flight_at(self, teacher: str) -> tuple[int, ...]:
        """Requests that `teacher` has in flight, the longest first; () for an unknown one."""
        known = self._tables.teachers.get(teacher)
        return tuple(known.in_flight) if known else ()

    def request(self, request: int) -> InFlight | None:
        """What is in flight under this number; None when nothing is any more."""
        for teacher in self._tables.teachers.values():
            if (found := teacher.in_flight.get(request)) is not None:
                return _told(found)
        return None

    def requests_at(self, teacher: str) -> Iterator[InFlight]:
        """All that `teacher` has in flight, the longest first; nothing for an unknown one."""
        known = self._tables.teachers.get(teacher)
        return (_told(request) for request in known.in_flight.values()) if known else iter(())

    @property
    def sent(self) -> int:
        """Requests sent so far, resends among them, copies not."""
        return self._dispatcher.sent

    @property
    def resends(self) -> int:
        """How many of them had rows that had been sent before."""
        return self._dispatcher.resends

    @property
    def hedges(self) -> int:
        """Copies sent so far to whichever teacher was free."""
        return self._dispatcher.hedges

    @property
    def probes(self) -> int:
        """Copies sent so far to a teacher that a `Hedge` named."""
        return self._dispatcher.probes

    # --------------------------------------------------------------------------- the teachers

    @property
    def load(self) -> LedgerLoad:
        """All that flow control is told of the ledger, as it asks with every few answers."""
        tables = self._tables
        usual = tables.last_rows
        rows = free = there = idle = 0
        for teacher in tables.teachers.values():
            there += not teacher.revoked
            if not teacher.usable:
                continue
            taken, window = len(teacher.in_flight), teacher.window
            free += max(window - taken, 0)
            idle += not taken
            if teacher.most_rows is None:
                rows += window * (usual or 1)
            elif usual:
                rows += window * teacher.most_rows
        return LedgerLoad(
            tables.volume_bytes,
            tables.batch_bytes,
            len(tables.queue) + len(tables.withheld),
            tables.unlabelled,
            -(-rows // (usual or 1)),
            free,
            there,
            idle,
        )

    @property
    def teachers(self) -> tuple[str, ...]:
        """The teachers that are there and not revoked, in the order of joining."""
        return tuple(name for name, t in self._tables.teachers.items() if not t.revoked)

    @property
    def at_work(self) -> tuple[str, ...]:
        """Those of `teachers` and of the revoked that have requests in flight."""
        return tuple(name for name, t in self._tables.teachers.items() if t.in_flight)

    @property
    def on_trial(self) -> tuple[str, ...]:
        """Those of `teachers` that get nothing but copies that name them."""
        teachers = self._tables.teachers.items()
        return tuple(name for name, t in teachers if t.on_trial and not t.revoked)

    @property
    def usable(self) -> int:
        """How many of `teachers` neither rest after a failure nor are on trial."""
        usable = 0
        for teacher in self._tables.teachers.values():
            usable += teacher.usable
        return usable

    @property
    def usable_teachers(self) -> frozenset[str]:
        """Names of the teachers that `usable` counts."""
        return frozenset(name for name, t in self._tables.teachers.items() if t.usable)


def _told(request: LedgerRequest) -> InFlight:
    teachers = tuple(sorted(request.holders))
    return InFlight(request.id, request.spans, request.attempt, teachers)
