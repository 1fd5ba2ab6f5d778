"""Whatever teachers, source and student do, the ledger keeps its promises (DESIGN 1, 2 and 5).

The machine is the world: it knows which requests are on their way, whose answers may still come,
and what was promised. It reads the ledger only through its instructions and its figures. After each
event the ledger's own `validate` runs too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger_events import (
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

pytestmark = pytest.mark.timeout(1800)  # seconds, for the nightly counts

NAMES = ("a", "b", "c", "d", "e")
LABEL_BYTES = 7

names = st.sampled_from(NAMES)
windows = st.integers(1, 3)
speeds = st.none() | st.sampled_from([0.1, 0.2, 1.0])
nth = st.integers(0, 30)  # picks from whatever there is, modulo its length


@dataclass
class Worker:
    """A teacher as the world sees it."""

    window: int
    revoked: bool = False
    resting: bool = False
    requests: list[int] = field(default_factory=list)  # in the order of sending


class LedgerMachine(RuleBasedStateMachine):
    """Drives one reader's ledger through everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.workers: dict[str, Worker] = {}
        self.ghosts: list[tuple[str, int]] = []  # requests of teachers that were declared lost
        self.void: set[tuple[str, int]] = set()  # requests to a model that was exchanged
        self.next_id = 0
        self.nbytes: dict[int, int] = {}  # every batch that is not over
        self.line: list[int] = []  # neither delivered nor poisoned, in order
        self.labelled: set[int] = set()  # accepted answers of batches in line
        self.student: list[int] = []  # delivered, not taken
        self.refused: dict[int, dict[str, str]] = {}
        self.condemned: set[int] = set()  # will be poison, once first in line
        self.attempts: dict[int, int] = {}
        self.resends = 0

    # ---------------------------------------------------------------- the world obeys, and checks

    def tell(self, event: Event) -> list[Instruction]:
        self.judge()
        out = self.ledger.handle(event)
        for instruction in out:
            match instruction:
                case Send():
                    self.sent(instruction)
                case Deliver(batch):
                    assert batch == self.line.pop(0), "out of order, or twice"
                    assert batch in self.labelled, "delivered without labels"
                    self.labelled.remove(batch)
                    self.student.append(batch)
                case Poison(batch, reasons):
                    assert batch == self.line.pop(0), "out of order, or twice"
                    assert batch in self.condemned, "poisoned too early"
                    said = self.refused.pop(batch)
                    assert reasons == tuple(f"{name}: {why}" for name, why in said.items())
                    del self.nbytes[batch]
                case Discard(batch, teacher):
                    assert isinstance(event, Answered)
                    assert (batch, teacher) == (event.batch, event.teacher)
        return out

    def judge(self) -> None:
        """The poison rule, on the world's own books."""
        there = {name for name, worker in self.workers.items() if not worker.revoked}
        in_flight = self.in_flight()
        for batch, said in self.refused.items():
            if len(said) >= 3 or (there and there <= set(said) and batch not in in_flight):
                self.condemned.add(batch)

    def in_flight(self) -> set[int]:
        """Batches of which an answer is wanted from someone."""
        requests = ((name, batch) for name, w in self.workers.items() for batch in w.requests)
        return {batch for name, batch in requests if (name, batch) not in self.void}

    def sent(self, send: Send) -> None:
        worker = self.workers[send.teacher]
        assert not worker.revoked, "sent to a revoked teacher"
        assert not worker.resting, "sent to a resting teacher"
        assert len(worker.requests) < worker.window, "sent beyond the window"
        assert send.batch in self.line, "sent, but it is over"
        assert send.batch not in self.labelled, "sent, but it is labelled"
        assert send.batch not in self.condemned, "sent, but it is poison"
        assert send.teacher not in self.refused.get(send.batch, {}), "sent to one that refused it"
        assert send.batch not in worker.requests, "sent to one that is at work on it"
        assert send.batch not in self.in_flight(), "sent twice"
        self.attempts[send.batch] = self.attempts.get(send.batch, 0) + 1
        assert send.attempt == self.attempts[send.batch]
        self.resends += send.attempt > 1
        worker.requests.append(send.batch)

    def bury(self, name: str) -> None:
        worker = self.workers[name]
        if worker.revoked and not worker.requests:
            del self.workers[name]

    def forgive(self) -> None:
        self.refused.clear()
        self.condemned.clear()

    def busy(self) -> list[str]:
        return [name for name in NAMES if name in self.workers and self.workers[name].requests]

    # ------------------------------------------------------------------------------------- rules

    @initialize(held=st.integers(0, 3))
    def an_engine_starts(self, held: int) -> None:
        for _ in range(held):
            batch = self.next_id
            self.next_id += 1
            self.nbytes[batch] = 100 + LABEL_BYTES
            self.student.append(batch)
            self.tell(Held(batch, 100 + LABEL_BYTES))

    @rule(count=st.integers(1, 4), nbytes=st.integers(1, 1000), gap=st.integers(0, 2))
    def the_source_yields(self, count: int, nbytes: int, gap: int) -> None:
        for _ in range(count):
            batch = self.next_id + gap
            self.next_id = batch + 1
            self.nbytes[batch] = nbytes
            self.line.append(batch)
            self.tell(Queued(batch, nbytes))

    @rule(name=names, window=windows, seconds=speeds)
    def a_teacher_joins(self, name: str, window: int, seconds: float | None) -> None:
        worker = self.workers.setdefault(name, Worker(window))
        worker.window, worker.revoked, worker.resting = window, False, False
        self.tell(TeacherJoined(name, window, seconds))

    @rule(name=names, lost=st.booleans())
    def a_teacher_leaves(self, name: str, lost: bool) -> None:
        if lost:
            worker = self.workers.pop(name, Worker(1))
            self.ghosts += [(name, batch) for batch in worker.requests]
            self.void -= set(self.ghosts)
            self.tell(TeacherLost(name))
            return
        if name in self.workers:
            self.workers[name].revoked = True
            self.bury(name)
        self.tell(TeacherRevoked(name))

    @rule(name=names, window=windows)
    def a_window_changes(self, name: str, window: int) -> None:
        if name in self.workers:
            self.workers[name].window = window
        self.tell(WindowChanged(name, window))

    @rule(name=names)
    def a_teacher_has_rested(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].resting = False
        self.tell(Resumed(name))

    @precondition(lambda self: self.busy())
    @rule(which=nth, index=nth, how=st.sampled_from(["answer", "answer", "fail", "refuse"]))
    def a_request_ends(self, which: int, index: int, how: str) -> None:
        name = self.busy()[which % len(self.busy())]
        worker = self.workers[name]
        batch = worker.requests.pop(index % len(worker.requests))
        worker.resting |= how == "fail"
        self.bury(name)
        wanted = batch in self.line and (name, batch) not in self.void
        self.void.discard((name, batch))
        match how:
            case "answer":
                self.answered(name, batch, wanted)
            case "fail":
                self.tell(Failed(name, batch))
            case "refuse":
                if wanted:
                    self.refused.setdefault(batch, {})[name] = "bad shape"
                self.tell(Refused(name, batch, "bad shape"))

    def answered(self, name: str, batch: int, wanted: bool) -> None:
        if wanted:
            assert batch not in self.labelled
            self.labelled.add(batch)
            self.refused.pop(batch, None)
            self.nbytes[batch] += LABEL_BYTES
        out = self.tell(Answered(name, batch, LABEL_BYTES, seconds=0.1 * (batch % 3)))
        assert (Discard(batch, name) in out) is not wanted

    @precondition(lambda self: self.ghosts)
    @rule(index=nth)
    def a_dead_teacher_answers(self, index: int) -> None:
        name, batch = self.ghosts.pop(index % len(self.ghosts))
        if batch not in self.workers.get(name, Worker(1)).requests:
            assert Discard(batch, name) in self.tell(Answered(name, batch, LABEL_BYTES, 0.1))

    @precondition(lambda self: self.student)
    @rule(count=st.integers(1, 3))
    def the_student_takes(self, count: int) -> None:
        for _ in range(min(count, len(self.student))):
            batch = self.student.pop(0)
            del self.nbytes[batch]
            self.tell(Taken(batch))

    @rule(how=st.sampled_from(["epoch", "engine", "model"]))
    def all_starts_over(self, how: str) -> None:
        if how == "epoch":
            self.epoch_is_left()
        elif how == "model":
            self.the_model_is_exchanged()
        else:
            self.engine_dies_and_another_takes_over()

    def epoch_is_left(self) -> None:
        self.line.clear()
        self.student.clear()
        self.labelled.clear()
        self.nbytes.clear()
        self.forgive()
        assert self.tell(Reset()) == []

    def the_model_is_exchanged(self) -> None:
        """Nothing of the old one counts any more: neither its labels nor what it refused."""
        for batch in self.labelled:
            self.nbytes[batch] -= LABEL_BYTES
        self.labelled.clear()
        self.forgive()
        for batch in self.line:
            self.attempts.pop(batch, None)
        self.void |= {(name, batch) for name, w in self.workers.items() for batch in w.requests}
        out = self.tell(Relabel())
        assert all(isinstance(instruction, Send) for instruction in out)

    def engine_dies_and_another_takes_over(self) -> None:
        """The new one is told what the student's side holds, which labels it has or lacks."""
        held = {batch: self.nbytes[batch] for batch in self.student}
        queued = {
            batch: self.nbytes[batch] - LABEL_BYTES * (batch in self.labelled)
            for batch in self.line
        }
        self.ledger = Ledger()
        self.workers.clear()
        self.void.clear()
        self.labelled.clear()
        self.forgive()
        self.attempts.clear()
        self.resends = 0
        for batch, nbytes in held.items():
            assert self.tell(Held(batch, nbytes)) == []
        for batch, nbytes in queued.items():
            self.nbytes[batch] = nbytes
            assert self.tell(Queued(batch, nbytes)) == []

    # -------------------------------------------------------------------------------- invariants

    @invariant()
    def it_agrees_with_itself(self) -> None:
        self.ledger.validate()

    @invariant()
    def its_figures_are_the_worlds(self) -> None:
        ledger, workers = self.ledger, self.workers
        in_flight = self.in_flight()
        unlabelled = set(self.line) - self.labelled - self.condemned
        usable = [w for w in workers.values() if not (w.revoked or w.resting)]
        assert ledger.unlabelled == len(unlabelled)
        assert ledger.queued == len(unlabelled - in_flight)
        assert ledger.in_flight == sum(len(worker.requests) for worker in workers.values())
        assert ledger.deliverable == len(self.student)
        assert ledger.volume_bytes == sum(self.nbytes[b] for b in (*self.student, *self.labelled))
        assert set(ledger.teachers) == {n for n, w in workers.items() if not w.revoked}
        assert ledger.usable == len(usable)
        assert ledger.idle == sum(not w.requests for w in usable)
        assert ledger.windows == sum(w.window for w in usable)
        assert ledger.free_windows == sum(max(w.window - len(w.requests), 0) for w in usable)
        assert ledger.resends == self.resends
        for name, worker in workers.items():
            assert list(ledger.in_flight_at(name)) == worker.requests

    @invariant()
    def one_healthy_teacher_moves_the_line(self) -> None:
        """Liveness: the head is out after k answers of one healthy teacher, all others lost.

        k = its window, which others' lost batches may fill before the head itself is lost, and one
        more; and once more its window, if that is filled by requests to a model that was exchanged.
        Poison is a way out as well, where the teacher itself has refused the head.
        """
        for name, worker in self.workers.items():
            if self.line and not (worker.revoked or worker.resting):
                answers = answers_until_the_head_is_out(copy.deepcopy(self.ledger), name, NAMES)
                void = sum((name, batch) in self.void for batch in worker.requests)
                assert answers <= max(worker.window, len(worker.requests)) + 1 + void


def answers_until_the_head_is_out(ledger: Ledger, healthy: str, names: Sequence[str]) -> int:
    """Lose all but one teacher, let that answer in order; how many answers bring the line on."""
    out = [i for name in names if name != healthy for i in ledger.handle(TeacherLost(name))]
    answers = 0
    while not any(isinstance(instruction, Deliver | Poison) for instruction in out):
        oldest = ledger.in_flight_at(healthy)
        assert oldest, "the healthy teacher idles while the head of the line waits"
        out = ledger.handle(Answered(healthy, oldest[0], LABEL_BYTES, 0.1))
        ledger.validate()
        answers += 1
    return answers


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=100)
