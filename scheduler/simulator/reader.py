"""One student's reader in virtual time: the shell around the very rules that a live engine runs.

Decided is by the real `ledger`, `flow`, `hedging`, `outliers` and `windows`; what a live engine's
`member`, `crew` and `pool` do with threads and connections is done here with events. Left out is
what needs real labels (canaries, stores) or refusals; requests are whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from .. import flow, hunger
from ..ledger import Ledger
from ..ledger import events as ev
from ..ledger.figures import Load
from ..stream_figures import Figures
from .cast import Student
from .chance import Generator
from .clock import Clock
from .device import Device
from .lines import Lines
from .network import Port
from .plane import Report
from .scenario import Scenario
from .trace import Trace

#: Decisions that depend on time alone are looked at so often at least, as in a live engine; or this
#: share of a training step, where that is longer.
TICK_S: Final = 0.05
TICK_STEPS: Final = 0.2


class Reader:
    """Pulls, has labelled, and delivers the batches of one student.

    Args:
        student: whose it is.
        clock: on which it works.
        scenario: the settings.
        port: the network of its machine.
        devices: of all teachers, by name.
        rng: scatters probes.
        trace: hears of answers.
        deliver: takes a labelled batch, by its number.
        news: called when the coordinator should hear of something at once.

    Attributes:
        ledger: where each row is.
        figures: what is measured.
        lines: to its teachers.
        most_volume: most bytes that lay labelled and not taken.
    """

    def __init__(
        self,
        student: Student,
        clock: Clock,
        scenario: Scenario,
        port: Port,
        devices: Mapping[str, Device],
        rng: Generator,
        trace: Trace,
        deliver: Callable[[int], None],
        news: Callable[[], None],
    ) -> None:
        group = student.group
        self.student = student
        self.ledger = Ledger()
        self.figures = Figures()
        self.most_volume = 0
        self._clock = clock
        self._tick_s = max(TICK_S, TICK_STEPS * group.t_s_s * group.batch)
        self.lines = Lines(self, scenario, clock, port, devices, rng, trace)
        self._deliver = deliver
        self._news = news
        size = group.batch_bytes
        upper = max(round(group.upper * size), 1)
        self._config = flow.FlowConfig(
            upper,
            min(round(group.lower * size), upper - 1),
            teachers_min=group.teachers_min,
            teachers_max=group.teachers_max,
        )
        self._load: Load | None = None  # None: it may have changed
        self._times: tuple[float | None, float | None] = (None, None)  # t_t and the pace
        self._memory = flow.FlowMemory.start()
        self._decision = flow.FlowDecision.start(self._config)
        self._hunger = hunger.Hunger()
        self._told: tuple[int, int, bool] = (0, 0, False)
        self._pulled = self._allowed = 0
        self._is_pulling = False
        self._waiting = self._closed = False
        self._decided_at = -inf

    # -- the stream

    def begin(self) -> None:
        """The stream is opened."""
        self.decide()
        self._clock.after(self._tick_s, self._tick)

    def close(self) -> None:
        """The stream is over; nothing more is heard."""
        self._closed = True
        self._settle()
        self.lines.close()

    def wait(self) -> None:
        """The training loop waits for a batch."""
        self._waiting = True
        self.decide()

    def taken(self, batch: int, step_s: float | None) -> None:
        """The training loop has a batch, after so long a step on the one before."""
        self._waiting = False
        group = self.student.group
        if step_s is not None:
            self.figures.step(step_s, group.batch)
        self.figures.taken(group.batch, self._clock.now)
        self.tell(ev.Taken(batch))
        self.decide()

    def tell(self, event: ev.Event) -> list[ev.Instruction]:
        """Have the ledger hear of something, and what it says carried out."""
        out = self.ledger.handle(event)
        self._load = None
        for instruction in out:
            match instruction:
                case ev.Send():
                    self.lines.send(instruction)
                case ev.Deliver(batch):
                    self._deliver(batch)
        self.most_volume = max(self.most_volume, self.ledger.volume_bytes)
        return out

    # -- the source

    @property
    def _ended(self) -> bool:
        limit = self.student.batches
        return limit is not None and self._pulled >= limit

    def _pull(self) -> bool:
        """Yield what may be yielded now; whether there was anything."""
        pulled = False
        while not (self._is_pulling or self._pulled >= self._allowed or self._ended):
            pulled = True
            if self.student.group.source_s > 0:
                self._is_pulling = True
                self._clock.after(self.student.group.source_s, self._yielded)
                return False
            self._queue()
        return pulled

    def _yielded(self) -> None:
        self._is_pulling = False
        if not self._closed:
            self._queue()
            self.decide()

    def _queue(self) -> None:
        group = self.student.group
        number, self._pulled = self._pulled, self._pulled + 1
        self.figures.pulled(group.source_s, group.batch)
        nbytes = max(round(group.batch * group.input_bytes), 1)
        missing = None if group.needs_labels else ()
        self.tell(ev.Queued(number, nbytes, group.batch, missing))

    # -- what follows

    def _tick(self) -> None:
        """Time goes by: decide, unless that was done a moment ago."""
        if self._closed:
            return
        due = self._decided_at + self._tick_s
        if self._clock.now < due:
            self._clock.at(due, self._tick)
            return
        self.lines.pass_time()
        self.decide()
        self._clock.after(self._tick_s, self._tick)

    def decide(self) -> None:
        """The next turns of Algorithm 1, until the source has yielded what it may."""
        if self._closed:
            return
        self._decided_at = self._clock.now
        self._settle()
        while self._pull():
            self._settle()
        self._tell_news()

    def _settle(self) -> None:
        """One turn: time is booked, and what may be pulled is known."""
        ledger, figures = self.ledger, self.figures
        if self._load is None:  # most turns follow from time alone
            self._load = ledger.load
            self._times = figures.t_t_s, figures.pace_s(figures.t_s_s)
        windows, free_windows, teachers, idle = self._load
        t_t_s, pace_s = self._times
        view = flow.FlowView(
            ledger.volume_bytes,
            ledger.queued,
            ledger.unlabelled,
            ledger.deliverable,
            windows,
            free_windows,
            idle,
            teachers,
            self._waiting,
            self._ended,
            t_t_s,
            pace_s,
            self.lines.unreachable,
            ledger.batch_bytes,
        )
        self._decision, self._memory = flow.decide(
            view, self._memory, self._clock.now, self._config
        )
        self._allowed = max(self._allowed, self._pulled + self._decision.pull)

    def _tell_news(self) -> None:
        self._hunger = hunger.follow(self._hunger, self._memory.starved_s, self._clock.now)
        starves = self._hunger.starves
        news = (self._decision.want, self.lines.unreachable, starves)
        told, self._told = self._told, news
        if news[:2] != told[:2] or (starves and not told[2]):
            self._news()

    # -- what is told of it

    @property
    def waits(self) -> bool:
        """Whether the training loop waits for a batch."""
        return self._waiting

    def report(self) -> Report:
        """What it tells the coordinator."""
        memory, figures, ledger = self._memory, self.figures, self.ledger
        return Report(
            self._decision.want if self.student.group.needs_labels else 0,
            self._decision.needed,
            figures.t_t_s or 0.0,
            figures.t_s_s or 0.0,
            self._hunger.starves,
            self.lines.unreachable,
            memory.starved_s,
            memory.blocked_s,
            memory.source_wait_s,
            figures.samples_taken,
            ledger.volume_bytes / self.student.group.batch_bytes,
        )

    @property
    def waited_s(self) -> tuple[float, float, float]:
        """Seconds that the student starved, was blocked, waited for the source."""
        return self._memory.starved_s, self._memory.blocked_s, self._memory.source_wait_s

    def answered(self, teacher: str, request: int, rows: int, device_s: float) -> bool:
        """Labels of a request have come; whether they count."""
        self.figures.answer(teacher, device_s, rows)
        row_nbytes = round(self.student.group.label_bytes)
        out = self.tell(ev.Answered(teacher, request, row_nbytes, device_s))
        used = any(isinstance(instruction, ev.Accept) for instruction in out)
        if used:
            self.figures.labelled(teacher)
        return used

    def hear(self, events: Sequence[ev.Event]) -> None:
        """What has become of teachers."""
        for event in events:
            if isinstance(event, ev.TeacherLost | ev.TeacherRevoked):
                self.figures.forget_teacher(event.teacher)
            self.tell(event)
