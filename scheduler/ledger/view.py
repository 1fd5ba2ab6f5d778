"""Read access to the ledger, for decisions about flow, windows, hedges and ejections.

`check` compares the tables with each other: it derives what they keep twice, for speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .dispatch import is_useless, judge
from .events import Span
from .state import LABELLED, RELEASED, UNLABELLED, LedgerBatch, LedgerRequest, Tables


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request in flight.

    Attributes:
        request: its number.
        spans: its rows.
        attempt: attempt of the latest copy.
        teachers: teachers with a copy that still counts, sorted; empty once the request is answered
            or not wanted.
    """

    request: int
    spans: tuple[Span, ...]
    attempt: int
    teachers: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(span.rows for span in self.spans)


class LedgerLoad(NamedTuple):
    """The amount of work, and how busy the teachers are.

    Attributes:
        volume_bytes, queued, unlabelled: as in `LedgerView`.
        queued_calls, unlabelled_calls: number of those batches that are of calls.
        batch_bytes: size of the training loop's largest batch so far: inputs, and labels as far as
            known.
        window_batches: batches of the loop's latest size that fill the windows of usable teachers.
            Before the first batch, only of teachers that take whole batches.
        free_windows: requests that could be sent now; 0 also without a usable teacher.
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
    free_windows: int
    teachers: int
    idle: int


class LedgerView:
    """Read access to a ledger; nothing here changes it.

    Attributes:
        sent: number of requests sent so far, resends included, copies not.
        resends: number of those with rows that had been sent before.
        hedges: number of copies sent to any free teacher.
        probes: number of copies sent to a named teacher.
        accepted: number of answers that counted.
    """

    def __init__(self) -> None:
        self.sent = self.resends = self.hedges = self.probes = self.accepted = 0
        self._tables = Tables()

    def validate(self) -> None:
        """Raise LedgerInvariant, naming what broke, if the ledger contradicts itself."""
        check(self._tables)

    # ---------------------------------------------------------------------------- the batches

    @property
    def volume_bytes(self) -> int:
        """Bytes of the loop's batches that are labelled and not taken, inputs and labels.

        It is the volume of Algorithm 1.
        """
        return self._tables.volume_bytes

    @property
    def labelled(self) -> int:
        """Number of labelled or poison batches that are not taken."""
        return len(self._tables.batches) - self._tables.unlabelled

    def has_next(self, *, ordered: bool) -> bool:
        """Whether the next batch of the student is labelled or released: the first one, or any."""
        if not self.labelled:
            return False
        loop = (batch for batch in self._tables.batches.values() if not batch.is_call)
        done = (batch.stage is not UNLABELLED for batch in loop)
        return next(done, False) if ordered else any(done)

    @property
    def queued(self) -> int:
        """Number of batches with rows that wait for a teacher or for the store."""
        return len(self._tables.queue) + len(self._tables.withheld)

    @property
    def withheld(self) -> Collection[int]:
        """Batches that wait for a search of the store."""
        return self._tables.withheld.keys()

    def awaits_store(self, batch: int) -> bool:
        """Whether the store is searched for a batch before teachers get it."""
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
        if len(known.labels) == 1:  # as nearly always
            return (known.labels[0][1],)
        return tuple(
            sorted({teacher for _, teacher in known.labels}.union(known.restored_labellers))
        )

    # --------------------------------------------------------------------------- the requests

    @property
    def in_flight(self) -> int:
        """Number of copies in flight, unwanted ones included: they fill windows too."""
        return sum(len(teacher.in_flight) for teacher in self._tables.teachers.values())

    def in_flight_at(self, teacher: str) -> tuple[int, ...]:
        """Return the requests in flight at `teacher`, in the order of sending."""
        known = self._tables.teachers.get(teacher)
        return tuple(known.in_flight) if known else ()

    def request(self, request: int) -> InFlight | None:
        """Return the request in flight with this number; None: there is none."""
        for teacher in self._tables.teachers.values():
            if (found := teacher.in_flight.get(request)) is not None:
                return _described(found)
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
            -(-rows // (usual or 1)),
            free,
            there,
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
        """Teachers that get only copies that name them."""
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


class LedgerInvariant(AssertionError):
    """The ledger contradicts itself; the message names the broken invariant."""


def check(tables: Tables) -> None:
    """Raise LedgerInvariant if the tables are inconsistent. Slow: goes through all their rows."""
    for find in (_in_rows, _in_counts, _in_requests, _in_teachers, _in_what_waits):
        for broken in find(tables):
            raise LedgerInvariant(broken)


def _in_rows(tables: Tables) -> Iterator[str]:
    sent: defaultdict[LedgerBatch, list[tuple[int, int]]] = defaultdict(list)
    for request in _requests(tables):
        if request.holders:
            for span, batch in zip(request.spans, request.batches, strict=True):
                sent[batch].append(span[1:])
    for batch in tables.batches.values():
        waiting, in_flight = _rows(batch.waiting), _rows(sent[batch])
        labelled = _rows(span[1:] for span, _ in batch.labels)
        rows = sorted([*waiting, *in_flight, *labelled])
        lacking = len(waiting) + len(in_flight)
        if batch.id in tables.withheld:
            if rows or batch.stage is not UNLABELLED:
                yield f"batch {batch.id} is withheld, but {batch.stage.value} with rows {rows}"
            lacking = batch.rows
        if batch.stage is not UNLABELLED and waiting:
            yield f"batch {batch.id} is {batch.stage.value}, and rows of it wait"
        if batch.waiting != sorted(batch.waiting):
            yield f"batch {batch.id} has rows that wait out of order"
        if batch.stage is UNLABELLED:
            if rows != sorted(set(rows) & set(range(batch.rows))):
                yield f"batch {batch.id} of {batch.rows} rows has rows twice or too many: {rows}"
            if batch.unlabelled_rows != lacking:
                yield f"batch {batch.id} lacks {lacking} rows, counted are {batch.unlabelled_rows}"
            if not lacking:
                yield f"batch {batch.id} is unlabelled, but no row waits or is in flight"


def _rows(pieces: Iterable[tuple[int, ...]]) -> list[int]:
    return [row for start, stop, *_ in pieces for row in range(start, stop)]


def _in_counts(tables: Tables) -> Iterator[str]:
    batches = tables.batches.values()
    if [*tables.batches] != sorted(tables.batches):
        yield f"batches are listed out of order: {[*tables.batches]}"
    if tables.batch_instructions:
        yield f"instructions were not returned: {tables.batch_instructions}"
    queued = sorted(b.id for b in batches if b.waiting)
    if sorted(tables.queue) != queued:
        yield f"the queue is {sorted(tables.queue)}, batches with rows that wait are {queued}"
    refused = {b.id for b in batches if b.refusals and b.stage is UNLABELLED}
    if set(tables.refused) != refused:
        yield f"refused are {refused}, listed are {set(tables.refused)}"
    unlabelled = sum(b.stage is UNLABELLED for b in batches)
    if tables.unlabelled != unlabelled:
        yield f"{unlabelled} batches are unlabelled, counted are {tables.unlabelled}"
    calls = sum(b.stage is UNLABELLED and b.is_call for b in batches)
    if tables.unlabelled_calls != calls:
        yield f"{calls} calls are unlabelled, counted are {tables.unlabelled_calls}"
    held = [b for b in batches if b.stage in (LABELLED, RELEASED) and not b.is_call]
    volume_bytes = sum(b.nbytes for b in held)
    if tables.volume_bytes != volume_bytes:
        yield f"the volume is {volume_bytes} bytes, counted are {tables.volume_bytes}"


def _in_requests(tables: Tables) -> Iterator[str]:
    for teacher in tables.teachers.values():
        rows = sum(request.rows for request in teacher.in_flight.values())
        if teacher.rows_in_flight != rows:
            yield f"{rows} rows are in flight at {teacher.name}, not {teacher.rows_in_flight}"
    for request in _requests(tables):
        at = {t.name for t in tables.teachers.values() if t.in_flight.get(request.id) is request}
        if not request.holders <= at:
            yield f"request {request.id} is in flight at {at}, but names {request.holders}"


def _in_teachers(tables: Tables) -> Iterator[str]:
    for teacher in tables.teachers.values():
        if teacher.revoked and not teacher.in_flight:
            yield f"teacher {teacher.name} is revoked and done, and still listed"
        if teacher.usable is (teacher.revoked or teacher.resting or teacher.on_trial):
            yield f"teacher {teacher.name} is usable: {teacher.usable}, which its state contradicts"
    free = {teacher.name for teacher in tables.teachers.values() if teacher.free}
    if set(tables.open) != free:
        yield f"teachers {free} are free, listed are {set(tables.open)}"
    for request, name in tables.hedges:
        able = [t for t in free if tables.teachers[t].may_copy(request)]
        if able and name is None:
            yield f"request {request.id} waits to be hedged while {able} could take it"


def _in_what_waits(tables: Tables) -> Iterator[str]:
    for batch_id in tables.queue:
        batch = tables.batches[batch_id]
        able = [name for name in tables.open if batch.may_go_to(name)]
        if able:
            yield f"batch {batch_id} is queued while {able} could take it"
        if judge(batch, tables.teachers.values(), tables.awaited, tables.waiting()) != "wait":
            yield f"batch {batch_id} was refused by all teachers but is not poison"


def _requests(tables: Tables) -> list[LedgerRequest]:
    """Return all requests in flight, each once."""
    found = {r.id: r for t in tables.teachers.values() for r in t.in_flight.values()}
    return list(found.values())
