"""A student, its source and its teachers in virtual time: real ledger, flow and delivery.

The model stands for everything around the decisions: it carries instructions out and posts what
comes of them, as the reader's engine does, but in a queue of future events instead of sockets and
clocks. After every event it checks what must hold at every moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import exp
from typing import Literal

from edl.scheduler.backoff import delay_s
from edl.scheduler.flow import FlowConfig, FlowDecision, FlowMemory, FlowView, decide
from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.rates import RecentMedian, RecentQuantile, harmonic_mean_t_t
from edl.scheduler.reader_core import instructions as do
from edl.scheduler.reader_core.delivery import Delivery

from ..scheduler.ledger import invariants

BATCH_BYTES, LABEL_BYTES, ROWS = 100, 10, 10
TICK_S, GRANT_S, TTL_S, RECONNECT_S = 0.05, 0.2, 3.0, 0.1

Mishap = Literal["fail", "refuse"]


class VirtualTime:
    """Actions in the order of their times; of equal times, in the order in which they were planned.

    Attributes:
        now: virtual seconds since the beginning.
        planned: how many actions there were to be so far.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.planned = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.planned += 1
        heappush(self._agenda, (self.now + seconds, self.planned, action))

    def step(self) -> None:
        self.now, _, action = heappop(self._agenda)
        action()

    def run(self, seconds: float) -> None:
        """Let all happen that does within so much time; there is always more to come."""
        end = self.now + seconds
        while self._agenda[0][0] <= end:
            self.step()
        self.now = end


@dataclass
class Teacher:
    """A teacher process; `life` tells its connection from earlier ones of the same name."""

    name: str
    seconds: float  # device time of one batch
    life: int
    content: int  # of its model: labels of two are never mixed
    window: int = 2
    most_rows: int | None = None
    jitter: float = 0.0  # of its device time: the standard deviation of its logarithm
    answered: int = 0
    hung: bool = False
    lost: bool = False
    busy_until: float = 0.0
    mishaps: list[Mishap] = field(default_factory=list)
    times: RecentMedian = field(default_factory=lambda: RecentMedian(5))


