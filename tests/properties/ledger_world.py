"""The world around a ledger, on its own books: what each row is, which teacher has it.

It reads the ledger only through its instructions and its figures, applies each event to its own
books first, and holds every instruction against them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean
from typing import Final

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.reader_core.delivery import Delivery, look_ahead
from edl.scheduler.stream_stats import STEP_WINDOW

from ..scheduler.ledger import invariants

ROW_NBYTES: Final = 7
WAITS: Final = None  # a row that nobody has; an int: in flight in this request; a str: labelled by
STORE: Final = "the store"

Row = int | str | None


@dataclass
class Worker:
    window: int
    most_rows: int | None = None
    revoked: bool = False
    resting: bool = False
    on_trial: bool = False
    labels: bool = False  # it has answered with labels
    requests: list[int] = field(default_factory=list)  # in the order of sending

    @property
    def usable(self) -> bool:
        return not (self.revoked or self.resting or self.on_trial)


@dataclass
class SentRequest:
    """A request: what it is made of, how often it was sent, whose answer would count."""

    spans: tuple[ev.Span, ...]
    attempt: int
    counts: set[str]
    wished: int = 0  # copies asked for and not sent


@dataclass
class Book:
    """A batch that is not over."""

    rows: list[Row]
    nbytes: int
    layout_id: int = 0
    said: dict[str, str] = field(default_factory=dict)  # who refused it, and why
    counted: set[str] = field(default_factory=set)  # those of them that label
    crashes: dict[str, int] = field(default_factory=dict)  # how often it crashed a predictor
    again: set[str] = field(default_factory=set)  # who may have it once more after that
    alone: bool = False
    condemned: bool = False  # will be poison
    forgone: bool = False
    told: bool = False  # the ledger has said that it is labelled, or poison
    withheld: bool = False  # until a store has said what it has
    looked_up: bool = False  # it is asked
    makers: set[str] = field(default_factory=set)  # of labels that are void together
    ages: dict[int, int] = field(default_factory=dict)  # row -> how often it was sent

    @property
    def settled(self) -> bool:
        return self.condemned or self.forgone or all(isinstance(row, str) for row in self.rows)

    @property
    def labellers(self) -> list[str]:
        """Teachers whose labels it has, and that of the store, first those of its first rows."""
        return [*(row for row in self.rows if isinstance(row, str)), *sorted(self.makers)]

    @property
    def waits(self) -> bool:
        return not self.settled and not self.withheld and WAITS in self.rows

    def withhold(self) -> None:
        self.withheld, self.looked_up = True, False

    def barred(self) -> set[str]:
        """Who is not to get it."""
        return {*self.said} - self.again

    def refuse(self, name: str, why: str, labels: bool, crash: bool) -> None:
        self.said[name] = why
        self.again.discard(name)
        self.crashes[name] = self.crashes.get(name, 0) + 1 if crash else 0
        if labels:
            self.counted.add(name)

    def may_crash_again(self) -> set[str]:
        often = {name for name, times in self.crashes.items() if times >= 3}
        return {n for n in self.said if self.crashes[n]} - (often & self.counted)

    def forgive(self, name: str) -> None:
        """Forget what a teacher refused that has labelled nothing."""
        if name in self.said and name not in self.counted:
            del self.said[name], self.crashes[name]
            self.again.discard(name)

    def void(self, rows: Iterable[int]) -> None:
        """These rows have no labels any more."""
        for row in rows:
            self.rows[row] = WAITS
            self.ages[row] = 1

    @property
    def volume(self) -> int:
        return self.nbytes + ROW_NBYTES * len(self.rows) * (not self.forgone)


def runs_of(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Growing row numbers as runs (start, stop)."""
    starts = [row for row in rows if row - 1 not in rows]
    stops = [row + 1 for row in rows if row + 1 not in rows]
    return tuple(zip(starts, stops, strict=True))


