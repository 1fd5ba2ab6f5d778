"""A training loop in virtual time: takes a batch, works on it, asks for the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from .cast import Student
from .clock import Clock, Jitter
from .reader import Reader
from .trace import Trace


class Ranks:
    """Students of one job: a step of each ends when those of all that are at work are over."""

    def __init__(self) -> None:
        self._members: dict[str, Trainer] = {}
        self._through: list[Trainer] = []

    def join(self, trainer: Trainer) -> None:
        """One more rank."""
        self._members[trainer.student.name] = trainer

    def leave(self, trainer: Trainer) -> None:
        """A rank is gone, or done: it is not waited for."""
        self._members.pop(trainer.student.name, None)
        if trainer in self._through:
            self._through.remove(trainer)
        self._release()

    def through(self, trainer: Trainer) -> None:
        """A rank has done its part of the step; one that is gone since is of no account."""
        if trainer.student.name in self._members:
            self._through.append(trainer)
            self._release()

    def _release(self) -> None:
        if len(self._through) < len(self._members):
            return
        through, self._through = self._through, []
        for trainer in through:
            trainer.end_step()


class Trainer:
    """The training loop of one student.

    Args:
        student: whose it is.
        clock: on which it works.
        jitter: of its steps.
        trace: hears of steps.
        ranks: whom it steps with; None: alone.
        warm_up_s: steps that end from then on are measured.
        done: called when the last step is over.

    Attributes:
        batches, measured: steps that are over; of these, from `warm_up_s` on.
        last_s: when the last of them was over.
        training_s: that it was at work, or waited for the other ranks of its step.
    """

    reader: Reader

    def __init__(
        self,
        student: Student,
        clock: Clock,
        jitter: Jitter,
        trace: Trace,
        ranks: Ranks | None,
        warm_up_s: float,
        done: Callable[[Trainer], None],
    ) -> None:
        self.student = student
        self.batches = self.measured = 0
        self.last_s = self._training_s = 0.0
        self._clock = clock
        self._jitter = jitter
        self._trace = trace
        self._ranks = ranks
        self._warm_up_s = warm_up_s
        self._done = done
        self._ready: deque[int] = deque()
        self._is_waiting = self._is_over = False
        self._at_work: tuple[int, float] | None = None  # the batch, and since when
        self._step_s: float | None = None

    @property
    def training_s(self) -> float:
        working_s = 0.0 if self._at_work is None else self._clock.now - self._at_work[1]
        return self._training_s + working_s

    def begin(self) -> None:
        """The loop begins."""
        if self._ranks is not None:
            self._ranks.join(self)
        self._call_next()

    def stop(self) -> None:
        """It is ended from outside."""
        self._training_s, self._at_work = self.training_s, None
        self._is_over = True
        if self._ranks is not None:
            self._ranks.leave(self)

    def deliver(self, batch: int) -> None:
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
            raise AssertionError(f"{self.student.name}: batch {batch} comes as {self.batches}")
        now = self._clock.now
        self._at_work = (batch, now)
        self.reader.taken(batch, self._step_s)
        connected = len(self.reader.ledger.teachers)
        work_s = self.student.step_s(now, connected) * self._jitter.factor()
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
        if now >= self._warm_up_s:
            self.measured += 1
        self._trace.stepped_on(self.student.name, batch, began_s)
        if self.batches == self.student.batches:
            self.stop()
            self._done(self)
        else:
            self._call_next()
