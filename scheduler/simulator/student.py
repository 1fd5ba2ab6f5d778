"""A student in virtual time: its training loop, and its reader, which drives the real reader core.

Threads and connections of a live engine are events in virtual time here. There are no labels, so
labels of several teachers are not compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import inf
from typing import Final

from .. import flow
from ..ledger import Ledger
from ..reader_core import CoreConfig, ReaderCore
from ..reader_core import events as ev
from ..reader_core import instructions as do
from ..reader_core.delivery import Delivery
from ..reader_core.windows import WindowConfig
from .environment import NetworkPort, SimulationRun
from .result import LabelledRequest, StudentStep
from .scenario import StudentGroup
from .teacher import DeviceJob, SimulatedTeacher

#: Seconds between decisions that depend on time alone, as in a live engine. The interval is
#: `TICK_STEPS` training steps if that is longer, but at most `LONGEST_TICK_S`.
TICK_S: Final = 0.05
TICK_STEPS: Final = 0.4
LONGEST_TICK_S: Final = 0.4

_TICK: Final = ev.Tick()


@cache
def _peer(name: str) -> ev.Peer:
    return ev.Peer(name, name, "")


class SimulatedReader:
    """The reader of one student: pulls batches, gets labels for them, and delivers them.

    Args:
        run: the run.
        name: name of the student.
        group: group of the student.
        limit: number of batches of its source; None: no end.
        teachers: every teacher that was ever ordered, by name.
        deliver: called with the number of a released batch.
        on_news: called when the coordinator should get a report at once.

    Attributes:
        core: the reader core.
        most_volume: largest number of bytes in batches that were labelled and not taken.
    """

    def __init__(
        self,
        run: SimulationRun,
        name: str,
        group: StudentGroup,
        limit: int | None,
        teachers: Mapping[str, SimulatedTeacher],
        deliver: Callable[[int], None],
        on_news: Callable[[], None],
    ) -> None:
        scenario, upper = run.scenario, max(round(group.upper * group.batch_bytes), 1)
        self.core = ReaderCore(
            CoreConfig(
                name,
                flow.FlowConfig(
                    upper,
                    min(round(group.lower * group.batch_bytes), upper - 1),
                    teachers_min=group.teachers_min,
                    teachers_max=group.teachers_max,
                ),
                WindowConfig(scenario.window, max(scenario.window, scenario.window_max)),
                group.request_samples,
                remembered=0,
            ),
            run.rng(name, "probes"),
        )
        self.most_volume = 0
        self._name, self._group, self._limit = name, group, limit
        self._run, self._clock = run, run.clock
        self._port = NetworkPort(run, name, group.link)
        self._delivery = Delivery({name: self.core.ledger})
        self._teachers = teachers
        self._deliver = deliver
        self._on_news = on_news
        self._tick_s = min(max(TICK_S, TICK_STEPS * group.t_s_s * group.batch), LONGEST_TICK_S)
        self._pulled = self._allowed = 0
        self._is_pulling = self._closed = False
        self._decided_at = -inf

    @property
    def ledger(self) -> Ledger:
        return self.core.ledger

    # -- the stream

    def begin(self) -> None:
        self.decide()
        self._clock.after(self._tick_s, self._tick)

    def close(self) -> None:
        self.core.handle(_TICK, self._clock.now)  # include the time until now in the totals
        self._closed = True

    def wait(self) -> None:
        """Record that the training loop waits for a batch."""
        self._delivery.wait()
        self._handle(ev.LoopWaiting())
        self.decide()

    def taken(self, batch: int, step_s: float | None) -> None:
        """Record that the training loop took a batch.

        Args:
            batch: number of the batch.
            step_s: seconds of the step on the previous batch; None: there was none.
        """
        self._delivery.taken(batch, step_s)
        self._handle(ev.BatchTaken(batch, self._group.batch, step_s))
        self.decide()

    def decide(self) -> None:
        """Run Algorithm 1 and pull batches, until no more may be pulled now."""
        if self._closed:
            return
        self._handle_tick()
        while self._pull():
            self._handle_tick()
        self._execute(self._delivery.tick(self._clock.now))

    def _handle_tick(self) -> None:
        self._decided_at = self._clock.now
        self._handle(_TICK)
        self._allowed = max(self._allowed, self._pulled + self.core.decision.pull)

    def _tick(self) -> None:
        """Decide if the latest decision is `_tick_s` old."""
        if self._closed:
            return
        due = self._decided_at + self._tick_s
        if self._clock.now < due:
            self._clock.at(due, self._tick)
            return
        self.decide()
        self._clock.after(self._tick_s, self._tick)

    # -- the source

    @property
    def _source_ended(self) -> bool:
        return self._limit is not None and self._pulled >= self._limit

    def _pull(self) -> bool:
        """Pull all batches that may be pulled now.

        Returns:
            Whether batches were queued at once; if the source needs time, they are queued later.
        """
        pulled = False
        while not (self._is_pulling or self._pulled >= self._allowed or self._source_ended):
            pulled = True
            if self._group.source_s > 0:
                self._is_pulling = True
                self._clock.after(self._group.source_s, self._source_yields)
                return False
            self._queue()
        return pulled

    def _source_yields(self) -> None:
        self._is_pulling = False
        if not self._closed:
            self._queue()
            self.decide()

    def _queue(self) -> None:
        group = self._group
        number, self._pulled = self._pulled, self._pulled + 1
        nbytes = max(round(group.batch * group.input_bytes), 1)
        missing = None if group.needs_labels else ()
        self._handle(ev.Pulled(group.source_s, group.batch, group.batch))
        self._delivery.queue(number)
        self._handle(ev.Queued(number, nbytes, group.batch, missing))
        if self._source_ended:
            self._handle(ev.SourceEnded())

    # -- the teachers

    def assign(self, teachers: Sequence[str], lost: Sequence[str]) -> None:
        """Apply a new assignment.

        Earlier teachers that are neither in `teachers` nor in `lost` are revoked: they finish their
        requests. Teachers in `lost` are dead as far as the coordinator knows: their requests go to
        other teachers.
        """
        self._handle(ev.Assigned(tuple(map(_peer, teachers)), frozenset(lost)))
        self.decide()

    def disconnected(self, name: str) -> None:
        """Let the core know that a connection broke, if requests are in flight at the teacher."""
        if requests := self.ledger.in_flight_at(name):
            self._fail(self.core.teachers.links.number(name), name, requests[0])

    def _answered(self, job: DeviceJob) -> None:
        """Handle the labels of a request."""
        if self._closed:
            self._trace_request(job, used=False)
            return
        answer = ev.AnswerCame(
            job.send.teacher,
            job.link,
            job.send.request,
            job.rows,
            round(self._group.label_bytes),
            job.device_s,
            job.rows,
        )
        out = self._handle(answer)
        used = any(isinstance(instruction, do.Accept) for instruction in out)
        if used:
            self._teachers[job.send.teacher].batches += job.rows / self._group.batch
        self._trace_request(job, used=used)
        self.decide()

    def _handle(self, event: ev.Event) -> list[do.Instruction]:
        """Pass an event to the core, and execute its instructions."""
        out = self.core.handle(event, self._clock.now)
        for instruction in out:
            match instruction:
                case do.SendRequest():
                    self._send(instruction)
                case do.BatchLabelled() | do.GoesUnlabelled() | do.LabelsRevoked() | do.Poison():
                    self._execute(self._delivery.handle(self._name, instruction))
                case do.ReportNow():
                    self._on_news()
                case do.Probe(link, name):
                    self._clock.after(
                        self._run.scenario.connect_s, partial(self._probed, link, name)
                    )
                case do.TryPaths():
                    self._clock.after(
                        self._run.scenario.connect_s, partial(self._paths_tried, instruction)
                    )
        self.most_volume = max(self.most_volume, self.ledger.volume_bytes)
        return out

    def _execute(self, instructions: list[do.StreamInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.ForwardEvent(_, event):
                    self._handle(event)
                case do.Release(batches):
                    for batch in batches:
                        self._deliver(batch)

    def _send(self, instruction: do.SendRequest) -> None:
        now, send, link = self._clock.now, instruction.send, instruction.link
        teacher = self._teachers[send.teacher]
        if teacher.state == "gone":
            fail = partial(self._fail, link, send.teacher, send.request)
            self._clock.after(self._run.scenario.connect_s, fail)
            return
        rows = sum([span.rows for span in send.spans])
        label_bytes, nbytes = self._group.label_bytes, rows * self._group.input_bytes
        job = DeviceJob(self._answered, self._port, label_bytes, link, send, rows, now)
        teacher.send(job, nbytes)

    def _fail(self, link: int, name: str, request: int) -> None:
        if not self._closed:
            self._handle(ev.RequestFailed(name, link, request, "lost", "the connection broke"))
            self.decide()

    def _probed(self, link: int, name: str) -> None:
        if self._closed:
            return
        state = self._teachers[name].state
        if state == "serving":
            self._handle(ev.Probed(name, link))
        else:
            self._handle(ev.ProbeFailed(name, link, "lost", state))
        self.decide()

    def _paths_tried(self, tried: do.TryPaths) -> None:
        if self._closed:
            return
        refusals = {peer: self._refusal(peer.teacher_id) for peer in tried.peers}
        if self._handle(ev.PathsTried(tried.began_at, refusals)):
            self.decide()

    def _refusal(self, name: str) -> str:
        return "refused" if self._teachers[name].state == "gone" else ""

    def _trace_request(self, job: DeviceJob, *, used: bool) -> None:
        send, now = job.send, self._clock.now
        times = (job.sent_s, job.began_s, job.ends_s, now)
        batch = send.spans[0].batch
        self._run.trace.record_request(
            LabelledRequest(send.teacher, self._name, batch, job.rows, *times, used)
        )


class JobRanks:
    """Students of one job: a step of each ends when all active ranks have finished it."""

    def __init__(self) -> None:
        self._members: dict[str, SimulatedStudent] = {}
        self._finished: list[SimulatedStudent] = []

    def join(self, student: SimulatedStudent) -> None:
        self._members[student.name] = student

    def leave(self, student: SimulatedStudent) -> None:
        """Remove a rank that has left or is done: the others no longer wait for it."""
        self._members.pop(student.name, None)
        if student in self._finished:
            self._finished.remove(student)
        self._release()

    def finished(self, student: SimulatedStudent) -> None:
        """Record that a rank has finished its part of the step, unless it has left."""
        if student.name in self._members:
            self._finished.append(student)
            self._release()

    def _release(self) -> None:
        if len(self._finished) < len(self._members):
            return
        finished, self._finished = self._finished, []
        for student in finished:
            student.end_step()


class SimulatedStudent:
    """One student.

    Args:
        run: the run.
        group: its group.
        number: its number in the group.
        teachers: every teacher that was ever ordered, by name.
        ranks: all ranks of its job; None: it trains alone.
        on_news: called when the coordinator should get a report at once.
        on_done: called after the last step.

    Attributes:
        name: its id.
        limit: number of batches that it trains; None: no end.
        began_s: its arrival; None: it has not come yet.
        ended_s: when it was done or left; None: it has not ended yet.
        slowdown: its steps take this many times as long as usual.
        batches: number of finished steps.
        measured: number of steps that were finished since `warm_up_s`.
        last_s: end of the latest step.
        reader: its reader.
    """

    def __init__(
        self,
        run: SimulationRun,
        group: StudentGroup,
        number: int,
        teachers: Mapping[str, SimulatedTeacher],
        ranks: JobRanks | None,
        on_news: Callable[[SimulatedStudent], None],
        on_done: Callable[[SimulatedStudent], None],
    ) -> None:
        self.name = f"{group.name}/{number}"
        self.group = group
        self.number = number
        self.limit = run.scenario.batches_of(group)
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self.slowdown = 1.0
        self.batches = self.measured = 0
        self.last_s = self._training_s = 0.0
        self.reader = SimulatedReader(
            run, self.name, group, self.limit, teachers, self._deliver, partial(on_news, self)
        )
        self._run, self._clock = run, run.clock
        self._jitter = run.jitter(self.name, "step", group.jitter)
        self._ranks = ranks
        self._on_done = on_done
        self._ready: deque[int] = deque()
        self._is_waiting = self._is_over = False
        self._step: tuple[int, float] | None = None  # number of its batch, and its beginning
        self._last_step_s: float | None = None

    @property
    def is_present(self) -> bool:
        """Whether the student has come and has not left."""
        return self.began_s is not None and self.ended_s is None

    def step_s(self, connected: int) -> float:
        """Return the seconds of a step that begins now, without jitter."""
        return self.slowdown * self.group.step_s(self._clock.now, connected)

    @property
    def training_s(self) -> float:
        """Seconds of the student's steps, including the wait for other ranks."""
        working_s = 0.0 if self._step is None else self._clock.now - self._step[1]
        return self._training_s + working_s

    def begin(self) -> None:
        """Arrive, without any teacher yet."""
        self.began_s = self._clock.now
        self.reader.begin()
        if self._ranks is not None:
            self._ranks.join(self)
        self._call_next()

    def leave(self) -> None:
        """Stop training and close the reader, whether or not all batches are trained."""
        self._training_s, self._step = self.training_s, None
        self._is_over = True
        if self._ranks is not None:
            self._ranks.leave(self)
        self.reader.close()

    def _deliver(self, batch: int) -> None:
        """Accept a released batch from the reader, and take it soon if the loop waits for one."""
        self._ready.append(batch)
        if self._is_waiting and len(self._ready) == 1:
            self._clock.after(0.0, self._take)

    def _call_next(self) -> None:
        self._is_waiting = True
        self.reader.wait()
        if self._ready:
            self._take()

    def _take(self) -> None:
        if self._is_over or not (self._is_waiting and self._ready):
            return
        self._is_waiting = False
        batch = self._ready.popleft()
        if batch != self.batches:
            raise AssertionError(f"{self.name} got batch {batch} instead of {self.batches}")
        now = self._clock.now
        self._step = (batch, now)
        self.reader.taken(batch, self._last_step_s)
        connected = len(self.reader.ledger.teachers)
        work_s = self.step_s(connected) * self._jitter.factor()
        ends = self.end_step if self._ranks is None else partial(self._ranks.finished, self)
        self._clock.after(work_s, ends)

    def end_step(self) -> None:
        if self._step is None:
            return  # it has left
        batch, began_s = self._step
        now = self._clock.now
        self._step, self._last_step_s = None, now - began_s
        self._training_s += now - began_s
        self.batches += 1
        self.last_s = now
        if now >= self._run.scenario.warm_up_s:
            self.measured += 1
        self._run.trace.record_step(StudentStep(self.name, batch, began_s, now))
        if self.batches == self.limit:
            self.leave()
            self._on_done(self)
        else:
            self._call_next()