@dataclass(eq=False)
class Mesh(VirtualTime):
    """One student's part of the mesh. All times are virtual seconds."""

    config: FlowConfig
    rng: random.Random
    source_s: float = 0.0  # of one batch
    step_s: float = 0.1  # of the student, one batch
    speed_s: float = 0.1  # of a teacher that the coordinator grants, one batch
    cluster: int = 0  # teachers that the coordinator may grant
    yields: int | None = None  # batches in an epoch; None: no end

    def __post_init__(self) -> None:
        VirtualTime.__init__(self)
        self.lives = 0
        self.teachers: dict[str, Teacher] = {}
        self.assigned: list[str] = []
        self.pulled = self.allowed = self.epoch_start = 0
        self.pulling_one = False
        self.in_line: list[int] = []  # yielded, not released
        self.offered: set[int] = set()  # of these, those that the student has labels of
        self.ready: list[int] = []  # released, not taken
        self.content = 0  # of the model that is to label
        self.labels: dict[int, dict[int, int]] = {}  # batch -> row -> content of its label
        self.contents_taken: list[int] = []
        self.taken: list[int] = []
        self.poison: set[int] = set()  # the outcome of a batch that is offered
        self.poisoned: list[int] = []
        self.left_behind: list[int] = []  # of epochs that were left
        self.venomous: set[int] = set()  # batches that every teacher refuses
        self.waiting = False
        self.steps = RecentQuantile(16, 0.25)
        self.most_unlabelled = 0
        self.epoch = self.engine = 0
        self.wants: list[int] = []
        self.resent_at: list[float] = []
        self.start_engine()
        self.after(0.0, self.tick)
        self.after(0.0, self.call_next)
        self.after(0.0, self.coordinate)

    def step(self) -> None:
        super().step()
        self.decide()
        self.check()

    def tick(self) -> None:
        self.after(TICK_S, self.tick)

    def start_engine(self) -> None:
        """A new engine learns from the student's side what is held and what lacks labels."""
        self.engine += 1
        self.ledger = Ledger()
        self.judged: set[int] = set()  # poison, as this ledger says
        self.memory = FlowMemory()
        self.decision = FlowDecision(0, self.config.teachers_min)
        self.delivery = Delivery({"s": self.ledger})
        kept = {*self.ready, *self.offered}
        self.held_poison = kept & self.poison
        self.labels = {batch: labels for batch, labels in self.labels.items() if batch in kept}
        for batch in (*self.ready, *self.in_line):
            if batch in kept:
                row_nbytes = 0 if batch in self.poison else LABEL_BYTES // ROWS
                self.tell(ev.BatchRestored(batch, BATCH_BYTES, ROWS, row_nbytes=row_nbytes))
                self.deliver(self.delivery.restore(batch, released=batch in self.ready))
            else:
                self.delivery.queue(batch)
                self.tell(ev.Queued(batch, BATCH_BYTES, ROWS))
        for teacher in self.teachers.values():
            self.connect(teacher)

    def tell(self, event: ev.Event) -> None:
        self.carry_out(self.ledger.handle(event))

    def carry_out(self, instructions: list[ev.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ev.Send():
                    self.send(instruction)
                case ev.BatchLabelled(batch) | ev.LabelsRevoked(batch) | ev.Poison(batch):
                    self.judged.discard(batch)
                    if isinstance(instruction, ev.Poison):
                        self.judged.add(batch)
                    self.deliver(self.delivery.handle("s", instruction))
                case ev.Accept() | ev.Discard():
                    pass  # done where the answer came in
        while out := self.delivery.release():
            self.deliver(out)
        self.serve()

    def deliver(self, instructions: list[do.StreamInstruction]) -> None:
        released: list[int] = []
        for instruction in instructions:
            match instruction:
                case do.OfferBatch(batch):
                    self.offered.add(batch)
                case do.OfferPoison(batch):
                    self.offered.add(batch)
                    self.poison.add(batch)
                case do.Withdraw(batch):
                    self.offered.remove(batch)
                    self.poison.discard(batch)
                case do.Release(batches):
                    released += batches
                case do.ForwardEvent(_, event):
                    assert isinstance(event, ev.Released)
                    assert self.ledger.handle(event) == []
        for batch in released:
            assert self.in_line.pop(0) == batch, "out of order, or twice"
            self.offered.remove(batch)
            if batch in self.poison:  # the loop of a real student would end
                self.poisoned.append(batch)
                self.delivery.taken(batch, None)
                assert self.ledger.handle(ev.BatchConsumed(batch)) == []
                continue
            assert self.labels[batch] == dict.fromkeys(range(ROWS), self.content), (
                "rows without labels, or with those of a model that was exchanged"
            )
            self.ready.append(batch)

    def decide(self) -> None:
        ledger = self.ledger
        times = [t.times.value for t in self.teachers.values() if t.times.value is not None]
        view = FlowView(
            volume_bytes=ledger.volume_bytes,
            queued=ledger.queued,
            unlabelled=ledger.unlabelled,
            window_batches=ledger.load.window_batches,
            window_room=ledger.load.window_room,
            idle=ledger.load.idle,
            teachers=len(ledger.teachers),
            waiting=self.waiting and not ledger.has_next(ordered=True),
            source_ended=self.source_is_empty,
            t_t_s=harmonic_mean_t_t(times) if times else None,
            t_s_s=self.steps.value,
            batch_bytes=ledger.load.batch_bytes,
        )
        self.decision, self.memory = decide(view, self.memory, self.now, self.config)
        self.wants.append(self.decision.want)
        if self.pulled + self.decision.pull > self.allowed:
            self.allowed = self.pulled + self.decision.pull
            unlabelled = ledger.unlabelled + self.allowed - self.pulled
            in_flight = set().union(*map(self.batches_at, self.teachers))
            read_ahead = max(2, ledger.load.window_batches)
            assert unlabelled <= len(in_flight) + read_ahead, "more than in flight + read-ahead"
            self.most_unlabelled = max(self.most_unlabelled, unlabelled)
        self.pull()

    def check(self) -> None:
        invariants.check(self.ledger)
        bound = self.config.upper_bytes
        bound += self.most_unlabelled * (BATCH_BYTES + LABEL_BYTES)
        bound += len(self.held_poison.intersection(self.in_line)) * BATCH_BYTES
        assert self.ledger.volume_bytes <= bound, "memory grows"
        for teacher in self.teachers.values():
            assert len(self.ledger.in_flight_at(teacher.name)) <= teacher.window

    @property
    def source_is_empty(self) -> bool:
        return self.yields is not None and self.pulled - self.epoch_start >= self.yields

    def pull(self) -> None:
        if not (self.pulling_one or self.pulled >= self.allowed or self.source_is_empty):
            self.pulling_one = True
            self.after(self.source_s, partial(self.yielded, self.epoch))

    def yielded(self, epoch: int) -> None:
        if epoch == self.epoch:
            self.pulling_one = False
            batch, self.pulled = self.pulled, self.pulled + 1
            self.in_line.append(batch)
            self.delivery.queue(batch)
            self.tell(ev.Queued(batch, BATCH_BYTES, ROWS))

    def call_next(self) -> None:
        self.waiting = True
        self.serve()

    def serve(self) -> None:
        if self.waiting and self.ready:
            self.waiting = False
            batch = self.ready.pop(0)
            self.contents_taken.append(max(self.labels.pop(batch).values()))
            self.taken.append(batch)
            self.after(0.0, partial(self.is_taken, batch))
            self.steps.add(self.step_s)
            self.after(self.step_s, self.call_next)

    def is_taken(self, batch: int) -> None:
        self.delivery.taken(batch, self.step_s)
        self.tell(ev.BatchConsumed(batch))

    def leave_epoch(self) -> None:
        """The training loop breaks, and begins another epoch at once."""
        self.left_behind += [*self.in_line, *self.ready]
        self.in_line.clear()
        self.offered.clear()
        self.poison.clear()
        self.judged.clear()
        self.ready.clear()
        self.delivery.reset()
        self.labels.clear()
        self.tell(ev.Reset())
        self.epoch += 1
        self.epoch_start = self.pulled
        self.pulling_one = False

    def coordinate(self) -> None:
        self.after(GRANT_S, self.coordinate)
        if self.cluster:
            want = self.decision.want
            while len(self.assigned) > want:
                self.revoke(self.assigned[-1])
            if len(self.assigned) < min(want, self.cluster):
                self.join(f"granted-{self.lives}", self.speed_s)

    def join(
        self, name: str, seconds: float, window: int = 2, most_rows: int | None = None
    ) -> None:
        """A teacher of this name is assigned; an earlier life of it must be over."""
        self.lives += 1
        teacher = Teacher(name, seconds, self.lives, self.content, window, most_rows)
        self.teachers[name] = teacher
        self.assigned.append(name)
        self.tell(ev.TeacherJoined(name, window, most_rows))

    def connect(self, teacher: Teacher) -> None:
        """The connections of a new engine: whoever answers is joined after a moment."""
        engine = self.engine

        def connected() -> None:
            there = self.lives_on(teacher) and not teacher.hung
            if there and teacher.name in self.assigned and engine == self.engine:
                self.tell(ev.TeacherJoined(teacher.name, teacher.window, teacher.most_rows))

        self.after(RECONNECT_S, connected)

    def revoke(self, name: str) -> None:
        self.assigned.remove(name)
        self.tell(ev.TeacherRevoked(name))

    def exchange_the_model(self) -> None:
        """All teachers are revoked, and finish what they have; as many new ones are to come."""
        for name in list(self.assigned):
            self.revoke(name)
        self.content += 1
        for batch in self.in_line:
            self.labels.pop(batch, None)
        self.tell(ev.Relabel())

    def lose(self, name: str) -> None:
        teacher = self.teachers.pop(name)
        teacher.lost = True
        if name in self.assigned:
            self.assigned.remove(name)
        self.tell(ev.TeacherGone(name))

    def hang(self, name: str) -> None:
        """A teacher says nothing more; it is noticed when its lease is over."""
        teacher = self.teachers[name]
        teacher.hung = True
        self.after(TTL_S, lambda: self.lose(name) if self.lives_on(teacher) else None)

    def lives_on(self, teacher: Teacher) -> bool:
        return self.teachers.get(teacher.name) is teacher

    def send(self, send: ev.Send) -> None:
        teacher = self.teachers[send.teacher]
        assert teacher.name in self.assigned, "sent to one that is not assigned"
        if send.attempt > 1:
            self.resent_at.append(self.now)
        rows = sum(span.rows for span in send.spans)
        seconds = teacher.seconds * rows / ROWS * exp(self.rng.gauss(0.0, teacher.jitter))
        teacher.busy_until = max(teacher.busy_until, self.now) + seconds
        reply = partial(self.reply, teacher, send, self.engine, seconds)
        self.after(teacher.busy_until - self.now, reply)

    def reply(self, teacher: Teacher, send: ev.Send, engine: int, seconds: float) -> None:
        if teacher.hung or teacher.lost or engine != self.engine:
            return  # nobody hears it
        mishap = teacher.mishaps.pop(0) if teacher.mishaps else None
        venomous = any(span.batch in self.venomous for span in send.spans)
        if mishap == "refuse" or venomous:
            self.tell(ev.Refused(teacher.name, send.request, "does not like it"))
            if self.ledger.is_useless(teacher.name) and teacher.name in self.assigned:
                self.tell(ev.Ejected(teacher.name))
                self.connect(teacher)
        elif mishap == "fail":
            self.tell(ev.AttemptFailed(teacher.name, send.request))
            self.after(delay_s(1, self.rng), partial(self.rested, teacher, engine))
        else:
            rows = sum(span.rows for span in send.spans)
            teacher.times.add(seconds * ROWS / rows)
            teacher.answered += rows
            answered = ev.Answered(teacher.name, send.request, LABEL_BYTES // ROWS, seconds)
            out = self.ledger.handle(answered)
            for instruction in out:
                if isinstance(instruction, ev.Accept):
                    self.is_labelled(instruction.spans, teacher.content)
            self.carry_out(out)

    def is_labelled(self, spans: tuple[ev.Span, ...], content: int) -> None:
        for batch, start, stop in spans:
            labels = self.labels.setdefault(batch, {})
            assert not any(row in labels for row in range(start, stop)), "labelled twice"
            labels |= dict.fromkeys(range(start, stop), content)

    def is_whole(self, batch: int) -> bool:
        """Whether all rows of a batch have labels."""
        return len(self.labels.get(batch, {})) == ROWS

    def batches_at(self, name: str) -> set[int]:
        return {s.batch for request in self.ledger.requests_at(name) for s in request.spans}

    def rested(self, teacher: Teacher, engine: int) -> None:
        if engine == self.engine and self.lives_on(teacher):
            self.tell(ev.Resumed(teacher.name))