class World:
    """The books of everything outside of one ledger, and the ledger."""

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self.ledger = Ledger()
        self.delivery = Delivery({"s": self.ledger}, ordered=ordered)
        self.workers: dict[str, Worker] = {}
        self.ghosts: list[tuple[str, int]] = []  # requests of teachers that were declared lost
        self.asked: dict[int, SentRequest] = {}
        self.named: set[tuple[int, str]] = set()  # copies asked for, and from whom
        self.books: dict[int, Book] = {}
        self.line: list[int] = []  # not released, in order
        self.student: list[int] = []  # released, not taken
        self.taken: list[int] = []
        self.steps: list[float] = []  # seconds of the student's
        self.awaited = 0  # teachers that may join any moment
        self.sent = self.resends = self.copies = 0

    def tell(self, event: ev.Event) -> list[ev.Instruction]:
        """Let the ledger take the event, which the books know already; check what it commands."""
        self.judge()
        lookups = {b for b, k in self.books.items() if k.withheld and not k.looked_up}
        out = self.ledger.handle(event)
        for instruction in out:
            match instruction:
                case ev.Send():
                    self.is_sent(instruction)
                case ev.BatchLabelled(batch):
                    book = self.settles(batch)
                    assert not book.condemned, "labelled poison"
                    assert not book.forgone, "it goes without labels"
                    self.heard(instruction)
                case ev.GoesUnlabelled(batch):
                    assert self.settles(batch).forgone
                    self.heard(instruction)
                case ev.Poison(batch, reasons):
                    book = self.settles(batch)
                    assert book.condemned, "poisoned too early"
                    assert reasons == tuple(f"{name}: {why}" for name, why in book.said.items())
                    self.heard(instruction)
                case ev.LabelsRevoked(batch, whole):
                    assert batch in self.line, "of a batch that is released"
                    book = self.books[batch]
                    assert book.told
                    assert whole is not any(isinstance(row, str) for row in book.rows)
                    book.told = False
                    self.heard(instruction)
                case ev.LookUp(batch):
                    lookups.remove(batch)
                    self.books[batch].looked_up = True
                case ev.Accept(request) | ev.Discard(request):
                    assert isinstance(event, ev.Answered)
                    assert request == event.request
        assert not lookups, "withheld, and not looked up"
        for batch in self.line:
            assert self.books[batch].told is self.books[batch].settled, "and nobody was told"
        return out

    def heard(
        self, said: ev.BatchLabelled | ev.GoesUnlabelled | ev.LabelsRevoked | ev.Poison
    ) -> None:
        out = self.delivery.handle("s", said)
        assert not any(isinstance(one, do.ForwardEvent) for one in out), "there is no other service"

    def settles(self, batch: int) -> Book:
        assert batch in self.line
        book = self.books[batch]
        assert book.settled, "labelled without labels"
        assert not book.told, "labelled twice"
        book.told = True
        return book

    def release(self) -> None:
        """Let the student have what it may take."""
        ahead = look_ahead(fmean(self.steps[-STEP_WINDOW:]) if self.steps else None)
        out = self.delivery.release()
        released = [batch for one in out if isinstance(one, do.Release) for batch in one.batches]
        assert [one.event for one in out if isinstance(one, do.ForwardEvent)] == [
            ev.Released(batch) for batch in released
        ]
        if not self.student:
            first = self.line[:1] if self.ordered else self.line
            assert released or not any(self.books[batch].settled for batch in first)
        for batch in released:
            assert not self.ordered or batch == self.line[0], "out of order"
            assert self.books[batch].told, "released without labels"
            self.line.remove(batch)
            assert self.ledger.handle(ev.Released(batch)) == []
            if self.books[batch].condemned:
                del self.books[batch]
                self.delivery.taken(batch, None)
            else:
                self.student.append(batch)
        assert len(self.student) <= ahead or not released

    def take(self, step_s: float) -> None:
        """The student takes the next batch, after a step that took so long."""
        batch = self.student.pop(0)
        self.taken.append(batch)
        del self.books[batch]
        self.steps.append(step_s)
        self.delivery.taken(batch, step_s)
        self.tell(ev.BatchConsumed(batch))

    def judge(self) -> None:
        there = {n for n, w in self.workers.items() if not (w.revoked or w.on_trial)}
        for batch in sorted(self.line):
            book = self.books[batch]
            by_all = there and not self.awaited and there <= book.barred() and book.waits
            if book.settled or not book.said:
                continue
            if len(book.counted) >= 3:
                book.condemned = True
            elif by_all and (crashed := there & book.may_crash_again()):
                if crashed & book.counted or any(self.may_retry(book, name) for name in crashed):
                    book.again = book.may_crash_again()
            elif by_all and book.counted:
                book.condemned = True

    def may_retry(self, book: Book, name: str) -> bool:
        """Whether a teacher that it crashed, and that has labelled nothing, has nothing else."""
        worker = self.workers[name]
        waiting = [other for other in self.books.values() if other.waits]
        fewer = range(1, book.crashes[name])
        return (worker.usable and not worker.requests) and not any(
            name not in other.barred() or other.crashes[name] in fewer for other in waiting
        )

    def is_sent(self, send: ev.Send) -> None:
        worker = self.workers[send.teacher]
        assert not worker.revoked, "sent to a revoked teacher"
        assert len(worker.requests) < worker.window, "sent beyond the window"
        for span in send.spans:
            assert span.batch in self.line, "sent, but it is over"
            assert not self.books[span.batch].settled, "sent, but it is settled"
            barred = self.books[span.batch].barred()
            assert send.teacher not in barred, "sent to one that refused it"
        if send.request in self.asked:
            self.is_copied(send, worker)
        else:
            self.is_new(send, worker)
        worker.requests.append(send.request)

    def is_copied(self, send: ev.Send, worker: Worker) -> None:
        asked = self.asked[send.request]
        assert send.spans == asked.spans, "a copy of something else"
        assert asked.counts, "a copy of what is over"
        assert send.request not in worker.requests, "sent twice to the same"
        assert send.attempt == asked.attempt + 1
        asked.attempt += 1
        asked.wished -= 1
        self.copies += 1
        assert asked.wished >= 0, "copied more often than was asked for"
        assert worker.usable or (send.request, send.teacher) in self.named, "to one not usable"
        if not worker.on_trial:
            asked.counts.add(send.teacher)

    def is_new(self, send: ev.Send, worker: Worker) -> None:
        assert worker.usable, "sent to one that is not usable"
        batches = sorted({span.batch for span in send.spans})
        books = [self.books[batch] for batch in batches]
        assert len({book.layout_id for book in books}) == 1, "unequal layouts are joined"
        assert len(books) == 1 or not any(book.alone for book in books), "joined, but to be alone"
        rows = [(s.batch, row) for s in send.spans for row in range(s.start, s.stop)]
        assert rows == sorted(set(rows)), "rows out of order, or twice"
        ends = {(span.batch, span.stop) for span in send.spans}
        assert not any((s.batch, s.start) in ends for s in send.spans), "one run in two spans"
        for batch in self.line:
            mine = send.teacher not in self.books[batch].barred()
            if batch < batches[0] and mine:
                assert not self.books[batch].waits, "sent before what is first in line"
        ages = []
        for batch, row in rows:
            assert self.books[batch].rows[row] is WAITS, "sent, but it does not wait"
            assert not self.books[batch].withheld, "sent before the store was asked"
            self.books[batch].rows[row] = send.request
            ages.append(self.books[batch].ages.get(row, 0))
        for batch, stop in dict(sorted(ends)).items():
            assert WAITS not in self.books[batch].rows[:stop], "not the first rows that wait"
        if worker.most_rows is None:
            assert len(batches) == 1
            assert not books[0].waits, "less than what the batch lacks"
        else:
            assert len(rows) <= worker.most_rows, "more rows than it takes"
            assert len(rows) == worker.most_rows or not books[0].waits, "less than there is"
        assert send.attempt == max(ages) + 1
        self.sent += 1
        self.resends += send.attempt > 1
        assert send.request == self.sent, "requests are counted"
        self.asked[send.request] = SentRequest(send.spans, send.attempt, {send.teacher})

    def ends(self, name: str, request: int) -> bool:
        worker = self.workers[name]
        worker.requests.remove(request)
        if worker.revoked and not worker.requests:
            del self.workers[name]
        return name in self.asked[request].counts

    def gives_up(self, name: str, request: int) -> None:
        asked = self.asked[request]
        if name in asked.counts:
            asked.counts.remove(name)
            if not asked.counts:
                for batch, row in self.rows_of(request):
                    self.books[batch].rows[row] = WAITS
                    self.books[batch].ages[row] = asked.attempt

    def rows_of(self, request: int) -> list[tuple[int, int]]:
        return [
            (span.batch, row)
            for span in self.asked[request].spans
            if span.batch in self.line and not self.books[span.batch].settled
            for row in range(span.start, span.stop)
            if self.books[span.batch].rows[row] == request
        ]

    def is_answered(self, name: str, request: int) -> None:
        """The labels come: they count, or they are discarded, and the ledger knows which."""
        counts = self.ends(name, request)
        if name in self.workers:
            self.workers[name].labels = True
        for book in self.books.values():
            if name in book.said:
                book.counted.add(name)
        wanted = self.rows_of(request) if counts else []
        if counts:
            self.asked[request].counts.clear()
        for batch, row in wanted:
            self.books[batch].rows[row] = name
        out = self.tell(ev.Answered(name, request, ROW_NBYTES, device_s=0.1 * (request % 3)))
        accepted = [i.spans for i in out if isinstance(i, ev.Accept)]
        assert (ev.Discard(request, name) in out) is not bool(wanted)
        assert accepted == ([self.spans_of(request, wanted)] if wanted else [])

    def is_partly_over(self, request: int) -> bool:
        """Whether its answer would count, but no longer for all of its rows."""
        asked = self.asked[request]
        return bool(asked.counts) and len(self.rows_of(request)) < sum(s.rows for s in asked.spans)

    def spans_of(self, request: int, rows: list[tuple[int, int]]) -> tuple[ev.Span, ...]:
        return tuple(s for s in self.asked[request].spans if (s.batch, s.start) in rows)

    def forgive(self, name: str) -> None:
        """A teacher joins, or is gone: what it refused before it labelled anything is void."""
        for book in self.books.values():
            if not book.condemned:
                book.forgive(name)

    def void_all(self) -> None:
        for asked in self.asked.values():
            asked.counts.clear()

    def agrees(self) -> None:
        ledger, workers, books = self.ledger, self.workers, self.books
        invariants.check(ledger)
        usable = [w for w in workers.values() if w.usable]
        unlabelled = [b for b in self.line if not books[b].settled]
        held = [b for b in self.line if books[b].settled and not books[b].condemned]
        assert ledger.unlabelled == len(unlabelled)
        assert ledger.head == (unlabelled[0] if unlabelled else None)
        withheld = {b for b in self.line if books[b].withheld}
        assert set(ledger.withheld) == withheld
        assert ledger.queued == sum(books[b].waits for b in self.line) + len(withheld)
        assert ledger.labelled == len(self.line) - len(unlabelled) + len(self.student)
        in_order = sorted((*self.student, *self.line))
        assert ledger.has_next(ordered=True) == (in_order[:1] != unlabelled[:1])
        assert ledger.has_next(ordered=False) == (ledger.labelled > 0)
        assert ledger.volume_bytes == sum(books[b].volume for b in (*self.student, *held))
        assert ledger.in_flight == sum(len(w.requests) for w in workers.values())
        load = ledger.load
        assert load.window_room == sum(max(w.window - len(w.requests), 0) for w in usable)
        assert load.idle == sum(not w.requests for w in usable)
        assert ledger.usable == len(usable)
        assert set(ledger.teachers) == {n for n, w in workers.items() if not w.revoked}
        trials = {n for n, w in workers.items() if w.on_trial and not w.revoked}
        assert set(ledger.on_trial) == trials
        assert (ledger.sent, ledger.resends) == (self.sent, self.resends)
        assert ledger.hedges + ledger.named_copies == self.copies
        for name, worker in workers.items():
            assert list(ledger.in_flight_at(name)) == worker.requests
            for told in ledger.requests_at(name):
                asked = self.asked[told.request]
                assert (told.spans, told.attempt) == (asked.spans, asked.attempt)
                assert set(told.teachers) == asked.counts
        for batch, book in books.items():
            if not book.settled:
                self.says_who_labelled(batch, book)

    def says_who_labelled(self, batch: int, book: Book) -> None:
        teachers = {name for name in book.rows if isinstance(name, str) and name != STORE}
        assert set(self.ledger.makers(batch)) == teachers


