"""One student of the fluid plane: the live flow control, at work on amounts and rates.

What Algorithm 1 does is decided by `flow.decide`, as in a reader: whenever the volume comes to
`ut`, `lt` or nothing, when the student begins or ceases to wait, and every other second besides.
Between two decisions the rates are constant. A student that has labels for a part of its time only
waits and works by turns, in that proportion, so that starved seconds and hunger add up as they do
batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf
from typing import Final

from ... import flow, hunger
from ..cast import Student
from ..plane import Report, Tally
from ..scenario import Scenario
from .buffer import EPS, Buffer
from .crew import Crew
from .devices import Device
from .jobs import Job
from .measures import Measures
from .turns import Turns

#: Seconds between two decisions where nothing happens.
CADENCE_S: Final = 2.0
#: No event is nearer than this to the one before.
SOONEST_S: Final = 1e-6
#: Until what a teacher had is labelled by another, in times of a batch: it stands behind one that
#: is in the window of that already; what a silent one has must be found late before.
REFILL, FIND_SILENT = 2.0, 1.0


class Stream:
    """The stream of one student.

    Args:
        student: whose it is.
        scenario: that is run.
        job: whose ranks step together; None: it is on its own.
        now: when it begins.

    Attributes:
        job: as given.
        crew: its teachers.
        buffer: its batches.
        potential: batches per second that it could take now, whatever other ranks do.
        unhindered: the same with labels in plenty.
        due: when something changes by itself.
        plan: how many plans there were; all but the last are void.
    """

    def __init__(self, student: Student, scenario: Scenario, job: Job | None, now: float) -> None:
        group = student.group
        self.student, self.job = student, job
        self._scenario = scenario
        self._measures = Measures(group)
        self.buffer = Buffer(group, student.batches)
        self.crew = Crew(self, scenario, self._measures)
        self._bytes = group.batch_bytes
        upper = max(round(group.upper * self._bytes), 1)
        self._config = flow.FlowConfig(
            upper,
            min(round(group.lower * self._bytes), upper - 1),
            teachers_min=group.teachers_min,
            teachers_max=group.teachers_max,
        )
        self._memory = flow.FlowMemory.start()
        self._decision = flow.FlowDecision.start(self._config)
        self._hunger = hunger.Hunger(since_s=now)
        self._told: tuple[int, int, bool] = (0, 0, False)
        self._turns = Turns()
        self._step_s = student.step_s(now, 0)
        self.unhindered, self.potential = 1 / self._step_s, 0.0
        self._training_s = self._at_work = 0.0
        self._resends = self._warm = 0
        self._at = self._last_s = now
        self.due, self.plan = now, 0

    # -- what its teachers see of it

    @property
    def active(self) -> bool:
        """Whether its teachers have something to do for it."""
        return self.buffer.unlabelled > EPS

    @property
    def use(self) -> float:
        """The part of its teachers' time that its source can keep busy (at most 1)."""
        return self.buffer.source_use(self.crew.capacity)

    # -- time

    def advance(self, now: float) -> None:
        """Let the rates run until now."""
        span_s = now - self._at
        if span_s <= 0:
            return
        buffer, warm_up_s = self.buffer, self._scenario.warm_up_s
        if self._at < warm_up_s:
            warm = buffer.taken + buffer.takes * (min(now, warm_up_s) - self._at)
            self._warm = floor(warm + EPS)
        self.crew.made(buffer.advance(span_s))
        self._training_s += self._at_work * span_s
        self._turns.advance(span_s)
        self._at = now
        if buffer.takes > 0:
            self._last_s = now

    def turn(self, now: float) -> bool:
        """Something has come up, or is due: decide, and go on at other rates.

        Returns:
            Whether what it tells the coordinator has changed in what is acted on.
        """
        self.advance(now)
        crew, buffer = self.crew, self.buffer
        if now >= crew.due:
            crew.recount(now)
        crew.made(buffer.answer_first(now, crew))
        self._step_s = self.student.step_s(now, len(crew))
        self.unhindered = 1 / self._step_s
        self._measures.step(self._as_measured_s, buffer.taken)
        if not self.student.group.needs_labels:
            self.potential = self.unhindered * buffer.source_use(self.unhindered)
            self._go_on(now)
            return False
        self._flow(now)
        self._turns.look(max(1 - self.potential * self._step_s, 0.0), now)
        stood_idle = not self.active
        if self._decide(now):
            if stood_idle:  # that it waits, and for what, is said with what is pulled now
                self._decide(now)
            self._flow(now)
        self._go_on(now)
        return self._has_news()

    @property
    def _as_measured_s(self) -> float:
        """Seconds of a step as its reader sees it: until the last of all ranks is through."""
        if self.job is None or not self.job.rate:
            return self._step_s
        lacks = self.potential < self.unhindered
        return self._step_s * self.job.stretch if lacks else 1 / self.job.rate

    def _flow(self, now: float) -> None:
        pulling = self._memory.pulling
        self.potential = self.buffer.flow(now, self.crew, pulling, self.unhindered)

    def follow_job(self, now: float) -> None:
        """The other ranks of its job can step at another rate."""
        self.advance(now)
        before, at_once = self.potential, self.due <= now + SOONEST_S
        if self.student.group.needs_labels:
            self._flow(now)
        self._go_on(now)
        if at_once or self.potential != before:  # it begins or ceases to wait
            self.due = now + SOONEST_S

    def _go_on(self, now: float) -> None:
        """Take batches at what it, and its job, can; see when something changes by that."""
        buffer = self.buffer
        buffer.takes = min(self.potential, self.job.rate if self.job else inf)
        self._at_work = min(self.potential * self._step_s, 1.0)  # that others are waited for counts
        due = min(now + CADENCE_S, self._turns.due, self.crew.due)
        self.due = max(min(due, buffer.due(now, self.crew, self._memory.pulling)), now + SOONEST_S)
        self.plan += 1

    # -- flow control

    def _decide(self, now: float) -> bool:
        """One turn of Algorithm 1; whether it has changed what is pulled."""
        buffer, was_pulling, was_active = self.buffer, self._memory.pulling, self.active
        view = self._view(now)
        self._decision, self._memory = flow.decide(view, self._memory, now, self._config)
        self._hunger = hunger.follow(self._hunger, self._memory.starved_s, now)
        if self._decision.pull and not buffer.ended:
            buffer.pull(self._decision.pull)
        if was_pulling and not self._memory.pulling:
            buffer.pause(self.crew.windows)
        if self.active and not was_active and len(self.crew):
            buffer.wake(now, self.crew)
        return was_pulling is not self._memory.pulling or bool(self._decision.pull)

    def _view(self, now: float) -> flow.FlowView:
        buffer, crew, times = self.buffer, self.crew, self._measures
        volume = floor(buffer.volume + 0.5)
        ready = buffer.deliverable(now)
        waits = self._turns.waits and ready <= EPS
        under_way = min(buffer.unlabelled, float(crew.windows))
        taken_up = ceil(under_way - EPS)
        return flow.FlowView(
            volume * self._bytes,
            floor(buffer.unlabelled - under_way + 0.5),
            ceil(buffer.unlabelled - EPS),
            0 if waits else max(min(volume, floor(ready)), 1),
            crew.windows,
            max(crew.windows - taken_up, 0),
            max(len(crew) - taken_up, 0),
            len(crew),
            waits,
            buffer.ended,
            times.t_t_s,
            times.pace_s(buffer.taken),
            len(crew.unreachable),
            self._bytes,
        )

    def _has_news(self) -> bool:
        news = self._decision.want, len(self.crew.unreachable), self._hunger.starves
        told, self._told = self._told, news
        return news[:2] != told[:2] or (news[2] and not told[2])

    # -- its teachers

    def assign(self, devices: Sequence[Device], lost: Sequence[str], now: float) -> None:
        """It hears of its new set: see `Plane.assign`."""
        self.advance(now)
        crew, names = self.crew, {device.teacher.name for device in devices}
        for name in [*crew.holds]:
            if name in lost or name not in names:
                self._lose(name, now, lost=name in lost)
        crew.unreachable -= {name for name in crew.unreachable if name in lost or name not in names}
        for device in devices:
            name = device.teacher.name
            if name not in crew.holds and name not in crew.unreachable:
                if device.teacher.state == "serving":
                    crew.join(device, now)
                else:
                    crew.unreachable.add(name)
        crew.recount(now)

    def _lose(self, name: str, now: float, *, lost: bool) -> None:
        hold = self.crew.holds[name]
        works = hold.works and not lost
        self.crew.part(name, now, finishes=works)
        if lost and hold.device.teacher.state != "hung":  # a silent one's hole is there already
            self._tear(now, REFILL)

    def broke(self, name: str, now: float) -> None:
        """The connection to a teacher has broken: what it had goes to others."""
        self.advance(now)
        if name in self.crew.holds:
            self.crew.part(name, now, finishes=False)
            self.crew.unreachable.add(name)
            self._tear(now, REFILL)
            self.crew.recount(now)

    def silent(self, now: float) -> None:
        """A teacher says nothing any more: what it has is found late, and asked of others."""
        self.advance(now)
        self._tear(now, REFILL + FIND_SILENT)
        self.crew.recount(now)

    def paced(self, name: str, now: float) -> None:
        """A teacher's speed is another one, or it works again."""
        self.advance(now)
        if name in self.crew.holds:
            self.crew.paced(name, now)
        self.crew.recount(now)

    def recount(self, now: float) -> None:
        """Others that share its teachers take more of them, or less."""
        self.advance(now)
        self.crew.recount(now)

    def _tear(self, now: float, times: float) -> None:
        """Nothing behind what a teacher had is delivered until another has labelled it."""
        crew, buffer = self.crew, self.buffer
        if not self.active:
            return
        self._resends += self._scenario.window
        full = buffer.unlabelled > crew.windows - 1
        wait_s = (times if full else times - 1) * crew.lag_s + crew.travel_s
        if full and crew.capacity > 0:
            wait_s += 1 / crew.capacity  # until a window has room
        buffer.tear(now, now + wait_s, crew)

    # -- what is asked of it

    @property
    def waited_s(self) -> tuple[float, float, float]:
        """Seconds that it starved, was blocked, waited for its source."""
        memory = self._memory
        if memory.now is None:
            return 0.0, 0.0, 0.0
        span_s = self._at - memory.now
        return (
            memory.starved_s + span_s * (memory.state == "starved"),
            memory.blocked_s + span_s * (not memory.pulling),
            memory.source_wait_s + span_s * (memory.state == "source_wait"),
        )

    def report(self) -> Report:
        """What it tells the coordinator."""
        times, group = self._measures, self.student.group
        return Report(
            self._decision.want if group.needs_labels else 0,
            self._decision.needed,
            times.t_t_s or 0.0,
            times.t_s_s(self.buffer.taken) or 0.0,
            self._hunger.starves,
            len(self.crew.unreachable),
            *self.waited_s,
            self._batches * group.batch,
            self.buffer.volume,
        )

    @property
    def _batches(self) -> int:
        return floor(self.buffer.taken + EPS)

    def tally(self) -> Tally:
        """What it has done."""
        return Tally(
            self._batches,
            self._batches - self._warm,
            self._last_s,
            self._training_s,
            resends=self._resends,
            most_volume=self.buffer.most_volume,
        )
