"""Reports of a rank to its supervisor, its log of sample ids, and its snapshots.

While a rank waits for a batch or for other ranks, it reports this every second. While it evaluates,
it also reports after batches, at most once a second. While it computes a step, it reports
nothing. So if a world makes no progress, the rank that reports nothing is the one that hangs. At
safe points, a `Saver` copies the state of all ranks into memory that outlives them.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from ...runtime.errors import EdlError, MemoryRefused
from ...scheduler.students.saving import SaveSchedule
from ..checkpoint.capture import TrainingObjects, capture
from ..checkpoint.snapshot import SnapshotWriter
from ..evaluate import RankEvaluation
from ..feeding import ShardedSource, UnshardedSource, merge_states
from ..link import RankLink
from ..messages import Order, Progress, Saved
from .learner import CompletedStep, Learner, TrainingPosition
from .prefetcher import BatchPrefetcher

log = logging.getLogger(__name__)

#: Keys of a checkpoint's state.
EPOCH: Final = "epoch"
EVALUATED: Final = "evaluated_step"
FEED: Final = "feed"
FACTOR: Final = "learning_rate_factor"
METRICS: Final = "metrics"
#: Number of latest saves whose durations predict the next one. The first save must not count for
#: long: it takes longer, as its memory is new.
_RECENT_SAVES: Final = 2
#: Seconds between reports of a rank that waits or evaluates.
EVERY_S: Final = 1.0
#: Shortest time in seconds between reports of steps, as reading the losses waits for the device.
SEND_EVERY_S: Final = 0.05
#: The reported rate is a mean over the steps of this many seconds, but at least over two steps.
_RATE_S: Final = 10.0


@dataclass(slots=True)
class RankReporter:
    """Reports steps, evaluates, and saves. Other threads may call only `waits_for`.

    Attributes:
        order: order of the rank.
        link: connection to the supervisor.
        saver: writes snapshots.
        evaluation: evaluates at the end of each epoch.
        prefetcher: has the statistics of the reader.
        position: current step and epoch, which the loop advances.
        metrics: metrics of the last evaluation.
        positions: positions of the current batch; the loop sets them before each step.
    """

    order: Order
    link: RankLink
    saver: Saver
    evaluation: RankEvaluation
    prefetcher: BatchPrefetcher
    position: TrainingPosition
    metrics: dict[str, float]
    positions: list[int] = field(default_factory=list)
    _ids: TextIO | None = None
    _sent_at_s: float = 0.0
    _last: CompletedStep | None = None
    _unsent: CompletedStep | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=deque)  # time and rows of each step
    _samples_per_s: float = 0.0  # for another thread, which must not read `_recent`

    def __post_init__(self) -> None:
        self._ids = _open_id_log(self.order)

    def step_done(self, completed: CompletedStep) -> None:
        """Log the ids of a step; report the step if the last report is `SEND_EVERY_S` old."""
        now = time.monotonic()
        self._recent.append((now, completed.total))
        while len(self._recent) > 2 and now - self._recent[0][0] > _RATE_S:
            self._recent.popleft()
        self._log_ids(completed)
        self._last = self._unsent = completed
        self.positions = []
        if now - self._sent_at_s >= SEND_EVERY_S:
            self._send_progress()

    def save(self) -> None:
        """Write a snapshot; all ranks call it after the same step."""
        self._send_progress()
        self.saver.save(self.position, self.metrics)

    def epoch_done(self) -> bool:
        """Evaluate at the end of an epoch.

        Returns:
            Whether there are new metrics, so that a snapshot would differ from the previous one.
            All ranks return the same.
        """
        learner = self.saver.learner
        metrics = self.evaluation.run(learner.model, learner.group, self._report_evaluation)
        if metrics:
            self.metrics, self.position.evaluated = metrics, self.position.step
            first = next(iter(metrics.values()))
            learner.rate.evaluated(first)
            self._unsent = self._last
        self._send_progress()
        return bool(metrics)

    def _report_evaluation(self, rows: int) -> None:
        """Report that the evaluation goes on: otherwise the rank would count as hanging."""
        now = time.monotonic()
        if now - self._sent_at_s >= EVERY_S:
            self._sent_at_s = now
            self.waits_for(f"its evaluation, {rows} rows so far")

    def waits_for(self, what: str) -> None:
        """Report what the rank waits for. Any thread may call this."""
        self.link.send(self._progress(self._last, what, read_losses=False))

    def close(self) -> None:
        if self._ids is not None:
            with suppress(OSError):  # each line was flushed, which raised an error earlier
                self._ids.close()

    def _send_progress(self) -> None:
        if self._unsent is None:
            return
        completed, self._unsent = self._unsent, None
        self._sent_at_s = time.monotonic()
        self._samples_per_s = self._rate()
        self.link.send(self._progress(completed, ""))

    def _progress(
        self, completed: CompletedStep | None, waiting: str, read_losses: bool = True
    ) -> Progress:
        stats = self.prefetcher.stats()
        peers_s = self.saver.learner.group.waits_s
        if completed is None:
            return Progress(
                self.position.step, self.position.epoch, waiting_for=waiting, peers_s=peers_s
            )
        losses = completed.losses if read_losses else {}
        return Progress(
            step=completed.step,
            epoch=completed.epoch,
            rows=completed.rows,
            total=completed.total,
            losses={name: float(value) for name, value in losses.items()},
            metrics=self.metrics,
            step_s=completed.step_s,
            wait_s=completed.wait_s,
            samples_per_s=self._samples_per_s,
            teachers=None if stats is None else len(stats.teachers),
            volume=0 if stats is None else stats.volume_bytes,
            waiting_for=waiting,
            peers_s=peers_s,
            upper_bytes=0 if stats is None else stats.upper_bytes,
            wanted=0 if stats is None else stats.want,
        )

    def _rate(self) -> float:
        """Return the recent samples per second of all ranks; 0: unknown."""
        steps = list(self._recent)
        if len(steps) < 2 or steps[-1][0] <= steps[0][0]:
            return 0.0
        return sum(total for _, total in steps[1:]) / (steps[-1][0] - steps[0][0])

    def _log_ids(self, completed: CompletedStep) -> None:
        if self._ids is None:
            return
        line: dict[str, Any] = {
            "generation": self.order.generation,
            "step": completed.step,
            "epoch": completed.epoch,
            "rank": self.order.rank,
            "at_s": round(time.time(), 4),
            "rows": completed.rows,
            "total": completed.total,
            "positions": completed.positions,
            "ids": self.saver.source.sample_ids(completed.epoch, completed.positions),
        }
        with _id_log_errors(Path(self._ids.name)):
            self._ids.write(json.dumps(line, default=str) + "\n")
            self._ids.flush()


def _open_id_log(order: Order) -> TextIO | None:
    if order.settings.id_log is None:
        return None
    path = Path(order.settings.id_log, f"rank-{order.rank}.jsonl")
    with _id_log_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")


@contextmanager
def _id_log_errors(path: Path) -> Iterator[None]:
    """Convert an OSError to an EdlError that names the log of ids."""
    try:
        yield
    except OSError as error:
        raise EdlError(f"the log of ids {path} cannot be written: {error.strerror}") from error


@dataclass(slots=True)
class Saver:
    """Collects the state of all ranks, and writes snapshots if this rank is the node's writer.

    All ranks call `save` at the same steps.

    Attributes:
        order: order of the rank; has the keys of the snapshot memory if this rank is the writer.
        link: connection to the supervisor, which gets `Saved`.
        trained: model, optimizer and scaler.
        learner: learner of this rank.
        source: source of this rank.
        base: the feed's part of the checkpoint that the generation started from; None: none.
        began: step at which the generation started.
    """

    order: Order
    link: RankLink
    trained: TrainingObjects
    learner: Learner
    source: ShardedSource | UnshardedSource
    base: Mapping[str, Any] | None
    began: int
    _writer: SnapshotWriter | None = None
    _last_step: int = 0
    _last_s: float = 0.0
    _costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_SAVES))

    def __post_init__(self) -> None:
        self._last_step, self._last_s = self.began, time.monotonic()
        if self.order.snapshot:
            self._writer = SnapshotWriter(self.order.snapshot)

    def due(self, step: int) -> bool:
        """Return whether to save `step`: rank 0 decides for all, the others return False."""
        if self.order.rank:
            return False
        settings = self.order.settings
        schedule = SaveSchedule(
            settings.save_every_steps, settings.save_every_s, settings.save_overhead
        )
        return schedule.due(step, time.monotonic(), self._last_step, self._last_s, self._costs_s)

    def save(self, position: TrainingPosition, metrics: Mapping[str, float]) -> None:
        """Save the state at `position`, which all ranks have reached.

        If there is too little memory, this logs a warning and keeps the previous snapshot.
        """
        began_s = time.monotonic()
        try:
            self._save(position, metrics)
        finally:
            self._last_step, self._last_s = position.step, time.monotonic()
            self._costs_s.append(self._last_s - began_s)

    def _save(self, position: TrainingPosition, metrics: Mapping[str, float]) -> None:
        group = self.learner.group
        group.average(self.learner.float_buffers())
        states = group.gather_json(self.source.state())
        if self._writer is None:
            return
        state = {
            EPOCH: position.epoch,
            EVALUATED: position.evaluated,
            FEED: merge_states(states, self.base),
            FACTOR: self.learner.rate.factor,
            METRICS: dict(metrics),
            "generation": self.order.generation,
        }
        contents = capture(self.trained, step=position.step, world=group.world, state=state)
        try:
            self._writer.write(contents)
        except MemoryRefused as error:
            log.warning("step %d is not saved: %s", position.step, error)
            return
        self.link.send(Saved(position.step))
