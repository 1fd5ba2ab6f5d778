"""Whatever teachers, source and student do, the ledger keeps its promises."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from edl.scheduler.ledger import events as ev

from .ledger_teachers import NAMES, LedgerTeachers, nth, seldom
from .ledger_world import ROW_NBYTES, STORE, WAITS, Book, World, check_liveness, runs_of


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
        self, batch: int, rows: int, nbytes: int, kind: int = 0, makers: tuple[str, ...] = ()
    ) -> None:
        book = self.world.books[batch] = Book([STORE] * rows, nbytes, kind, makers={*makers})
        book.held = True
        self.world.student.append(batch)
        assert self.world.tell(ev.Held(batch, nbytes, rows, kind, makers, ROW_NBYTES)) == []

    @rule(
        count=st.integers(1, 6),
        rows=st.integers(1, 8),
        gap=st.integers(0, 2),
        kind=st.sampled_from([0, 0, 0, 1]),
        labelled=st.none() | st.lists(st.booleans(), min_size=8, max_size=8),
    )
    def the_source_yields(
        self, count: int, rows: int, gap: int, kind: int, labelled: list[bool] | None
    ) -> None:
        for _ in range(count):
            batch = self.new_id(gap)
            book = self.world.books[batch] = Book([WAITS] * rows, 100 + batch, kind)
            missing = None
            if labelled is not None:
                book.rows = [STORE if known else WAITS for known in labelled[:rows]]
                missing = runs_of([row for row in range(rows) if not labelled[row]])
            self.world.line.append(batch)
            self.world.tell(ev.Queued(batch, book.nbytes, rows, missing, ROW_NBYTES, kind))

    @precondition(lambda self: self.world.student)
    @rule(count=st.integers(1, 3))
    def the_student_takes(self, count: int) -> None:
        world = self.world
        for _ in range(min(count, len(world.student))):
            batch = world.student[0]
            if world.ordered and any(b < batch and world.books[b].returned for b in world.line):
                return  # it has handed an earlier one back
            world.student.remove(batch)
            world.taken.append(batch)
            del world.books[batch]
            world.tell(ev.Taken(batch))
        assert not world.ordered or world.taken == sorted(set(world.taken))

    @precondition(lambda self: any(b.recalled for b in self.world.books.values()))
    @rule(index=nth)
    def it_hands_one_back(self, index: int) -> None:
        world = self.world
        recalled = [batch for batch, book in world.books.items() if book.recalled]
        batch = recalled[index % len(recalled)]
        book = world.books[batch]
        world.student.remove(batch)
        world.line.append(batch)
        world.line.sort()
        is_whole = len(book.doubted) == len(book.rows)
        for row in book.doubted:
            book.rows[row] = WAITS
            book.ages[row] = 1
        book.doubted.clear()
        book.recalled, book.returned = False, True
        book.outdated = book.forgone = False
        if book.to_look_up:
            book.to_look_up = False
            book.withhold()
        assert (ev.Void(batch) in world.tell(ev.Recalled(batch))) is is_whole

    @precondition(lambda self: self.world.student)
    @rule(index=nth, now=seldom)
    def a_batch_is_doubted(self, index: int, now: bool) -> None:
        if now:
            batch = self.world.student[index % len(self.world.student)]
            self.world.books[batch].doubt()
            self.world.doubts_what_is_outdated()
            self.world.tell(ev.Doubt(batch))

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
            world.tell(ev.Found(batch, missing, ROW_NBYTES))
            assert world.ledger.handle(ev.Found(batch)) == [], "once"

    @precondition(lambda self: self.world.line)
    @rule(index=nth, head=st.booleans(), now=seldom)
    def it_goes_without_labels(self, index: int, head: bool, now: bool) -> None:
        if not now:
            return
        batch = self.world.line[0 if head else index % len(self.world.line)]
        book = self.world.books[batch]
        book.forgone |= not book.settled
        book.withheld &= not book.forgone
        self.world.tell(ev.Forgo(batch))

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
            world.books[batch] = Book([WAITS] * len(old.rows), old.nbytes, old.kind)
            world.books[batch].returned, world.books[batch].held = old.returned, old.held
            if stored:
                world.books[batch].withhold()
        recalled = [batch for batch in world.student if world.books[batch].recalled]
        ahead = min((*world.line, *recalled), default=self.next_id) if world.ordered else None
        for batch in world.student:
            world.books[batch].outdate(stored)
            if batch in recalled or (ahead is not None and batch > ahead):
                world.books[batch].doubt()
        out = world.tell(ev.Relabel(stored))
        assert all(isinstance(i, ev.Send | ev.Recall | ev.LookUp) for i in out)

    def engine_dies_and_another_takes_over(self) -> None:
        """The new one is told what the student's side holds, which labels it has or lacks."""
        old, self.world = self.world, World(ordered=self.world.ordered)
        self.world.taken = old.taken
        for batch in old.student:
            book = old.books[batch]
            makers = {*book.makers, *(row for row in book.rows if row in NAMES)}
            makers = set() if book.forgone else makers
            self.hold(batch, len(book.rows), book.nbytes, book.kind, tuple(sorted(makers)))
        for batch in old.line:
            book = old.books[batch]
            new = self.world.books[batch] = Book([WAITS] * len(book.rows), book.nbytes, book.kind)
            new.returned = book.returned
            self.world.line.append(batch)
            out = self.world.tell(ev.Queued(batch, book.nbytes, len(book.rows), kind=book.kind))
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


def test_an_answer_from_before_a_batch_was_handed_back_does_not_count() -> None:
    """The batch went out unlabelled, while its request was in flight, and was handed back."""
    machine = LedgerMachine()
    machine.an_engine_starts(ordered=True, held=3)
    for student_index in (1, 2):
        machine.a_batch_is_doubted(student_index, now=True)
    for name in "ab":
        machine.a_teacher_joins(name, window=1, most=None, seconds=None, trial=False)
    for _ in range(2):
        machine.it_hands_one_back(1)
    machine.it_goes_without_labels(index=0, head=True, now=True)
    machine.a_batch_is_doubted(1, now=True)
    machine.it_hands_one_back(0)
    machine.its_figures_are_the_worlds()
    machine.the_oldest_requests_are_answered(8)
    machine.its_figures_are_the_worlds()
    assert machine.world.student == [0, 1, 2]


def test_what_is_handed_back_to_a_new_engine_is_in_line_before_later_batches() -> None:
    """The new engine is told of batch 2, which is held, before batch 1, which lacks labels."""
    machine = LedgerMachine()
    machine.an_engine_starts(ordered=True, held=3)
    machine.the_student_takes(1)
    machine.a_batch_is_doubted(0, now=True)
    machine.it_hands_one_back(0)
    machine.all_starts_over(engine=True, now=True)
    machine.a_batch_is_doubted(0, now=True)
    machine.it_hands_one_back(0)
    machine.its_figures_are_the_worlds()
    assert machine.world.line == [1, 2]
