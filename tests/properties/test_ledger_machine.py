"""Whatever teachers, source and student do, the ledger keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from edl.scheduler.ledger import events as ev
from edl.scheduler.reader_core import instructions as do

from .ledger_teachers import NAMES, LedgerTeachers, names, nth, seldom
from .ledger_world import ROW_NBYTES, STORE, WAITS, Book, World, check_liveness, runs_of

#: Their sums are exact, however they are added up.
STEPS_S = (1 / 64, 1 / 32, 1 / 8)


class LedgerMachine(LedgerTeachers):
    @initialize(ordered=st.booleans(), held=st.integers(0, 3))
    def an_engine_starts(self, ordered: bool, held: int) -> None:
        self.world = World(ordered=ordered)
        self.next_id = 0
        for _ in range(held):
            self.hold(self.new_id(), rows=2, nbytes=100)

    def new_id(self, gap: int = 0) -> int:
        batch = self.next_id + gap
        self.next_id = batch + 1
        return batch

    def hold(
        self,
        batch: int,
        rows: int,
        nbytes: int,
        layout_id: int = 0,
        makers: tuple[str, ...] = (),
        *,
        released: bool = False,
    ) -> None:
        book = self.world.books[batch] = Book([STORE] * rows, nbytes, layout_id, makers={*makers})
        book.told = True
        self.world.line.append(batch)
        assert (
            self.world.tell(ev.BatchRestored(batch, nbytes, rows, layout_id, makers, ROW_NBYTES))
            == []
        )
        if released:
            self.world.line.remove(batch)
            self.world.student.append(batch)
        told = self.world.delivery.restore(batch, released=released)
        assert told == [do.ForwardEvent("s", ev.Released(batch))] * released
        if released:
            assert self.world.ledger.handle(ev.Released(batch)) == []

    @rule(
        count=st.integers(1, 6),
        rows=st.integers(1, 8),
        gap=st.integers(0, 2),
        layout_id=st.sampled_from([0, 0, 0, 1]),
        labelled=st.none() | st.lists(st.booleans(), min_size=8, max_size=8),
    )
    def the_source_yields(
        self, count: int, rows: int, gap: int, layout_id: int, labelled: list[bool] | None
    ) -> None:
        for _ in range(count):
            batch = self.new_id(gap)
            book = self.world.books[batch] = Book([WAITS] * rows, 100 + batch, layout_id)
            missing = None
            if labelled is not None:
                book.rows = [STORE if known else WAITS for known in labelled[:rows]]
                missing = runs_of([row for row in range(rows) if not labelled[row]])
            self.world.line.append(batch)
            self.world.delivery.queue(batch)
            self.world.tell(ev.Queued(batch, book.nbytes, rows, missing, ROW_NBYTES, layout_id))

    @rule(name=names, count=st.integers(1, 4), rows=st.integers(1, 8), steps=st.integers(0, 4))
    def all_goes_well_for_a_while(self, name: str, count: int, rows: int, steps: int) -> None:
        """Most examples would not get so far by single rules that follow each other by chance."""
        if not any(worker.usable for worker in self.world.workers.values()):
            self.a_teacher_joins(name, window=2, most=None, seconds=None, trial=False)
        self.the_source_yields(count, rows, gap=0, layout_id=0, labelled=None)
        self.the_oldest_requests_are_answered(2 * count)
        self.batches_are_released()
        if steps:
            self.the_student_takes(steps, STEPS_S[0])

    @rule()
    def batches_are_released(self) -> None:
        self.world.release()

    @rule(count=st.integers(1, 3), step_s=st.sampled_from(STEPS_S))
    def the_student_takes(self, count: int, step_s: float) -> None:
        world = self.world
        if not world.student:  # it waits
            world.release()
        for _ in range(min(count, len(world.student))):
            world.take(step_s)
        assert not world.ordered or world.taken == sorted(set(world.taken))

    @precondition(lambda self: self.world.books)
    @rule(index=nth, now=seldom)
    def a_batch_is_doubted(self, index: int, now: bool) -> None:
        if now:
            batches = sorted(self.world.books)
            batch = batches[index % len(batches)]
            book = self.world.books[batch]
            if batch in self.world.line and book.settled:
                book.forgone = book.condemned = False
                book.makers.clear()
                book.void(range(len(book.rows)))
            self.world.tell(ev.InvalidateBatch(batch))

    @precondition(lambda self: self.world.ledger.withheld)
    @rule(count=st.integers(1, 4), known=st.lists(st.booleans(), min_size=8, max_size=8))
    def the_store_says_what_it_has(self, count: int, known: list[bool]) -> None:
        world = self.world
        for batch in sorted(world.ledger.withheld)[:count]:
            book = world.books[batch]
            book.withheld = False
            book.ages.clear()
            rows = range(len(book.rows))
            book.rows = [STORE if known[row] else WAITS for row in rows]
            missing = runs_of([row for row in rows if not known[row]])
            world.tell(ev.StoreSearched(batch, missing, ROW_NBYTES))
            assert world.ledger.handle(ev.StoreSearched(batch)) == [], "once"

    @precondition(lambda self: self.world.line)
    @rule(index=nth, head=st.booleans(), now=seldom)
    def it_goes_without_labels(self, index: int, head: bool, now: bool) -> None:
        if not now:
            return
        batch = self.world.line[0 if head else index % len(self.world.line)]
        book = self.world.books[batch]
        book.forgone |= not book.settled
        book.withheld &= not book.forgone
        self.world.tell(ev.DeliverUnlabelled(batch))

    @rule(engine=st.booleans(), now=seldom)
    def all_starts_over(self, engine: bool, now: bool) -> None:
        if now and engine:
            self.engine_dies_and_another_takes_over()
        elif now:  # another epoch begins
            self.world.void_all()
            for batch in (*self.world.line, *self.world.student):
                del self.world.books[batch]
            self.world.line.clear()
            self.world.student.clear()
            self.world.delivery.reset()
            assert self.world.tell(ev.Reset()) == []

    @rule(stored=st.booleans(), now=seldom)
    def the_model_is_exchanged(self, stored: bool, now: bool) -> None:
        """Nothing of the old one counts any more: neither its labels nor what it refused."""
        if not now:
            return
        world = self.world
        world.void_all()
        for batch in world.line:
            old = world.books[batch]
            world.books[batch] = Book(
                [WAITS] * len(old.rows), old.nbytes, old.layout_id, told=old.told
            )
            if stored:
                world.books[batch].withhold()
        out = world.tell(ev.Relabel(stored))
        assert all(isinstance(i, ev.Send | ev.LabelsRevoked | ev.LookUp) for i in out)

    def engine_dies_and_another_takes_over(self) -> None:
        """The new one is told what the student's side holds, which labels it has or lacks."""
        old, self.world = self.world, World(ordered=self.world.ordered)
        self.world.taken = old.taken
        for batch in sorted((*old.student, *old.line)):
            book = old.books[batch]
            rows = len(book.rows)
            if book.told:
                makers = {*book.makers, *(row for row in book.rows if row in NAMES)}
                makers = set() if book.forgone or book.condemned else makers
                told = (book.nbytes, book.layout_id, tuple(sorted(makers)))
                self.hold(batch, rows, *told, released=batch in old.student)
            else:
                self.world.books[batch] = Book([WAITS] * rows, book.nbytes, book.layout_id)
                self.world.line.append(batch)
                self.world.delivery.queue(batch)
                out = self.world.tell(ev.Queued(batch, book.nbytes, rows, layout_id=book.layout_id))
                assert out == []

    @invariant()
    def its_figures_are_the_worlds(self) -> None:
        if hasattr(self, "world"):
            self.world.agrees()

    @invariant()
    def one_healthy_teacher_moves_the_line(self) -> None:
        if hasattr(self, "world"):
            check_liveness(self.world, NAMES)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=100)


def test_an_answer_from_before_a_batch_was_doubted_does_not_count() -> None:
    """The batch went without labels while its request was in flight, and is labelled anew."""
    machine = LedgerMachine()
    machine.an_engine_starts(ordered=True, held=0)
    machine.the_source_yields(count=1, rows=2, gap=0, layout_id=0, labelled=None)
    for name in "ab":
        machine.a_teacher_joins(name, window=1, most=None, seconds=None, trial=False)
    machine.it_goes_without_labels(index=0, head=True, now=True)
    machine.a_batch_is_doubted(0, now=True)
    machine.its_figures_are_the_worlds()
    machine.the_oldest_requests_are_answered(8)
    machine.its_figures_are_the_worlds()
    machine.batches_are_released()
    assert machine.world.student == [0]
