"""A student in virtual time: it takes a batch, works on it, asks for the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from .environment import Environment
from .reader import Reader
from .result import Stepped
from .scenario import StudentGroup
from .teacher import Teacher


class Ranks:
    """Students of one job: a step of each ends when those of all that are at work are over."""

    def __init__(self) -> None:
        self._members: dict[str, Student] = {}
        self._through: list[Student] = []

    def join(self, student: Student) -> None:
        """One more rank."""
        self._members[student.name] = student

    def leave(self, student: Student) -> None:
        """A rank is gone, or done: it is not waited for."""
        self._members.pop(student.name, None)
        if student in self._through:
            self._through.remove(student)
        self._release()

    def through(self, student: Student) -> None:
        """A rank has done its part of the step; one that is gone since is of no account."""
        if student.name in self._members:
            self._through.append(student)
            self._release()

    def _release(self) -> None:
        if len(self._through) < len(self._members):
            return
        through, self._through = self._through, []
        for student in through:
            student.end_step()


class Student:
    """One student.

    Args:
        env: of the run.
        group: what it is like.
        number: within its group.
        teachers: all that there are or were, by name.
        ranks: whom it steps with; None: alone.
        news: called when the coordinator should hear of something at once.
        done: called when the last step is over.

    Attributes:
        name: its id.
        limit: batches that it trains; None: no end.
        began_s: when it came; None: it has not come yet.
        ended_s: when it was done or left; None: it is there.
        slowed: its steps take so many times as long as the group's do.
        batches, measured: steps that are over; of these, from `warm_up_s` on.
        last_s: when the last of them was over.
        reader: gives it batches.
    """

    def __init__(
        self,
        env: Environment,
        group: StudentGroup,
        number: int,
        teachers: Mapping[str, Teacher],
        ranks: Ranks | None,
        news: Callable[[Student], None],
        done: Callable[[Student], None],
    ) -> None:
        self.name = f"{group.name}/{number}"
        self.group = group
        self.number = number
        self.limit = env.scenario.batches_of(group)
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self.slowed = 1.0
        self.batches = self.measured = 0
        self.last_s = self._training_s = 0.0
        self.reader = Reader(
            env, self.name, group, self.limit, teachers, self._deliver, partial(news, self)
        )
        self._env, self._clock = env, env.clock
        self._jitter = env.jitter(self.name, "step", group.jitter)
        self._ranks = ranks
        self._done = done
        self._ready: deque[int] = deque()
        self._is_waiting = self._is_over = False
        self._at_work: tuple[int, float] | None = None  # the batch, and since when
        self._step_s: float | None = None

    @property
    def is_there(self) -> bool:
        """Whether it has come and has not left."""
        return self.began_s is not None and self.ended_s is None

    def step_s(self, connected: int) -> float:
        """Seconds of a step that begins now, with so many teachers connected, without jitter."""
        return self.slowed * self.group.step_s(self._clock.now, connected)

    @property
    def training_s(self) -> float:
        """Seconds that it was at work, or waited for the other ranks of its step."""
        working_s = 0.0 if self._at_work is None else self._clock.now - self._at_work[1]
        return self._training_s + working_s

    def begin(self) -> None:
        """It comes now; it has no teacher yet."""
        self.began_s = self._clock.now
        self.reader.begin()
        if self._ranks is not None:
            self._ranks.join(self)
        self._call_next()

    def leave(self) -> None:
        """It is gone at this moment, done or not; nothing more is heard of it."""
        self._training_s, self._at_work = self.training_s, None
        self._is_over = True
        if self._ranks is not None:
            self._ranks.leave(self)
        self.reader.close()

    def _deliver(self, batch: int) -> None:
        """The reader hands a labelled batch over."""
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
            raise AssertionError(f"{self.name}: batch {batch} comes as {self.batches}")
        now = self._clock.now
        self._at_work = (batch, now)
        self.reader.taken(batch, self._step_s)
        connected = len(self.reader.ledger.teachers)
        work_s = self.step_s(connected) * self._jitter.factor()
        ends = self.end_step if self._ranks is None else partial(self._ranks.through, self)
        self._clock.after(work_s, ends)

    def end_step(self) -> None:
        """The step is over."""
        if self._at_work is None:
            return  # it was ended from outside
        batch, began_s = self._at_work
        now = self._clock.now
        self._at_work, self._step_s = None, now - began_s
        self._training_s += now - began_s
        self.batches += 1
        self.last_s = now
        if now >= self._env.scenario.warm_up_s:
            self.measured += 1
        self._env.trace.stepped_on(Stepped(self.name, batch, began_s, now))
        if self.batches == self.limit:
            self.leave()
            self._done(self)
        else:
            self._call_next()
