"""Read access to the ledger, for decisions about flow, windows, hedges and ejections."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .dispatch import is_useless
from .events import Span
from .state import UNLABELLED, LedgerRequest, Tables


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request in flight.

    Attributes:
        request: its number.
        spans: its rows.
        attempt: number of the attempt of its latest copy.
        teachers: teachers with a copy that still counts, sorted; empty once the request is answered
            or not wanted any more.
    """

    request: int
    spans: tuple[Span, ...]
    attempt: int
    teachers: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans)


class LedgerLoad(NamedTuple):
    """The amount of work, and how busy the teachers are.

    Attributes:
        volume_bytes, queued, unlabelled: as in `LedgerView`.
        queued_calls, unlabelled_calls: how many of `queued` and `unlabelled` belong to calls
            outside the training loop.
        batch_bytes: size of the training loop's largest batch so far: inputs, and labels as far as
            known.
        window_batches: number of batches of the loop's latest size that fill the windows of usable
            teachers. Before the first batch, teachers with a limit of rows do not count.
        window_room: number of further requests that the windows of usable teachers allow now.
        teachers: number of teachers that are not revoked.
        idle: number of usable teachers with nothing in flight.
    """

    volume_bytes: int
    batch_bytes: int
    queued: int
    queued_calls: int
    unlabelled: int
    unlabelled_calls: int
    window_batches: int
    window_room: int
    teachers: int
    idle: int