def check_liveness(world: World, names: Sequence[str]) -> None:
    """Liveness: the head is labelled after k answers of one healthy teacher, all others lost.

    Stores that are asked answer, too. k = its window, which others' lost rows may fill before the
    head itself is lost, and as many requests as the head is cut into. Poison is a way out as well,
    where the teacher itself has refused the head; one that has labelled nothing is ejected then.
    """
    usable = {name: worker for name, worker in world.workers.items() if worker.usable}
    head = world.ledger.head
    if head is not None and usable:
        packed = pickle.dumps(world.ledger)  # copy.deepcopy takes ten times as long
        for name, worker in usable.items():
            rows = len(world.books[head].rows)
            pieces = ceil(rows / (worker.most_rows or rows))
            answers = _answers_until_the_head_is_out(pickle.loads(packed), name, names)
            assert answers <= max(worker.window, len(worker.requests)) + pieces


def _answers_until_the_head_is_out(ledger: Ledger, healthy: str, names: Sequence[str]) -> int:
    """Lose all of `names` but one, let that answer in order: how many answers label the head."""
    head = ledger.head
    others = [name for name in names if name != healthy]
    out = [i for name in others for i in ledger.handle(ev.TeacherGone(name))]
    out += [i for batch in tuple(ledger.withheld) for i in ledger.handle(ev.StoreSearched(batch))]
    out += ledger.handle(ev.Awaited(0))
    answers = 0
    while not any(isinstance(i, ev.BatchLabelled | ev.Poison) and i.batch == head for i in out):
        oldest = ledger.in_flight_at(healthy)
        if not oldest and ledger.is_useless(healthy):
            break
        assert oldest, "the healthy teacher idles while the head waits"
        out = ledger.handle(ev.Answered(healthy, oldest[0], ROW_NBYTES, 0.1))
        invariants.check(ledger)
        answers += 1
    return answers
