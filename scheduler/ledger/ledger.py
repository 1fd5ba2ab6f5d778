"""Where every row is: events in, instructions out.

A batch is unlabelled, labelled, released, and gone when the student has taken it. While it is
unlabelled, each of its rows waits, or is in flight in one request, or has its label. Whatever
teachers do, no row is lost, is labelled twice, or gets the label of another:

* Rows that are lost go back to the *front* of the queue. As ids grow, the front is simply the
  lowest id: the queue is a heap, and what the student waits for is always the next to be sent.
* A request is what one batch lacks, or rows cut and joined to the size that its teacher takes.
* The first answer counts, whoever was asked the same besides; any other is discarded.
* Rows go to the teacher that would be through first among those with room in their window.
* A teacher that is not believed any more is taken back: its rows are labelled anew by others.
* When the model is exchanged, all that is not released is labelled anew, by the new one alone;
  where there is a store, it is asked first.
* A batch is poison once three teachers that label other batches refuse it, or all of them if there
  are fewer. A refusal by a teacher that has labelled nothing does not count. A teacher that rests,
  or may join any moment, may yet label the batch and is waited for. A batch that crashes predictors
  counts as refused by each of them; where no other teacher is left, one is asked three times. A
  teacher that has labelled nothing gets all other batches before it gets that one again.

Nothing here waits, and no event takes time that grows with the number of batches gone by.
"""

from __future__ import annotations

from heapq import heappush
from typing import assert_never

from . import membership, renewal
from .check import check
from .dispatch import judge, may_recur
from .events import (
    Answered,
    Awaited,
    Cancelled,
    DeliverUnlabelled,
    Ejected,
    Event,
    Failed,
    Found,
    Hedge,
    Held,
    InvalidateBatch,
    InvalidateTeacher,
    Queued,
    Readmitted,
    Refused,
    Relabel,
    Released,
    RequestSizeChanged,
    Reset,
    Resumed,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    WindowChanged,
)
from .instructions import Accept, Discard, Instruction, Span
from .state import (
    LABELLED,
    POISONED,
    RELEASED,
    UNLABELLED,
    Batch,
    Refusal,
    Request,
    Teacher,
    count,
    pieces_of,
)
from .tables import Tables
from .view import LedgerView