class LedgerView:
    """Read access to a ledger; nothing here changes it.

    Attributes:
        sent: number of requests sent so far, with resends, without copies.
        resends: number of these requests with rows that had been sent before.
        hedges: number of copies sent to any free teacher.
        named_copies: number of copies sent to a named teacher, for comparisons.
        accepted: number of answers that counted.
    """

    def __init__(self) -> None:
        self.sent = self.resends = self.hedges = self.named_copies = self.accepted = 0
        self._tables = Tables()

    # ---------------------------------------------------------------------------- the batches

    @property
    def volume_bytes(self) -> int:
        """Bytes of the loop's batches that are labelled and not taken, inputs and labels.

        It is the volume of Algorithm 1.
        """
        return self._tables.volume_bytes

    @property
    def labelled(self) -> int:
        """Number of labelled batches that are not taken, plus poison ones that are not released."""
        return len(self._tables.batches) - self._tables.unlabelled

    def has_next(self, *, ordered: bool) -> bool:
        """Whether the training loop's next batch needs no more labels.

        With `ordered` the next batch is the first one, else any.
        """
        if not self.labelled:
            return False
        loop_batches = (batch for batch in self._tables.batches.values() if not batch.is_call)
        done = (batch.stage is not UNLABELLED for batch in loop_batches)
        return next(done, False) if ordered else any(done)

    @property
    def queued(self) -> int:
        """Number of batches with rows that wait for a teacher or for the label store."""
        return len(self._tables.queue) + len(self._tables.withheld)

    @property
    def withheld(self) -> Collection[int]:
        """Batches that wait for a search of the label store."""
        return self._tables.withheld.keys()

    def awaits_store(self, batch: int) -> bool:
        """Whether a batch waits for a search of the label store, also if it is not queued yet."""
        tables = self._tables
        return batch in tables.withheld or batch not in tables.batches

    @property
    def refusers(self) -> frozenset[str]:
        """Teachers that have refused a batch that is still unlabelled."""
        batches = self._tables.refused.values()
        return frozenset(name for batch in batches for name in batch.refusals or ())

    def is_useless(self, teacher: str) -> bool:
        """Whether to eject `teacher`, which has labelled nothing, for its refusals."""
        teachers = self._tables.teachers
        if (known := teachers.get(teacher)) is None:
            return False
        return is_useless(known, teachers.values(), self._tables.waiting())

    @property
    def unlabelled(self) -> int:
        """Number of batches with rows that wait or are in flight."""
        return self._tables.unlabelled

    @property
    def head(self) -> int | None:
        """The first unlabelled batch; None: there is none."""
        batches = self._tables.batches.values()
        return next((b.id for b in batches if b.stage is UNLABELLED), None)

    def makers(self, batch: int) -> tuple[str, ...]:
        """Return the teachers that labelled rows of `batch`, sorted."""
        known = self._tables.batches.get(batch)
        if known is None:
            return ()
        if len(known.labels) == 1:  # the usual case
            return (known.labels[0][1],)
        return tuple(
            sorted({teacher for _, teacher in known.labels}.union(known.restored_labellers))
        )

    # --------------------------------------------------------------------------- the requests

    @property
    def in_flight(self) -> int:
        """Number of copies in flight; unwanted ones count, because they fill windows too."""
        return sum(len(teacher.in_flight) for teacher in self._tables.teachers.values())

    def in_flight_at(self, teacher: str) -> tuple[int, ...]:
        """Return the requests in flight at `teacher`, in the order of sending."""
        known = self._tables.teachers.get(teacher)
        return tuple(known.in_flight) if known else ()

    def request(self, request: int) -> InFlight | None:
        """Return the request in flight with this number; None: there is none."""
        for teacher in self._tables.teachers.values():
            if (in_flight := teacher.in_flight.get(request)) is not None:
                return _described(in_flight)
        return None

    def requests_at(self, teacher: str) -> Iterator[InFlight]:
        """Iterate over the requests in flight at `teacher`, in the order of sending."""
        known = self._tables.teachers.get(teacher)
        return (_described(request) for request in known.in_flight.values()) if known else iter(())

    # --------------------------------------------------------------------------- the teachers

    @property
    def load(self) -> LedgerLoad:
        """The input of flow control, which is needed after every few answers."""
        tables = self._tables
        batch_rows = tables.last_rows  # 0: no batch yet
        rows = free = present = idle = 0
        for teacher in tables.teachers.values():
            present += not teacher.revoked
            if not teacher.usable:
                continue
            in_flight, window = len(teacher.in_flight), teacher.window
            free += max(window - in_flight, 0)
            idle += not in_flight
            if teacher.most_rows is None:
                rows += window * (batch_rows or 1)
            elif batch_rows:
                rows += window * teacher.most_rows
        queued_calls = 0
        if tables.unlabelled_calls:
            waiting = (*tables.queue, *tables.withheld)
            queued_calls = sum([tables.batches[number].is_call for number in waiting])
        return LedgerLoad(
            tables.volume_bytes,
            tables.batch_bytes,
            len(tables.queue) + len(tables.withheld),
            queued_calls,
            tables.unlabelled,
            tables.unlabelled_calls,
            -(-rows // (batch_rows or 1)),
            free,
            present,
            idle,
        )

    @property
    def teachers(self) -> tuple[str, ...]:
        """Teachers that are not revoked, in the order of joining."""
        return tuple(name for name, t in self._tables.teachers.items() if not t.revoked)

    @property
    def at_work(self) -> tuple[str, ...]:
        """Teachers with requests in flight, revoked ones included."""
        return tuple(name for name, t in self._tables.teachers.items() if t.in_flight)

    @property
    def on_trial(self) -> tuple[str, ...]:
        """Teachers that get only copies that are addressed to them."""
        teachers = self._tables.teachers.items()
        return tuple(name for name, t in teachers if t.on_trial and not t.revoked)

    @property
    def usable(self) -> int:
        """Number of teachers that are not revoked, resting after a failure, or on trial."""
        usable = 0
        for teacher in self._tables.teachers.values():
            usable += teacher.usable
        return usable

    @property
    def usable_teachers(self) -> frozenset[str]:
        return frozenset(name for name, t in self._tables.teachers.items() if t.usable)


def _described(request: LedgerRequest) -> InFlight:
    teachers = tuple(sorted(request.holders))
    return InFlight(request.id, request.spans, request.attempt, teachers)
