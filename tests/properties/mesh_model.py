"""A student, its source and its teachers in virtual time, driven by the real ledger and flow.

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

from edl.scheduler import ledger_events as ev
from edl.scheduler.backoff import delay_s
from edl.scheduler.flow import FlowConfig, FlowDecision, FlowMemory, FlowView, decide
from edl.scheduler.ledger import Ledger
from edl.scheduler.rates import LowQuantile, RecentMedian
from edl.scheduler.ratio import pooled_t_t

BATCH_BYTES, LABEL_BYTES = 100, 10
TICK_S, GRANT_S, TTL_S, RECONNECT_S = 0.05, 0.2, 3.0, 0.1

Mishap = Literal["fail", "refuse"]


@dataclass
class Teacher:
    """A teacher process; `life` tells its connection from earlier ones of the same name."""

    name: str
    seconds: float  # device time of one batch
    life: int
    content: int  # of its model: labels of two are never mixed
    window: int = 2
    jitter: float = 0.0  # of its device time: the standard deviation of its logarithm
    answered: int = 0
    hung: bool = False
    lost: bool = False
    busy_until: float = 0.0
    mishaps: list[Mishap] = field(default_factory=list)
    times: RecentMedian = field(default_factory=lambda: RecentMedian(5))


@dataclass(eq=False)
class Mesh:
    """One student's part of the mesh. All times are virtual seconds."""

    config: FlowConfig
    rng: random.Random
    source_s: float = 0.0  # of one batch
    step_s: float = 0.1  # of the student, one batch
    speed_s: float = 0.1  # of a teacher that the coordinator grants, one batch
    cluster: int = 0  # teachers that the coordinator may grant
    yields: int | None = None  # batches in an epoch; None: no end

    def __post_init__(self) -> None:
        self.now = 0.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.planned = self.lives = 0
        self.teachers: dict[str, Teacher] = {}
        self.assigned: list[str] = []
        self.pulled = self.allowed = self.epoch_start = 0
        self.pulling_one = False
        self.in_line: list[int] = []  # yielded, not delivered
        self.ready: list[int] = []  # delivered, not taken
        self.content = 0  # of the model that is to label
        self.labels: dict[int, int] = {}  # content of the labels of a batch
        self.contents_taken: list[int] = []
        self.taken: list[int] = []
        self.poisoned: list[int] = []
        self.left_behind: list[int] = []  # of epochs that were left
        self.venomous: set[int] = set()  # batches that every teacher refuses
        self.waiting = False
        self.steps = LowQuantile(16, 0.25)
        self.most_unlabelled = 0
        self.epoch = self.engine = 0
        self.wants: list[int] = []
        self.resent_at: list[float] = []
        self.start_engine()
        self.after(0.0, self.tick)
        self.after(0.0, self.call_next)
        self.after(0.0, self.coordinate)

    # ------------------------------------------------------------------------------ virtual time

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.planned += 1
        heappush(self.agenda, (self.now + seconds, self.planned, action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.agenda[0][0] <= end:
            self.step()
        self.now = end

    def step(self) -> None:
        """The next event, what is decided about it, and the check."""
        self.now, _, action = heappop(self.agenda)
        action()
        self.decide()
        self.check()

    def tick(self) -> None:
        self.after(TICK_S, self.tick)

    # -------------------------------------------------------------------------------- the engine

    def start_engine(self) -> None:
        """A new engine learns from the student's side what is held and what lacks labels."""
        self.engine += 1
        self.ledger = Ledger()
        self.memory = FlowMemory.start()
        self.decision = FlowDecision.start(self.config)
        self.labels = {batch: self.labels[batch] for batch in self.ready}
        for batch in self.ready:
            self.tell(ev.Held(batch, BATCH_BYTES + LABEL_BYTES))
        for batch in self.in_line:
            self.tell(ev.Queued(batch, BATCH_BYTES))
        for teacher in self.teachers.values():
            self.connect(teacher)

    def tell(self, event: ev.Event) -> None:
        self.carry_out(self.ledger.handle(event))

    def carry_out(self, instructions: list[ev.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ev.Send():
                    self.send(instruction)
                case ev.Deliver(batch):
                    assert self.labels[batch] == self.content, (
                        "labels of a model that was exchanged"
                    )
                    assert self.in_line.pop(0) == batch, "out of order, or twice"
                    self.ready.append(batch)
                    self.serve()
                case ev.Poison(batch):
                    assert self.in_line.pop(0) == batch, "out of order, or twice"
                    self.poisoned.append(batch)
                case ev.Discard():
                    pass

    def decide(self) -> None:
        ledger = self.ledger
        times = [t.times.value for t in self.teachers.values() if t.times.value is not None]
        view = FlowView(
            volume_bytes=ledger.volume_bytes,
            queued=ledger.queued,
            unlabelled=ledger.unlabelled,
            deliverable=ledger.deliverable,
            windows=ledger.windows,
            free_windows=ledger.free_windows,
            teachers=len(ledger.teachers),
            idle=ledger.idle,
            waiting=self.waiting,
            source_ended=self.source_is_empty,
            t_t_s=pooled_t_t(times) if times else None,
            t_s_s=self.steps.value,
        )
        self.decision, self.memory = decide(view, self.memory, self.now, self.config)
        self.wants.append(self.decision.want)
        if self.pulled + self.decision.pull > self.allowed:
            self.allowed = self.pulled + self.decision.pull
            unlabelled = ledger.unlabelled + self.allowed - self.pulled
            windows = sum(teacher.window for teacher in self.teachers.values())
            assert unlabelled <= windows + max(2, ledger.windows), "more than windows + read-ahead"
            self.most_unlabelled = max(self.most_unlabelled, unlabelled)
        self.pull()

    def check(self) -> None:
        self.ledger.validate()
        bound = self.config.upper_bytes
        bound += self.most_unlabelled * (BATCH_BYTES + LABEL_BYTES)
        assert self.ledger.volume_bytes <= bound, "memory grows"
        for teacher in self.teachers.values():
            assert len(self.ledger.in_flight_at(teacher.name)) <= teacher.window

    # --------------------------------------------------------------------------- source, student

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
            self.tell(ev.Queued(batch, BATCH_BYTES))

    def call_next(self) -> None:
        self.waiting = True
        self.serve()

    def serve(self) -> None:
        if self.waiting and self.ready:
            self.waiting = False
            batch = self.ready.pop(0)
            self.contents_taken.append(self.labels.pop(batch))
            self.taken.append(batch)
            self.after(0.0, partial(self.tell, ev.Taken(batch)))
            self.steps.add(self.step_s)
            self.after(self.step_s, self.call_next)

    def leave_epoch(self) -> None:
        """The training loop breaks, and begins another epoch at once."""
        self.left_behind += [*self.in_line, *self.ready]
        self.in_line.clear()
        self.ready.clear()
        self.labels.clear()
        self.tell(ev.Reset())
        self.epoch += 1
        self.epoch_start = self.pulled
        self.pulling_one = False

    # ------------------------------------------------------------------------------- coordinator

    def coordinate(self) -> None:
        """Grant what is wanted as far as it goes; take back what is not wanted any more."""
        self.after(GRANT_S, self.coordinate)
        if self.cluster:
            want = self.decision.want
            while len(self.assigned) > want:
                self.revoke(self.assigned[-1])
            if len(self.assigned) < min(want, self.cluster):
                self.join(f"granted-{self.lives}", self.speed_s)

    def join(self, name: str, seconds: float, window: int = 2) -> None:
        """A teacher of this name is assigned; an earlier life of it must be over."""
        self.lives += 1
        self.teachers[name] = Teacher(name, seconds, self.lives, self.content, window)
        self.assigned.append(name)
        self.tell(ev.TeacherJoined(name, window))

    def connect(self, teacher: Teacher) -> None:
        """The connections of a new engine: whoever answers is joined after a moment."""
        engine = self.engine

        def connected() -> None:
            there = self.lives_on(teacher) and not teacher.hung
            if there and teacher.name in self.assigned and engine == self.engine:
                self.tell(ev.TeacherJoined(teacher.name, teacher.window))

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
        """The end of a teacher is noticed."""
        teacher = self.teachers.pop(name)
        teacher.lost = True
        if name in self.assigned:
            self.assigned.remove(name)
        self.tell(ev.TeacherLost(name))

    def hang(self, name: str) -> None:
        """A teacher says nothing more; it is noticed when its lease is over."""
        teacher = self.teachers[name]
        teacher.hung = True
        self.after(TTL_S, lambda: self.lose(name) if self.lives_on(teacher) else None)

    def lives_on(self, teacher: Teacher) -> bool:
        return self.teachers.get(teacher.name) is teacher

    # ------------------------------------------------------------------------------ the teachers

    def send(self, send: ev.Send) -> None:
        teacher = self.teachers[send.teacher]
        assert teacher.name in self.assigned, "sent to one that is not assigned"
        if send.attempt > 1:
            self.resent_at.append(self.now)
        seconds = teacher.seconds * exp(self.rng.gauss(0.0, teacher.jitter))
        teacher.busy_until = max(teacher.busy_until, self.now) + seconds
        reply = partial(self.reply, teacher, send.batch, self.engine, seconds)
        self.after(teacher.busy_until - self.now, reply)

    def reply(self, teacher: Teacher, batch: int, engine: int, seconds: float) -> None:
        if teacher.hung or teacher.lost or engine != self.engine:
            return  # nobody hears it
        mishap = teacher.mishaps.pop(0) if teacher.mishaps else None
        if mishap == "refuse" or batch in self.venomous:
            self.tell(ev.Refused(teacher.name, batch, "does not like it"))
        elif mishap == "fail":
            self.tell(ev.Failed(teacher.name, batch))
            self.after(delay_s(1, self.rng), partial(self.rested, teacher, engine))
        else:
            teacher.times.add(seconds)
            teacher.answered += 1
            out = self.ledger.handle(ev.Answered(teacher.name, batch, LABEL_BYTES, seconds))
            if ev.Discard(batch, teacher.name) not in out:
                self.labels[batch] = teacher.content
            self.carry_out(out)

    def rested(self, teacher: Teacher, engine: int) -> None:
        if engine == self.engine and self.lives_on(teacher):
            self.tell(ev.Resumed(teacher.name))
