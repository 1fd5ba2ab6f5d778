"""State machine of the rows of a stream: takes events, returns instructions.

A batch is unlabelled, then labelled, then released, and forgotten when the student has taken it.
Each row of an unlabelled batch is withheld, waits, is in flight in one request, or has its label.
Whatever teachers do, no row is lost, labelled twice, or given the label of another row:

* Lost rows return to the *front* of the queue. Ids grow, so the front is the lowest id: the queue
  is a heap, and the batch that the student waits for is always sent next.
* A request has the waiting rows of one batch, or rows cut and joined to the size of its teacher.
* The first answer counts, whichever copy it belongs to; any other is discarded.
* Rows go to the teacher that would finish first among those with room in their window.
* If a teacher is no longer trusted, others label its rows again.
* After a change of the model, all batches that are not released are labelled again by the new
  model alone; a label store is searched first.
* A batch is poison once three teachers that label other batches have refused it, or all teachers if
  there are fewer. Refusals by a teacher that has labelled nothing do not count. A teacher that
  rests, or may join at any moment, may still label the batch, so the ledger waits for it. A batch
  that crashes the predictor of a teacher counts as refused by this teacher. If no other teacher is
  left, the teacher gets the batch again, three times in all. A teacher that has labelled nothing
  gets all other batches before it gets a batch again that crashed it.

No method blocks, and no event takes time that grows with the number of past batches.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from typing import assert_never

from . import events as ev
from .dispatch import best_for, judge, may_retry_crash, next_request, put_in_flight, soonest
from .state import (
    LABELLED,
    POISONED,
    RELEASED,
    UNLABELLED,
    LedgerBatch,
    LedgerRequest,
    LedgerTeacher,
    Refusal,
    Tables,
    count_rows,
    waiting_rows,
)
from .view import LedgerView


class Ledger(LedgerView):
    """The rows of one reader and one service, without clock and I/O. Use it from one thread."""

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Apply one event; return the instructions that follow, in order.

        Raises:
            ValueError: the event is impossible: an id does not grow, rows are outside of the batch,
                or a batch is released before it is labelled, or taken before it is released.
        """
        out: list[ev.Instruction] = []
        match event:  # the most frequent events come first
            case ev.Answered():
                self._on_answered(event, out)
            case ev.Queued():
                self._on_queued(event)
            case ev.BatchConsumed():
                self._on_consumed(event)
                return out  # no instructions follow
            case ev.Released():
                self._on_released(event)
                return out
            case ev.AttemptFailed() | ev.Refused() | ev.Cancelled():
                self._on_unanswered(event)
            case ev.Hedge():
                self._on_hedge(event)
            case ev.BatchRestored():
                self._on_restored(event)
            case ev.DeliverUnlabelled():
                self._on_deliver_unlabelled(event)
            case ev.StoreSearched():
                _store_searched(self._tables, event)
            case ev.InvalidateBatch():
                _invalidate_batch(self._tables, event)
            case ev.InvalidateTeacher():
                _invalidate_teacher(self._tables, event)
            case ev.TeacherJoined():
                _join(self._tables, event)
            case ev.Awaited(teachers):
                self._tables.awaited = teachers
            case ev.TeacherGone():
                _lose(self._tables, event)
            case (
                ev.TeacherRevoked()
                | ev.WindowChanged()
                | ev.RequestSizeChanged()
                | ev.Resumed()
                | ev.Ejected()
                | ev.Readmitted()
            ):
                _change(self._tables, event)
            case ev.Relabel():
                _relabel(self._tables, event, out)
            case ev.Reset():
                self._on_reset()
            case _:
                assert_never(event)
        tables = self._tables
        if tables.refused:
            self._judge_refused()
        if tables.batch_instructions:
            out += tables.batch_instructions
            tables.batch_instructions.clear()
        if tables.hedges:
            self._send_copies(out)
        if tables.queue and tables.with_room:
            self._send_what_waits(out)
        return out

    # --------------------------------------------------------------------------- the source

    def _on_queued(self, event: ev.Queued) -> None:
        tables = self._tables
        rows, waiting = event.rows, waiting_rows(event.rows, event.missing)
        if event.is_withheld:
            waiting = []
        lacking = rows if event.missing is None else count_rows(waiting)
        batch = LedgerBatch(
            event.batch,
            rows,
            event.nbytes,
            event.row_nbytes,
            waiting,
            lacking,
            event.layout_id,
            event.is_call,
        )
        tables.admit(batch)
        if not batch.is_call:
            tables.last_rows = rows
        tables.unlabelled += 1
        tables.unlabelled_calls += batch.is_call
        if waiting:
            heappush(tables.queue, batch.id)
        elif event.is_withheld:
            tables.withheld[batch.id] = batch
        else:
            tables.finish(batch, LABELLED)

    def _on_restored(self, event: ev.BatchRestored) -> None:
        tables = self._tables
        batch = LedgerBatch(
            event.batch, event.rows, event.nbytes, event.row_nbytes, [], 0, event.layout_id
        )
        batch.restored_labellers = event.makers
        batch.stage = LABELLED
        tables.admit(batch)
        tables.volume_bytes += batch.nbytes

    # -------------------------------------------------------------------------- the answers

    def _on_answered(self, event: ev.Answered, out: list[ev.Instruction]) -> None:
        teacher, request = self._end_copy(event.teacher, event.request)
        if teacher is None or request is None:
            out.append(ev.Discard(event.request, event.teacher))
            return
        teacher.learn(request.rows, event.device_s)
        if not teacher.has_labelled:
            self._tables.believe_refusals(teacher)
        spans: tuple[ev.Span, ...] = ()
        if event.teacher in request.holders:
            request.holders.clear()  # the first answer counts
            spans = request.wanted
        if not spans:
            out.append(ev.Discard(event.request, event.teacher))
            return
        self.accepted += 1
        out.append(ev.Accept(request.id, spans))
        for span in spans:
            self._tables.label(span, event.teacher, event.row_nbytes)

    def _on_unanswered(self, event: ev.AttemptFailed | ev.Refused | ev.Cancelled) -> None:
        teacher, request = self._end_copy(event.teacher, event.request)
        if teacher is None or request is None:
            return
        match event:
            case ev.AttemptFailed(crash=crash):
                teacher.resting = True
                self._tables.refresh(teacher)
                if crash and teacher.name in request.holders:
                    self._on_refused(teacher, request, crash, is_crash=True)
            case ev.Refused(_, _, reason):
                # A copy may have more rows than the teacher takes.
                teacher.refused += teacher.portion(request.rows) == request.rows
                if teacher.name in request.holders:
                    self._on_refused(teacher, request, reason)
            case _:
                pass
        self._tables.give_up(request, teacher)

    def _on_refused(
        self, teacher: LedgerTeacher, request: LedgerRequest, reason: str, *, is_crash: bool = False
    ) -> None:
        """Blame the batch, or make the next refusal show which batch is to blame.

        No batch is blamed for a request with more rows than the teacher takes: it is sent again in
        smaller pieces.
        """
        # A batch with gaps has several spans in a request, but counts one refusal.
        unlabelled = dict.fromkeys(b for b in request.batches if b.stage is UNLABELLED)
        if request.joined:
            for batch in unlabelled:
                batch.send_alone = True
        elif teacher.portion(request.rows) == request.rows:
            for batch in unlabelled:
                known = batch.refusals or {}
                crashes = is_crash and (known[teacher.name].crashes if teacher.name in known else 0)
                refusal = Refusal(reason, teacher.has_labelled, crashes + is_crash)
                batch.refusals = {**known, teacher.name: refusal}
                self._tables.refused[batch.id] = batch

    def _end_copy(
        self, name: str, number: int
    ) -> tuple[LedgerTeacher | None, LedgerRequest | None]:
        """Remove a request from its teacher's window; (None, None) if it is not in flight there."""
        teacher = self._tables.teachers.get(name)
        if teacher is None or (request := teacher.in_flight.pop(number, None)) is None:
            return None, None
        teacher.rows_in_flight -= request.rows
        self._tables.refresh(teacher)
        return teacher, request

    def _on_hedge(self, event: ev.Hedge) -> None:
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

    def _on_consumed(self, event: ev.BatchConsumed) -> None:
        tables = self._tables
        batch = tables.batches.get(event.batch)
        if batch is None:
            return  # it belongs to an epoch that the student left
        if batch.stage is not RELEASED:
            raise ValueError(f"batch {batch.id} was taken, but it is {batch.stage.value}")
        del tables.batches[batch.id]
        if not batch.is_call:
            tables.volume_bytes -= batch.nbytes

    def _on_released(self, event: ev.Released) -> None:
        batch = self._tables.batches.get(event.batch)
        if batch is None:
            return  # it belongs to an epoch that the student left
        if batch.stage is POISONED:
            del self._tables.batches[batch.id]
        elif batch.stage is LABELLED:
            batch.stage = RELEASED
        else:
            raise ValueError(f"batch {batch.id} was released, but it is {batch.stage.value}")

    def _on_deliver_unlabelled(self, event: ev.DeliverUnlabelled) -> None:
        batch = self._tables.batches.get(event.batch)
        if batch is not None and batch.stage is UNLABELLED:
            self._tables.finish_without_labels(batch)

    def _on_reset(self) -> None:
        old = self._tables
        old.void_requests()
        self._tables = Tables(
            old.teachers,
            old.with_room,
            last_id=old.last_id,
            last_rows=old.last_rows,
            batch_bytes=old.batch_bytes,
            joined=old.joined,
            awaited=old.awaited,
        )

    # ------------------------------------------------------------------------ what follows

    def _send_what_waits(self, out: list[ev.Instruction]) -> None:
        """Send waiting rows, the lowest batch first, while a suitable teacher has room.

        A free place in a window is filled at once, even with few rows.
        """
        tables = self._tables
        queue, refused = tables.queue, []  # refused: by all teachers with room; there are few
        while queue and tables.with_room:
            batch = tables.batches[queue[0]]
            if (teacher := best_for(batch, tables.with_room)) is None:
                refused.append(heappop(queue))
                continue
            self.sent += 1
            request = next_request(tables, batch, teacher, self.sent)
            self.resends += request.attempt > 0
            out.append(put_in_flight(tables, request, teacher))
        for batch_id in refused:
            heappush(queue, batch_id)

    def _send_copies(self, out: list[ev.Instruction]) -> None:
        """Send the requested copies as far as there is room, and drop those that lapsed."""
        tables = self._tables
        pending, tables.hedges = tables.hedges, []
        for request, name in pending:
            if not request.may_be_copied:
                continue
            if name is None:
                able = [t for t in tables.with_room.values() if t.may_copy(request)]
                teacher = soonest(request.rows, able)
                self.hedges += teacher is not None
            else:
                teacher = tables.teachers.get(name)
                if teacher is None or teacher.revoked or not teacher.may_copy(request):
                    continue
                if not teacher.room:
                    teacher = None
                self.named_copies += teacher is not None
            if teacher is None:
                tables.hedges.append((request, name))
            else:
                out.append(put_in_flight(tables, request, teacher))

    def _judge_refused(self) -> None:
        """Poison batches that enough teachers refused, or allow crashed teachers to retry them."""
        tables = self._tables
        for batch_id in sorted(tables.refused):
            batch = tables.refused[batch_id]
            match judge(batch, tables.teachers.values(), tables.awaited, tables.waiting()):
                case "poison":
                    tables.unqueue(batch)
                    tables.finish(batch, POISONED)
                case "again":
                    for refusal in (batch.refusals or {}).values():
                        refusal.may_retry = may_retry_crash(refusal)
                case "wait":
                    pass


