"""One student and a pool of paced teachers in virtual time: all rules of a reader at work together.

What is decided is decided by the real ledger, flow, hedging, outliers and windows; this file stands
for the engine that carries it out, for the teachers' devices, and for the coordinator. Teachers are
paced: a device starts each request at max(arrival, device free), and can be stopped as by SIGSTOP.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf

from edl.scheduler import hedging, outliers, request_size, stragglers, windows
from edl.scheduler.flow import FlowConfig, FlowDecision, FlowMemory, Turn, decide
from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.stream_figures import Figures
from edl.scheduler.turnaround import Turnarounds, began
from edl.tests.properties.virtual_time import VirtualTime, view_of

ROWS, INPUT_BYTES, ROW_LABEL_BYTES = 32, 3200, 4
BATCH_BYTES = INPUT_BYTES + ROWS * ROW_LABEL_BYTES
TICK_S, GRANT_S = 0.05, 0.2


def holds(batches: int) -> FlowConfig:
    """Thresholds: `ut` holds so many batches, `lt` half of them."""
    return FlowConfig(batches * BATCH_BYTES, batches * BATCH_BYTES // 2)


@dataclass(eq=False)
class Teacher:
    """A teacher process, and what its reader knows of it."""

    name: str
    batch_s: float  # device time of one batch
    travel_s: float  # there and back together
    window: windows.Window
    size: request_size.RequestSize
    request_s: float = 0.0  # device time of any request, besides that of its rows
    jitter: float = 0.0
    stopped: bool = False
    free_at: float = 0.0  # the device
    answered_at: float = -inf
    #: With the time of sending, and the most rows that it could have.
    requests: dict[int, tuple[ev.Send, float, int]] = field(default_factory=dict)
    standing: outliers.Standing = field(default_factory=outliers.Standing)
    labelled: int = 0
    generation: int = 0  # of its plans: those of before it was stopped are void


@dataclass(eq=False)
class PacedMesh(VirtualTime):
    """All times are virtual seconds, those of batches for `ROWS` rows."""

    config: FlowConfig
    rng: random.Random
    step_s: float = 0.1
    source_s: float = 0.0
    spare_s: float = 0.1  # batch time of those that the coordinator can give
    spares: int = 0
    spare_jitter: float = 0.0  # of their device time
    fall_s: float = 0.0  # what is not wanted any more for so long is taken back
    told: float = 1.0  # the part of their device time that teachers tell
    hedge: hedging.HedgeConfig = field(default_factory=hedging.HedgeConfig)
    window: windows.WindowConfig = field(default_factory=windows.WindowConfig)
    most_rows: int | None = None
    auto: request_size.SizeConfig | None = None  # sizes of requests are sought

    def __post_init__(self) -> None:
        VirtualTime.__init__(self)
        self.ledger = Ledger()
        self.flow = FlowMemory.start()
        self.decision = FlowDecision.start(self.config)
        self.hedges, self.times = hedging.HedgeMemory(), Turnarounds()
        self.straggling = stragglers.Straggling()
        self.teachers: dict[str, Teacher] = {}
        self.pulled = self.allowed = 0
        self.pulling_one = False
        self.ready: list[int] = []
        self.taken_at: list[float] = []
        self.waiting = False
        self.figures = Figures()
        self.wants: list[tuple[float, int]] = []
        self.turns: list[tuple[float, Turn]] = []  # the event log
        self.most_volume = self.most_windows = 0
        self.named_at: dict[str, float] = {}
        self.surplus_since: float | None = None  # there are teachers that are not wanted
        self.named = 0  # teachers that joined without being asked for
        for action in (self.tick, self.call_next, self.coordinate):
            self.after(0.0, action)

    def step(self) -> None:
        super().step()
        self.decide()

    def rate(self, seconds: float) -> float:
        """Batches per second that the student takes in so much more time."""
        before = len(self.taken_at)
        self.run(seconds)
        return (len(self.taken_at) - before) / seconds

    def longest_pause(self, since: float) -> float:
        """Longest time without a batch, less the student's own step."""
        times = [since, *(t for t in self.taken_at if t > since), self.now]
        return max(later - earlier for earlier, later in pairwise(times)) - self.step_s

    def tick(self) -> None:
        self.after(TICK_S, self.tick)
        view = hedging.HedgeView(
            tuple(self.asked(teacher) for teacher in self.teachers.values()),
            self.ledger.sent,
            self.ledger.head if self.waiting and not self.ledger.deliverable else None,
        )
        decision, self.hedges = hedging.decide(view, self.times, self.hedges, self.now, self.hedge)
        for request in decision.hedge:
            self.tell(ev.Hedge(request))
        for teacher in self.teachers.values():
            self.judge(teacher, teacher.name in decision.silent)
        known = {name: self.times.of(name) for name in self.teachers}
        speeds = {name: of.seconds_per_row for name, of in known.items() if of is not None}
        self.straggling = stragglers.look(speeds, decision.silent, self.straggling, self.now)
        for name in self.straggling.named:
            self.named_at.setdefault(name, self.now)

    def asked(self, teacher: Teacher) -> hedging.Asked:
        told = {one.request: one for one in self.ledger.requests_at(teacher.name)}
        flights = tuple(
            hedging.Flight(
                number,
                sum(span.rows for span in send.spans),
                min(span.batch for span in send.spans),
                sent_at,
                also_at=frozenset(told[number].teachers) - {teacher.name},
                wanted=bool(told[number].teachers),
            )
            for number, (send, sent_at, _) in teacher.requests.items()
        )
        usable = not teacher.standing.ejected
        size = windows.size(teacher.window, self.window)
        return hedging.Asked(teacher.name, flights, size, teacher.answered_at, usable)

    def judge(self, teacher: Teacher, silent: bool) -> None:
        if not silent:
            teacher.standing = outliers.heard_of(teacher.standing)
        else:
            others = self.ledger.usable - 1
            teacher.standing, step = outliers.silent(teacher.standing, others, self.now, self.rng)
            if step == "eject":
                self.tell(ev.Ejected(teacher.name))
        due = outliers.probe_at(teacher.standing, self.ledger.usable)
        if due is not None and self.now >= due:
            well = not teacher.stopped
            teacher.standing, step = outliers.probed(teacher.standing, well, self.now, self.rng)
            if step == "readmit":
                self.tell(ev.Readmitted(teacher.name))

    def decide(self) -> None:
        ledger = self.ledger
        view = view_of(
            ledger,
            waiting=self.waiting,
            source_ended=False,
            t_t_s=self.figures.t_t_s,
            t_s_s=self.figures.pace_s(self.figures.t_s_s),
            unreachable=sum(t.standing.ejected for t in self.teachers.values()),
        )
        turn, want = self.decision.turn, self.decision.want
        self.decision, self.flow = decide(view, self.flow, self.now, self.config)
        if self.decision.want != want:
            self.wants.append((self.now, self.decision.want))
        if self.decision.turn is not None and self.decision.turn is not turn:
            self.turns.append((self.now, self.decision.turn))
        self.most_volume = max(self.most_volume, ledger.volume_bytes)
        self.most_windows = max(self.most_windows, view.windows)
        self.allowed = max(self.allowed, self.pulled + self.decision.pull)
        if not self.pulling_one and self.pulled < self.allowed:
            self.pulling_one = True
            self.after(self.source_s, self.yielded)

    def tell(self, event: ev.Event) -> list[ev.Instruction]:
        out = self.ledger.handle(event)
        for instruction in out:
            match instruction:
                case ev.Send():
                    self.send(instruction)
                case ev.Deliver(batch):
                    self.ready.append(batch)
                    self.serve()
        return out

    def told_of(self, event: ev.Event) -> None:
        self.tell(event)

    def yielded(self) -> None:
        self.pulling_one = False
        batch, self.pulled = self.pulled, self.pulled + 1
        self.figures.pulled(self.source_s, ROWS)
        self.tell(ev.Queued(batch, INPUT_BYTES, ROWS))

    def call_next(self) -> None:
        self.waiting = True
        self.serve()

    def serve(self) -> None:
        if self.waiting and self.ready:
            self.waiting = False
            batch = self.ready.pop(0)
            assert batch == len(self.taken_at), "out of order, or twice"
            self.taken_at.append(self.now)
            self.after(0.0, partial(self.told_of, ev.Taken(batch)))
            self.figures.step(self.step_s, ROWS)
            self.after(self.step_s, self.call_next)

    def coordinate(self) -> None:
        self.after(GRANT_S, self.coordinate)
        given = list(self.ledger.teachers)
        if len(given) <= max(self.decision.want, self.named):
            self.surplus_since = None
        elif self.surplus_since is None:
            self.surplus_since = self.now
        if self.surplus_since is not None and self.now - self.surplus_since >= self.fall_s:
            self.tell(ev.TeacherRevoked(given[-1]))
            self.spares += 1
            self.figures.forget_teacher(given[-1])
        elif self.spares and len(given) < self.decision.want:
            self.spares -= 1
            self.connect(f"spare-{self.planned}", self.spare_s).jitter = self.spare_jitter

    def join(self, name: str, batch_s: float, travel_s: float = 0.002) -> Teacher:
        self.named += 1
        return self.connect(name, batch_s, travel_s)

    def connect(self, name: str, batch_s: float, travel_s: float = 0.002) -> Teacher:
        window = windows.start(self.window, self.now)
        size = request_size.start(ROWS, self.auto or request_size.SizeConfig(), self.now)
        teacher = self.teachers[name] = Teacher(name, batch_s, travel_s, window, size)
        most_rows = self.rows_for(teacher) if self.auto else self.most_rows
        self.tell(ev.TeacherJoined(name, windows.size(window, self.window), most_rows))
        return teacher

    def rows_for(self, teacher: Teacher) -> int:
        return request_size.rows(teacher.size, self.auto) if self.auto else self.most_rows or ROWS

    def send(self, send: ev.Send) -> None:
        teacher = self.teachers[send.teacher]
        teacher.requests[send.request] = (send, self.now, self.rows_for(teacher))
        if not teacher.stopped:
            self.plan(teacher, send, teacher.travel_s / 2)

    def plan(self, teacher: Teacher, send: ev.Send, arrives_in_s: float) -> None:
        rows = sum(span.rows for span in send.spans)
        device_s = teacher.request_s + teacher.batch_s * rows / ROWS
        device_s *= self.rng.lognormvariate(0.0, teacher.jitter)
        teacher.free_at = max(teacher.free_at, self.now + arrives_in_s) + device_s
        comes_in_s = teacher.free_at + teacher.travel_s / 2 - self.now
        answer = partial(self.answer, teacher, send.request, rows, device_s, teacher.generation)
        self.after(comes_in_s, answer)

    def answer(
        self, teacher: Teacher, request: int, rows: int, device_s: float, generation: int
    ) -> None:
        if generation != teacher.generation:
            return
        full = len(teacher.requests) >= windows.size(teacher.window, self.window)
        _, sent_at, asked = teacher.requests.pop(request)
        turnaround_s = self.now - began(sent_at, teacher.answered_at)
        self.times.answered(teacher.name, rows, turnaround_s)
        teacher.answered_at = self.now
        self.figures.answer(teacher.name, device_s * self.told, rows)
        teacher.standing = outliers.answered(teacher.standing, self.now)
        before = windows.size(teacher.window, self.window)
        teacher.window = windows.answered(
            teacher.window, rows, turnaround_s, device_s, full, self.now, self.window
        )
        if (size := windows.size(teacher.window, self.window)) != before:
            self.tell(ev.WindowChanged(teacher.name, size))
        if self.auto:
            before = self.rows_for(teacher)
            teacher.size = request_size.answered(
                teacher.size, asked, rows, device_s, self.now, self.auto
            )
            if (most_rows := self.rows_for(teacher)) != before:
                self.tell(ev.RequestSizeChanged(teacher.name, most_rows))
        out = self.tell(ev.Answered(teacher.name, request, ROW_LABEL_BYTES, device_s))
        teacher.labelled += any(isinstance(i, ev.Accept) for i in out)

    def stop(self, name: str) -> None:
        """As by SIGSTOP: it neither works nor answers."""
        teacher = self.teachers[name]
        teacher.stopped, teacher.generation = True, teacher.generation + 1

    def go_on(self, name: str) -> None:
        """As by SIGCONT: it goes on with what it had, and with what came meanwhile."""
        teacher = self.teachers[name]
        if not teacher.stopped:
            return
        teacher.stopped, teacher.free_at = False, self.now
        for send, _, _ in teacher.requests.values():
            self.plan(teacher, send, 0.0)
