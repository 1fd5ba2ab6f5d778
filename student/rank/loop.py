"""Algorithm 2 of the paper over all ranks of a world, until the job ends or all ranks leave.

Before each step all ranks vote (`scheduler/students/agreement.py`), and each derives the same
decision from all votes. So no rank enters a collective that others never reach. A rank without rows
takes part in the step with weight 0. A rank that still waits for its batch says so in its vote. If
one rank has to leave, all leave after the same step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ...runtime.errors import UsageError
from ...scheduler.students.agreement import StepDecision, Vote, decide
from ..job.batches import Parts
from .learner import CompletedStep, Learner, TrainingPosition
from .prefetcher import END_OF_EPOCH, BatchPrefetcher, Shares
from .reporting import RankReporter

#: Seconds after which a rank without a batch votes that it waits.
TAKE_S: Final = 1.0
#: "finished": the job is done; "left": the ranks left at a safe point, as requested.
Ending = Literal["finished", "left"]


def do_nothing() -> None:
    """Do nothing: on a CPU, or without other ranks, the loop need not wait for the device."""


@dataclass(slots=True)
class Loop:
    """The training loop; see the module.

    Attributes:
        learner: model, optimizer and loss.
        prefetcher: thread that takes batches.
        shares: rows of each rank.
        reporter: gets each step, and writes snapshots.
        leaving: returns whether this rank has to leave.
        due: returns whether a snapshot is due after the step of this number.
        position: progress of the training; the loop advances it.
        steps: end after this number of steps; None: no limit.
        epochs: end after this number of epochs; None: no limit.
        adapt: give ranks rows in proportion to their speed.
        synchronize: waits for the device; called before the end of a step is timed.
        waits: whether the loop waits for a batch, or for the job board when an epoch begins.
    """

    learner: Learner
    prefetcher: BatchPrefetcher
    shares: Shares
    reporter: RankReporter
    leaving: Callable[[], bool]
    due: Callable[[int], bool]
    position: TrainingPosition = field(default_factory=TrainingPosition)
    steps: int | None = None
    epochs: int | None = None
    adapt: bool = True
    synchronize: Callable[[], None] = do_nothing
    waits: bool = False
    _next_batch: Any = None  # taken, and not trained yet
    _wait_s: float = 0.0  # seconds that this rank has waited for the next batch
    _source_s: float = 0.0  # seconds that the next batch took to arrive
    _row_s: float = 0.0  # seconds per row of the previous step; 0: unknown
    _voted_at_s: float = 0.0
    _steps_in_epoch: int = 0
    _first_step: int = 0
    _unsaved: bool = True  # the last snapshot lacks a step, or metrics of an evaluation
    _patient: bool = True  # see `DistributedGroup`; at first, ranks may be far apart in time

    def report_wait(self) -> None:
        """Report what this rank waits for, if it waits. Any thread may call this."""
        if self.learner.group.waits_s:
            self.reporter.waits_for("the other ranks")
        elif self.waits:
            self.reporter.waits_for(self.prefetcher.waiting_for())
        elif self.reporter.evaluation.waits:
            self.reporter.waits_for("the next batch of its evaluation")

    def close(self) -> None:
        """Stop reading batches."""
        self.reporter.close()
        self.shares.close()
        self.prefetcher.close()

    def run(self) -> Ending:
        """Train to the end, or until all ranks leave.

        Exceptions of the reader and of the job's functions pass unchanged.

        Raises:
            PeerLost: another rank is gone.
            UsageError: two epochs in a row have no rows.
        """
        self._first_step = self.position.step
        self.learner.model.train()
        empty, evaluated = 0, False
        # The restored snapshot may have the last step without its evaluation, because a rank was
        # lost while it ran. Then only the evaluation is repeated.
        if self._reached_last_step() and self.position.evaluated < self.position.step:
            evaluated = self.reporter.epoch_done()
        while not self._is_finished():
            if self._epoch() == "left":
                return "left"
            empty = 0 if self._steps_in_epoch else empty + 1
            if empty > 1:  # a restored job may find no rows left in its first epoch
                raise UsageError("feed('train') gives no rows: there is nothing to train on")
            evaluated = self.reporter.epoch_done()
            self._unsaved |= evaluated
            if not self._reached_last_step():
                self.position.epoch += 1
        # If a restored job makes no step, only a repeated evaluation is new, and is saved.
        if self.position.step > self._first_step or (evaluated and self._first_step):
            self._save()
            # The job counts as finished when the first rank ends, so wait until all have saved.
            self.learner.group.patient = True
            self.learner.group.gather([0.0])
        return "finished"

    def _is_finished(self) -> bool:
        return self._reached_last_step() or (
            self.epochs is not None and self.position.epoch >= self.epochs
        )

    def _reached_last_step(self) -> bool:
        return self.steps is not None and self.position.step >= self.steps

    def _epoch(self) -> Literal["over", "left"]:
        self.shares.begin(self.position.step)
        self._steps_in_epoch, self._next_batch = 0, None
        with self._waiting():  # it may have to wait for the job board
            self.prefetcher.begin()
        while not self._reached_last_step():
            batch = self._take()
            decision = self._vote(batch)
            if decision.verdict == "step":
                self._step(None if batch is None or batch is END_OF_EPOCH else batch, decision)
            if decision.save or decision.leave:
                self._save()
            if decision.leave:
                return "left"
            if decision.verdict == "over":
                break
        return "over"

    def _take(self) -> Any:
        """Return the parts of the next batch; `END_OF_EPOCH` after the last; None: none yet."""
        if self._next_batch is not None:
            return self._next_batch
        began = time.perf_counter()
        with self._waiting():
            batch = self.prefetcher.take(TAKE_S)
        self._wait_s += time.perf_counter() - began
        if batch is not None:
            self._next_batch = batch if batch is END_OF_EPOCH else self.prefetcher.parts(batch)
            self._source_s = self.prefetcher.source_s
            if batch is not END_OF_EPOCH and not self._next_batch.rows:
                # An empty batch needs no step; a vote without rows would mean the epoch's end.
                self._trained([])
                self._next_batch = None
        return self._next_batch

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def _save(self) -> None:
        if self._unsaved:
            self.reporter.save()
            self._unsaved = False

    def _vote(self, batch: Any) -> StepDecision:
        now = time.perf_counter()
        busy_s = now - self._voted_at_s if self._voted_at_s else 0.0
        vote = Vote(
            rows=0 if batch is None or batch is END_OF_EPOCH else batch.rows,
            waiting=batch is None,
            leaving=self.leaving(),
            save=self.due(self.position.step + 1),
            pulled=self.shares.promise(self.position.step),
            row_s=self._row_s,
            busy_s=busy_s,
        )
        group = self.learner.group
        group.patient = self._patient
        votes = [Vote.from_numbers(numbers) for numbers in group.gather(vote.to_numbers())]
        self._voted_at_s = time.perf_counter()
        decision = decide(votes)
        self._patient = decision.patient
        if self.adapt and decision.verdict == "step" and group.world > 1 and self._steps_in_epoch:
            times = [vote.row_s for vote in votes]
            proportion = self.shares.proportion.after_step(
                self.position.step - 1, times, decision.free_from
            )
            self.shares.set_shares(proportion)
        return decision

    def _step(self, batch: Parts | None, decision: StepDecision) -> None:
        positions = [] if batch is None or batch.positions is None else batch.positions.tolist()
        self.reporter.positions = positions
        began = time.perf_counter()
        losses = self.learner.backward(batch, decision.total, self.position.step)
        self.synchronize()
        step_s = time.perf_counter() - began
        self.learner.group.patient = self._patient
        self.learner.apply()
        completed = CompletedStep(
            step=self.position.step + 1,
            epoch=self.position.epoch,
            positions=positions,
            rows=0 if batch is None else batch.rows,
            total=decision.total,
            losses=losses,
            step_s=step_s,
            wait_s=self._wait_s,
        )
        self.position.step += 1
        self._unsaved = True
        self._row_s = self._seconds_per_row(completed)
        self._steps_in_epoch += 1
        self._wait_s = 0.0
        if batch is not None:
            self._next_batch = None
            self._trained(positions)
        self.reporter.step_done(completed)

    def _trained(self, positions: list[int]) -> None:
        self.prefetcher.trained(self.position.epoch, np.asarray(positions, np.int64))

    def _seconds_per_row(self, completed: CompletedStep) -> float:
        """Return seconds per row; 0 for the epoch's first step and for steps with few rows."""
        expected = self.shares.expected(completed.step - 1)
        if self._steps_in_epoch == 0 or 2 * completed.rows < expected:
            return 0.0
        # The next batch is read while this one is computed, so use the longer of the two times.
        return max(completed.step_s, self._source_s) / completed.rows if completed.rows else 0.0
