"""Where every batch is: events in, instructions out (DESIGN promises 1, 2 and 5).

A batch is queued, in flight at a teacher, labelled, delivered, and gone when the student has taken
it. Whatever teachers do, each batch is delivered once, in order, with labels of its own:

* A batch that is lost goes back to the *front* of the queue. As ids grow, the front is simply the
  lowest id: the queue is a heap, and the head of the line is always the next to be sent.
* The first answer counts; any other is discarded.
* A batch goes to the teacher of the shortest expected finish among those with room in their window.
* When the model is exchanged, all that is not delivered is labelled anew, by the new one alone.
* A batch refused by three teachers, or by all there are, is poison. A teacher that rests may yet
  label it and is waited for, and so is the first teacher when there is none.

Nothing here waits, and no event takes time that grows with the number of batches gone by.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import assert_never

from .ledger_check import check
from .ledger_events import (
    Answered,
    Deliver,
    Discard,
    Event,
    Failed,
    Held,
    Instruction,
    Poison,
    Queued,
    Refused,
    Relabel,
    Reset,
    Resumed,
    Send,
    Taken,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    WindowChanged,
)
from .ledger_state import UNSETTLED, Batch, Stage, Tables, Teacher
from .placement import is_poison, soonest


class Ledger:
    """The state machine of one reader's batches. Owned by one thread; no clock, no I/O."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._joined = 0
        self._resends = 0

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in; what has to be done about it comes out, in order.

        Raises:
            ValueError: the event cannot be: ids that do not grow, a batch taken before it was
                delivered, a window below 1.
        """
        out: list[Instruction] = []
        match event:  # the three that every batch brings come first
            case Answered():
                self._on_answered(event, out)
            case Queued():
                self._on_queued(event)
            case Taken():
                self._on_taken(event)
            case Failed():
                self._on_failed(event, out)
            case Refused():
                self._on_refused(event, out)
            case TeacherJoined():
                self._on_joined(event, out)
            case TeacherRevoked():
                self._on_revoked(event, out)
            case TeacherLost():
                self._on_lost(event, out)
            case WindowChanged():
                self._on_window_changed(event)
            case Resumed():
                self._on_resumed(event)
            case Held():
                self._on_held(event)
            case Reset():
                self._on_reset()
            case Relabel():
                self._tables.start_over()
            case _:
                assert_never(event)
        if self._tables.queue and self._tables.open:
            self._dispatch(out)
        return out

    def validate(self) -> None:
        """Raise LedgerInvariant, naming what broke, if the ledger contradicts itself."""
        check(self._tables)

    # ------------------------------------------------------------------------ what it knows

    @property
    def volume_bytes(self) -> int:
        """Bytes of batches that are labelled and not taken, inputs and labels (Algorithm 1)."""
        return self._tables.volume_bytes

    @property
    def deliverable(self) -> int:
        """Batches that the student could take now."""
        return self._tables.deliverable

    @property
    def queued(self) -> int:
        """Batches that wait for a teacher."""
        return len(self._tables.queue)

    @property
    def unlabelled(self) -> int:
        """Batches that are queued or in flight: the work that is outstanding."""
        return self._tables.unlabelled

    @property
    def in_flight(self) -> int:
        """Requests in flight, those of forgotten batches too: they fill windows all the same."""
        return sum(len(teacher.in_flight) for teacher in self._tables.teachers.values())

    @property
    def windows(self) -> int:
        """Requests that the usable teachers may have in flight together."""
        return sum(teacher.window for teacher in self._tables.teachers.values() if teacher.usable)

    @property
    def free_windows(self) -> int:
        """Requests that could be sent now; 0 also when there is no usable teacher."""
        return sum(teacher.free for teacher in self._tables.open.values())

    @property
    def teachers(self) -> tuple[str, ...]:
        """The teachers that are there and not revoked, in the order of joining."""
        return tuple(name for name, t in self._tables.teachers.items() if not t.revoked)

    @property
    def usable(self) -> int:
        """How many of `teachers` do not rest after a failure."""
        return sum(teacher.usable for teacher in self._tables.teachers.values())

    @property
    def idle(self) -> int:
        """How many of the usable teachers have nothing in flight."""
        teachers = self._tables.teachers.values()
        return sum(teacher.usable and not teacher.in_flight for teacher in teachers)

    @property
    def resends(self) -> int:
        """How often a batch was sent again, so far."""
        return self._resends

    def in_flight_at(self, teacher: str) -> tuple[int, ...]:
        """Batches that `teacher` has in flight, the longest first; () for an unknown one."""
        known = self._tables.teachers.get(teacher)
        return tuple(known.in_flight) if known else ()

    # --------------------------------------------------------------------------- the source

    def _on_queued(self, event: Queued) -> None:
        batch = self._tables.admit(event.batch, event.nbytes)
        self._tables.line.append(batch)
        self._tables.unlabelled += 1
        self._tables.enqueue(batch)

    def _on_held(self, event: Held) -> None:
        if self._tables.line:
            raise ValueError(f"batch {event.batch} is held, but earlier ones are not delivered")
        batch = self._tables.admit(event.batch, event.nbytes)
        self._tables.volume_bytes += batch.nbytes
        self._tables.deliver(batch)

    # ------------------------------------------------------------------------- the teachers

    def _on_joined(self, event: TeacherJoined, out: list[Instruction]) -> None:
        teacher = self._tables.teachers.get(event.teacher)
        if teacher is None:
            self._joined += 1
            teacher = Teacher(event.teacher, self._joined, event.window, event.seconds_per_batch)
            self._tables.teachers[event.teacher] = teacher
        else:
            teacher.window = event.window
            teacher.revoked = teacher.resting = False
            if event.seconds_per_batch is not None:
                teacher.seconds_per_batch = event.seconds_per_batch
        self._tables.refresh(teacher)
        self._judge(out)  # it may be the only one there is, and have refused a batch before

    def _on_revoked(self, event: TeacherRevoked, out: list[Instruction]) -> None:
        if (teacher := self._tables.teachers.get(event.teacher)) is not None:
            teacher.revoked = True
            self._tables.refresh(teacher)
            self._judge(out)

    def _on_lost(self, event: TeacherLost, out: list[Instruction]) -> None:
        if (teacher := self._tables.teachers.pop(event.teacher, None)) is not None:
            self._tables.open.pop(teacher.name, None)
            for batch in teacher.in_flight.values():
                self._tables.give_up(batch, teacher)
            self._judge(out)

    def _on_window_changed(self, event: WindowChanged) -> None:
        if (teacher := self._tables.teachers.get(event.teacher)) is not None:
            teacher.window = event.window
            self._tables.refresh(teacher)

    def _on_resumed(self, event: Resumed) -> None:
        if (teacher := self._tables.teachers.get(event.teacher)) is not None:
            teacher.resting = False
            self._tables.refresh(teacher)

    # -------------------------------------------------------------------------- the answers

    def _on_answered(self, event: Answered, out: list[Instruction]) -> None:
        teacher, batch = self._end_request(event.teacher, event.batch)
        if teacher is not None:
            teacher.learn(event.seconds)
        if batch is None or batch.stage is not Stage.IN_FLIGHT:
            out.append(Discard(event.batch, event.teacher))
            return
        self._tables.settle(batch, Stage.LABELLED)
        batch.label_bytes = event.nbytes
        self._tables.volume_bytes += batch.nbytes
        self._deliver(out)

    def _on_failed(self, event: Failed, out: list[Instruction]) -> None:
        teacher, batch = self._end_request(event.teacher, event.batch)
        if teacher is None or batch is None:
            return
        teacher.resting = True
        self._tables.refresh(teacher)
        self._tables.give_up(batch, teacher)
        self._judge(out)  # if it was revoked, it may have been the last hope of the batch

    def _on_refused(self, event: Refused, out: list[Instruction]) -> None:
        teacher, batch = self._end_request(event.teacher, event.batch)
        if teacher is None or batch is None or batch.stage is not Stage.IN_FLIGHT:
            return
        batch.refusals = {**(batch.refusals or {}), teacher.name: event.reason}
        self._tables.refused[batch.id] = batch
        self._tables.give_up(batch, teacher)
        self._judge(out)

    def _end_request(self, name: str, batch_id: int) -> tuple[Teacher | None, Batch | None]:
        """Take a request out of its teacher's window; (None, None) if it is not in flight there."""
        teacher = self._tables.teachers.get(name)
        if teacher is None or (batch := teacher.in_flight.pop(batch_id, None)) is None:
            return None, None
        batch.holders.discard(name)
        self._tables.refresh(teacher)
        return teacher, batch

    def _judge(self, out: list[Instruction]) -> None:
        """Poison what enough have refused; for whenever refusals or teachers have changed."""
        if not self._tables.refused:
            return
        for batch in tuple(self._tables.refused.values()):
            if is_poison(batch, self._tables.teachers.values()):
                self._tables.settle(batch, Stage.POISONED)
        self._deliver(out)

    # -------------------------------------------------------------------------- the student

    def _on_taken(self, event: Taken) -> None:
        batch = self._tables.batches.get(event.batch)
        if batch is None:
            return  # of an epoch that was left
        if batch.stage is not Stage.DELIVERED:
            raise ValueError(f"batch {batch.id} was taken, but it is {batch.stage.value}")
        self._tables.deliverable -= 1
        self._tables.volume_bytes -= batch.nbytes
        self._tables.forget(batch)

    def _on_reset(self) -> None:
        for batch in self._tables.batches.values():
            batch.stage = Stage.FORGOTTEN
        old = self._tables
        self._tables = Tables(teachers=old.teachers, open=old.open, last_id=old.last_id)

    def _deliver(self, out: list[Instruction]) -> None:
        """Deliver from the head of the line for as long as it is decided."""
        line = self._tables.line
        while line and line[0].stage not in UNSETTLED:
            batch = line.popleft()
            if batch.stage is Stage.LABELLED:
                self._tables.deliver(batch)
                out.append(Deliver(batch.id))
            else:
                said = (batch.refusals or {}).items()
                out.append(Poison(batch.id, tuple(f"{name}: {why}" for name, why in said)))
                self._tables.forget(batch)

    # ----------------------------------------------------------------------------- dispatch

    def _dispatch(self, out: list[Instruction]) -> None:
        """Send queued batches, the front first, while a teacher that may have them is open."""
        tables = self._tables
        kept = []  # refused by every teacher that is open; few, as the caller bounds the queue
        while tables.queue and tables.open:
            batch = tables.batches[heappop(tables.queue)]
            teacher = soonest(batch, tables.open.values())
            if teacher is None:
                kept.append(batch.id)
                continue
            batch.stage = Stage.IN_FLIGHT
            batch.attempts += 1
            batch.holders.add(teacher.name)
            teacher.in_flight[batch.id] = batch
            tables.refresh(teacher)
            self._resends += batch.attempts > 1
            out.append(Send(batch.id, teacher.name, batch.attempts))
        for batch_id in kept:
            heappush(tables.queue, batch_id)