class Ledger(LedgerView):
    """The state machine of one reader's rows. Owned by one thread; no clock, no I/O."""

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in; what has to be done about it comes out, in order.

        Raises:
            ValueError: the event cannot be: ids that do not grow, rows that are not the batch's, a
                batch released before it was labelled, or taken before it was released.
        """
        out: list[Instruction] = []
        match event:  # the three that every batch brings come first
            case Answered():
                self._on_answered(event, out)
            case Queued():
                self._on_queued(event)
            case Taken():
                self._on_taken(event)
                return out  # nothing follows from it
            case Released():
                self._on_released(event)
                return out
            case Failed() | Refused() | Cancelled():
                self._on_given_up(event)
            case Hedge():
                self._on_hedge(event)
            case Held():
                self._on_held(event)
            case DeliverUnlabelled():
                self._on_deliver_unlabelled(event)
            case Found():
                renewal.found(self._tables, event)
            case InvalidateBatch():
                renewal.invalidate(self._tables, event)
            case InvalidateTeacher():
                membership.invalidate(self._tables, event)
            case TeacherJoined():
                membership.join(self._tables, event)
            case Awaited(teachers):
                self._tables.awaited = teachers
            case TeacherLost():
                membership.lose(self._tables, event)
            case (
                TeacherRevoked()
                | WindowChanged()
                | RequestSizeChanged()
                | Resumed()
                | Ejected()
                | Readmitted()
            ):
                membership.change(self._tables, event)
            case Relabel():
                renewal.relabel(self._tables, event, out)
            case Reset():
                self._on_reset()
            case _:
                assert_never(event)
        tables = self._tables
        if tables.refused:
            self._condemn()
        if tables.news:
            out += tables.news
            tables.news.clear()
        if tables.hedges:
            self._dispatcher.send_copies(tables, out)
        if tables.queue and tables.open:
            self._dispatcher.send_what_waits(tables, out)
        return out

    def validate(self) -> None:
        """Raise LedgerInvariant, naming what broke, if the ledger contradicts itself."""
        check(self._tables)

    # --------------------------------------------------------------------------- the source

    def _on_queued(self, event: Queued) -> None:
        tables = self._tables
        rows, waiting = event.rows, pieces_of(event.rows, event.missing)
        lacking = rows if event.missing is None else count(waiting)
        batch = Batch(
            event.batch, rows, event.nbytes, event.row_nbytes, waiting, lacking, event.kind
        )
        tables.admit(batch)
        tables.last_rows = rows
        tables.unlabelled += 1
        if waiting:
            heappush(tables.queue, batch.id)
        else:
            tables.settle(batch, LABELLED)

    def _on_held(self, event: Held) -> None:
        tables = self._tables
        batch = Batch(event.batch, event.rows, event.nbytes, event.row_nbytes, [], 0, event.kind)
        batch.makers = event.makers
        batch.stage = LABELLED
        tables.admit(batch)
        tables.volume_bytes += batch.nbytes

    # -------------------------------------------------------------------------- the answers

    def _on_answered(self, event: Answered, out: list[Instruction]) -> None:
        teacher, request = self._end_copy(event.teacher, event.request)
        if teacher is None or request is None:
            out.append(Discard(event.request, event.teacher))
            return
        teacher.learn(request.rows, event.device_s)
        if not teacher.labels:
            self._tables.believe_refusals(teacher)
        spans: tuple[Span, ...] = ()
        if event.teacher in request.holders:
            request.holders.clear()  # the first answer counts
            spans = request.wanted
        if not spans:
            out.append(Discard(event.request, event.teacher))
            return
        self.accepted += 1
        out.append(Accept(request.id, spans))
        for span in spans:
            self._tables.label(span, event.teacher, event.row_nbytes)

    def _on_given_up(self, event: Failed | Refused | Cancelled) -> None:
        teacher, request = self._end_copy(event.teacher, event.request)
        if teacher is None or request is None:
            return
        match event:
            case Failed(crash=crash):
                teacher.resting = True
                self._tables.refresh(teacher)
                if crash and teacher.name in request.holders:
                    self._on_refused(teacher, request, crash, is_crash=True)
            case Refused(_, _, reason):
                teacher.refused += 1
                if teacher.name in request.holders:
                    self._on_refused(teacher, request, reason)
            case _:
                pass
        self._tables.give_up(request, teacher)

    def _on_refused(
        self, teacher: Teacher, request: Request, reason: str, *, is_crash: bool = False
    ) -> None:
        """Find the batch to blame, or see to it that the next time it can be found."""
        # A batch with gaps has several spans in a request, and is refused once.
        unlabelled = dict.fromkeys(b for b in request.batches if b.stage is UNLABELLED)
        if request.joined:
            for batch in unlabelled:
                batch.alone = True
        elif teacher.portion(request.rows) == request.rows:
            for batch in unlabelled:
                known = batch.refusals or {}
                crashes = is_crash and (known[teacher.name].crashes if teacher.name in known else 0)
                refusal = Refusal(reason, teacher.labels, crashes + is_crash)
                batch.refusals = {**known, teacher.name: refusal}
                self._tables.refused[batch.id] = batch

    def _end_copy(self, name: str, number: int) -> tuple[Teacher | None, Request | None]:
        """Take a request out of its teacher's window; (None, None) if it is not in flight there."""
        teacher = self._tables.teachers.get(name)
        if teacher is None or (request := teacher.in_flight.pop(number, None)) is None:
            return None, None
        teacher.rows_in_flight -= request.rows
        self._tables.refresh(teacher)
        return teacher, request

    def _on_hedge(self, event: Hedge) -> None:
        tables = self._tables
        for teacher in tables.teachers.values():
            request = teacher.in_flight.get(event.request)
            if request is None:
                continue
            if event.teacher is None and request.holders and not request.may_be_copied:
                tables.put_back(request)
            elif (request, event.teacher) not in tables.hedges:
                tables.hedges.append((request, event.teacher))
                tables.hedges.sort(key=lambda hedge: hedge[0].spans[0])
            return

    # -------------------------------------------------------------------------- the student

    def _on_taken(self, event: Taken) -> None:
        tables = self._tables
        batch = tables.batches.get(event.batch)
        if batch is None:
            return  # of an epoch that was left
        if batch.stage is not RELEASED:
            raise ValueError(f"batch {batch.id} was taken, but it is {batch.stage.value}")
        del tables.batches[batch.id]
        tables.volume_bytes -= batch.nbytes

    def _on_released(self, event: Released) -> None:
        batch = self._tables.batches.get(event.batch)
        if batch is None:
            return  # of an epoch that was left
        if batch.stage is POISONED:
            del self._tables.batches[batch.id]
        elif batch.stage is LABELLED:
            batch.stage = RELEASED
        else:
            raise ValueError(f"batch {batch.id} was released, but it is {batch.stage.value}")

    def _on_deliver_unlabelled(self, event: DeliverUnlabelled) -> None:
        batch = self._tables.batches.get(event.batch)
        if batch is not None and batch.stage is UNLABELLED:
            self._tables.forgo(batch)

    def _on_reset(self) -> None:
        old = self._tables
        old.void_requests()
        self._tables = Tables(
            old.teachers,
            old.open,
            last_id=old.last_id,
            last_rows=old.last_rows,
            batch_bytes=old.batch_bytes,
            joined=old.joined,
            awaited=old.awaited,
        )

    # ------------------------------------------------------------------------ what follows

    def _condemn(self) -> None:
        """Poison what enough have refused; ask those it crashed again if nobody else is left."""
        tables = self._tables
        for batch_id in sorted(tables.refused):
            batch = tables.refused[batch_id]
            match judge(batch, tables.teachers.values(), tables.awaited, tables.waiting()):
                case "poison":
                    tables.unqueue(batch)
                    tables.settle(batch, POISONED)
                case "again":
                    for refusal in (batch.refusals or {}).values():
                        refusal.again = may_recur(refusal)
                case "wait":
                    pass