def _join(tables: Tables, event: ev.TeacherJoined) -> None:
    teacher = tables.teachers.get(event.teacher)
    if teacher is None:
        tables.joined += 1
        teacher = LedgerTeacher(
            event.teacher, tables.joined, event.window, has_labelled=event.has_labelled
        )
        tables.teachers[teacher.name] = teacher
    teacher.window, teacher.most_rows = event.window, event.most_rows
    teacher.on_trial = event.on_trial
    teacher.revoked = teacher.resting = False
    teacher.refused = 0
    tables.forget_refusals(teacher.name)
    if event.seconds_per_row is not None:
        teacher.seconds_per_row = event.seconds_per_row
    tables.refresh(teacher)


def _change(tables: Tables, event: ev.TeacherChange) -> None:
    if (teacher := tables.teachers.get(event.teacher)) is None:
        return
    match event:
        case ev.TeacherRevoked():
            teacher.revoked = True
        case ev.WindowChanged(_, window):
            teacher.window = window
        case ev.RequestSizeChanged(_, most_rows):
            teacher.most_rows = most_rows
        case ev.Resumed():
            teacher.resting = False
        case ev.Ejected():
            teacher.on_trial = True
        case ev.Readmitted():
            teacher.on_trial = False
    tables.refresh(teacher)


