"""Evaluation of a student: loss and metrics of a job over its feed of held-out samples.

`evaluate` evaluates a checkpoint. `RankEvaluation` evaluates during a training; the ranks share the
feed. Both accumulate metrics in `Scores`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from ..distill_reader.sources.map_style import loader_of
from ..runtime.errors import JobError, UsageError
from ..scheduler.students.agreement import PATIENT_FROM_S
from ..scheduler.students.shards import RankShard
from .frameworks import Precision
from .frameworks.groups import Group
from .job.assembly import restore_model
from .job.batches import batches_of, feed_of, split_batch
from .job.spec import JobSpec, Split
from .settings import TrainSettings

_END: Final = object()


class Scores:
    """Accumulates the metrics of a job file.

    A metric is a function of (outputs, labels) that returns a mean over the rows of the batch, or a
    `paddle.metric.Metric`.

    Args:
        spec: the job file.

    Raises:
        JobError: its `metrics()` fails.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._metrics: dict[str, Any] = spec.metrics()
        self._sums: dict[str, float] = {}
        self._rows = 0

    def __bool__(self) -> bool:
        """Whether the job has metrics."""
        return bool(self._metrics)

    @property
    def mergeable(self) -> bool:
        """Whether means over parts can be merged: there is no `paddle.metric.Metric`."""
        return not any(hasattr(one, "accumulate") for one in self._metrics.values())

    def add(self, outputs: Any, labels: Any, rows: int) -> None:
        """Add a batch.

        Args:
            outputs: outputs of the model.
            labels: hard labels of the batch.
            rows: rows of the batch.

        Raises:
            JobError: a metric fails, or returns no number.
        """
        self._rows += rows
        for name, metric in self._metrics.items():
            with self._spec.job_errors("metrics"):
                if hasattr(metric, "accumulate"):
                    computed = metric.compute(outputs, labels)
                    many = isinstance(computed, (tuple, list))
                    metric.update(*(computed if many else (computed,)))
                    continue
                value = metric(outputs, labels)
                try:
                    number = float(value)
                except (TypeError, ValueError):
                    raise JobError(
                        f"{self._spec.path}, in metrics(): {name!r} must return a number for"
                        f" each batch, not a {type(value).__name__}"
                    ) from None
                self._sums[name] = self._sums.get(name, 0.0) + rows * number

    def values(self) -> dict[str, float]:
        """Return the metrics over all rows added since `clear`; empty without rows.

        Raises:
            JobError: a metric fails.
        """
        if not self._rows:
            return {}
        values: dict[str, float] = {}
        for name, metric in self._metrics.items():
            if not hasattr(metric, "accumulate"):
                values[name] = self._sums[name] / self._rows
                continue
            with self._spec.job_errors("metrics"):
                value = metric.accumulate()
                if isinstance(value, (tuple, list)):  # such as Accuracy(topk=(1, 5))
                    values |= {f"{name}_{n}": float(part) for n, part in enumerate(value)}
                else:
                    values[name] = float(value)
        return values

    def clear(self) -> None:
        """Remove all rows."""
        self._rows = 0
        self._sums.clear()
        for metric in self._metrics.values():
            if hasattr(metric, "reset"):
                metric.reset()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        step: step of the checkpoint.
        rows: number of evaluated samples.
        seconds: duration.
        metrics: the job's metrics by name, and its own `loss` if there are labels. The loss, and
            metrics that are functions, are means over rows.
    """

    step: int
    rows: int
    seconds: float
    metrics: Mapping[str, float]

    def line(self) -> str:
        """Return step, rows and metrics as one line of text."""
        figures = "  ".join(f"{name} {value:.6g}" for name, value in self.metrics.items())
        return f"step {self.step}  {self.rows} rows  {figures}"


def evaluate(
    spec: JobSpec,
    checkpoint: str,
    *,
    part: Split = "eval",
    batch_size: int | None = None,
) -> Evaluation:
    """Evaluate a checkpoint over `feed(part)`, in inference mode and without gradients.

    Args:
        spec: the job file.
        checkpoint: path or URL of a checkpoint, or of a folder of checkpoints, of which the newest
            valid one is taken.
        part: "train" or "eval".
        batch_size: rows of a batch, if the feed is a data set.

    Raises:
        JobError: a function of the job file fails.
        UsageError: the feed is empty, or the checkpoint does not fit or does not exist.
        CheckpointUnavailable: the checkpoint cannot be read now.
        CheckpointDamaged: the checkpoint is damaged.
    """
    model, step = restore_model(spec, checkpoint)
    scores = Scores(spec)
    began, rows, labelled, loss = time.perf_counter(), 0, 0, 0.0
    with spec.framework.no_grad():
        for batch in batches_of(spec, part, batch_size):
            with spec.job_errors("model"):
                outputs = batch.forward(model)
            if batch.labels is not None:
                loss += batch.rows * float(spec.loss(outputs, batch.labels))
                labelled += batch.rows
            scores.add(outputs, batch.labels, batch.rows)
            rows += batch.rows
    if not rows:
        raise UsageError(f"feed({part!r}) of {spec.path} has no rows: there is nothing to evaluate")
    mean_loss = {"loss": loss / labelled} if labelled else {}
    return Evaluation(step, rows, time.perf_counter() - began, {**mean_loss, **scores.values()})


class RankEvaluation:
    """Evaluates the model over `feed("eval")`; each rank evaluates a share of the batches.

    A metric that is a function is averaged over the ranks, weighted by rows. The results of a
    `paddle.metric.Metric` cannot be merged: if the job has one, rank 0 alone evaluates all batches,
    and sends the others the result.

    Args:
        spec: the job file.
        settings: settings of the job.
        precision: precision of the forward pass.

    Attributes:
        waits: whether it waits for `feed("eval")`.

    Raises:
        JobError: `metrics()` of the job fails.
    """

    def __init__(self, spec: JobSpec, settings: TrainSettings, precision: Precision) -> None:
        self._spec = spec
        self.waits = False
        #: Rows of a batch, if the feed is a data set.
        self._batch = settings.micro_batch or settings.total_batch or 64
        self._scores = Scores(spec)
        self._only_rank_0 = not self._scores.mergeable
        self._precision = precision
        self._patient = True  # ranks may end their first evaluation far apart in time

    def run(self, model: Any, group: Group, report: Callable[[int], None]) -> dict[str, float]:
        """Return the metrics by name, equal on all ranks; empty without metrics or rows.

        All ranks must call it.

        Args:
            model: the student.
            group: all ranks.
            report: called after each batch with the number of rows that this rank has evaluated.

        Raises:
            JobError: a function of the job file fails, or a metric returns no number.
            PeerLost: another rank is gone.
        """
        if not self._scores:
            return {}
        began = time.perf_counter()
        evaluates = group.rank == 0 or not self._only_rank_0
        part = self._evaluate_part(model, group, report) if evaluates else [0, {}]
        group.patient = self._patient
        all_parts = group.gather_json([time.perf_counter() - began, *part])
        self._patient = any(seconds > PATIENT_FROM_S for seconds, _, _ in all_parts)
        return _merged([(rows, metrics) for _, rows, metrics in all_parts])

    def _evaluate_part(self, model: Any, group: Group, report: Callable[[int], None]) -> list[Any]:
        """Evaluate this rank's part; return its rows and the metrics over them."""
        framework = self._spec.framework
        self._scores.clear()
        rows = 0
        with framework.evaluating(model):
            for fields in self._batches(group):
                batch = split_batch(fields, tensor=framework.tensor)
                with self._precision.forward(), self._spec.job_errors("model"):
                    outputs = batch.forward(model)
                self._scores.add(outputs, batch.labels, batch.rows)
                rows += batch.rows
                report(rows)
        return [rows, self._scores.values()]

    def _batches(self, group: Group) -> Iterator[Any]:
        self.waits = True
        try:
            feed = feed_of(self._spec, "eval", self._batch)
            for fields in _batches_of_rank(feed, group, self._only_rank_0):
                self.waits = False
                yield fields
                self.waits = True
        finally:
            self.waits = False


def _batches_of_rank(feed: Any, group: Group, all_batches: bool) -> Iterator[Any]:
    """Yield this rank's share of the batches; `all_batches`: all of them."""
    world = 1 if all_batches else group.world
    loader = None if world == 1 else loader_of(feed)
    if loader is not None:
        from ..distill_reader.sources.map_style import MapSource

        batches = MapSource(loader, RankShard(group.rank, world), seed=0).begin(0, 0, None)
        with closing(batches):
            while (batch := next(batches, _END)) is not _END:
                yield batch
        return
    for number, batch in enumerate(feed):
        if world == 1 or number % world == group.rank:
            yield batch


def _merged(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the means over the rows of all ranks."""
    total = sum(rows for rows, _ in parts)
    names = next((list(metrics) for _, metrics in parts if metrics), [])
    return {
        name: sum(rows * metrics[name] for rows, metrics in parts if metrics) / total
        for name in names
    }