def _lose(tables: Tables, event: ev.TeacherGone) -> None:
    """Remove a teacher; rows that no other teacher has wait again."""
    if (teacher := tables.teachers.pop(event.teacher, None)) is not None:
        tables.with_room.pop(teacher.name, None)
        tables.forget_refusals(teacher.name)
        for request in teacher.in_flight.values():
            tables.give_up(request, teacher)


def _invalidate_teacher(tables: Tables, event: ev.InvalidateTeacher) -> None:
    """Invalidate all labels of a teacher that are not released."""
    if (teacher := tables.teachers.get(event.teacher)) is not None:
        teacher.on_trial = True
        tables.refresh(teacher)
        for request in teacher.in_flight.values():
            tables.give_up(request, teacher)
    for batch in tables.batches.values():
        if batch.stage in (POISONED, RELEASED):
            continue
        if rows := batch.drop_labels_of(event.teacher):
            tables.reopen(batch, rows)


def _relabel(tables: Tables, event: ev.Relabel, out: list[ev.Instruction]) -> None:
    """Queue or withhold all batches that are not released, as if they were new."""
    tables.void_requests()
    tables.queue.clear()
    tables.refused.clear()
    tables.withheld.clear()
    for batch in tables.batches.values():
        if batch.stage is not RELEASED:
            _start_over(tables, batch, event.stored)
    if event.stored:
        out += [ev.LookUp(number) for number in tables.withheld]


def _store_searched(tables: Tables, event: ev.StoreSearched) -> None:
    """Queue the rows whose labels the store lacks."""
    if (batch := tables.withheld.pop(event.batch, None)) is None:
        return
    waiting = waiting_rows(batch.rows, event.missing)
    batch.row_nbytes = event.row_nbytes
    batch.unlabelled_rows = count_rows(waiting)
    if waiting:
        tables.enqueue(batch, waiting)
    else:
        tables.finish(batch, LABELLED)


def _invalidate_batch(tables: Tables, event: ev.InvalidateBatch) -> None:
    """Label a labelled or poison batch again; its refusals remain."""
    known = tables.batches.get(event.batch)
    if known is not None and known.stage in (LABELLED, POISONED):
        # A new object: if the batch was finished without labels, a request in flight may still
        # refer to the old object. Its answer must not label the rows that are sent again now.
        batch = tables.batches[known.id] = replace(known, waiting=[], unlabelled_rows=0)
        tables.reopen(batch, batch.drop_all_labels())


def _start_over(tables: Tables, batch: LedgerBatch, stored: bool) -> None:
    """Treat a batch like a new one; `stored`: its labels are searched in the store first."""
    batch.waiting.clear()
    batch.labels, batch.restored_labellers, batch.refusals, batch.send_alone = (), (), None, False
    if stored:
        tables.withhold(batch)
    else:
        batch.unlabelled_rows = 0  # `reopen` adds all rows
        tables.reopen(batch, (ev.Span(batch.id, 0, batch.rows),), sent=0)
