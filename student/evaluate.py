"""How good a student is: a job's loss and metrics over its feed of held-out samples.

`evaluate` is of a checkpoint; `RankEvaluation` is of a training, each rank a part of the feed. Both
add up `Scores`: means over rows, or what `paddle.metric` keeps itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..distill_reader.sources.map_style import loader_of
from ..runtime.errors import JobError, UsageError
from ..scheduler.students.agreement import PATIENT_FROM_S
from ..scheduler.students.shards import RankShard
from .job.assembly import restored
from .job.batches import Parts, batches_of, split
from .job.spec import JobSpec, Split
from .rank.collective import Group
from .rank.learner import Precision


class Scores:
    """Adds up the metrics of a job file.

    A metric is a function of (outputs, labels) whose result is a mean over the rows of the batch,
    or a `paddle.metric.Metric`.

    Args:
        spec: the job file; without `metrics()` there are none.

    Raises:
        JobError: its `metrics()` fails.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._metrics: dict[str, Any] = spec.metrics()
        self._sums: dict[str, float] = {}
        self._rows = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._metrics)

    def add(self, outputs: Any, labels: Any, rows: int) -> None:
        """Count a batch.

        Args:
            outputs: what the model returned.
            labels: its hard labels.
            rows: of the batch.

        Raises:
            JobError: a metric fails, or is no number.
        """
        self._rows += rows
        for name, metric in self._metrics.items():
            with self._spec.blames("metrics"):
                if hasattr(metric, "accumulate"):
                    found = metric.compute(outputs, labels)
                    metric.update(*(found if isinstance(found, (tuple, list)) else (found,)))
                    continue
                value = metric(outputs, labels)
                try:
                    number = float(value)
                except (TypeError, ValueError):
                    raise JobError(
                        f"{self._spec.path}, in metrics(): {name!r} must give a number of each"
                        f" batch, not a {type(value).__name__}"
                    ) from None
                self._sums[name] = self._sums.get(name, 0.0) + rows * number

    def values(self) -> dict[str, float]:
        """The metrics of all rows that were added since `clear`; empty before the first.

        Raises:
            JobError: a metric fails.
        """
        if not self._rows:
            return {}
        with self._spec.blames("metrics"):
            return self._values()

    def _values(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            if not hasattr(metric, "accumulate"):
                found[name] = self._sums[name] / self._rows
                continue
            value = metric.accumulate()
            if isinstance(value, (tuple, list)):  # as of Accuracy(topk=(1, 5))
                found |= {f"{name}_{n}": float(one) for n, one in enumerate(value)}
            else:
                found[name] = float(value)
        return found

    def clear(self) -> None:
        """Begin anew."""
        self._rows = 0
        self._sums.clear()
        for metric in self._metrics.values():
            if hasattr(metric, "reset"):
                metric.reset()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of it.

    Attributes:
        step: of the checkpoint.
        rows: samples that were evaluated.
        seconds: that took.
        metrics: `loss`, the job's own, where there are labels, and its metrics by name; means over
            all rows.
    """

    step: int
    rows: int
    seconds: float
    metrics: Mapping[str, float]

    def line(self) -> str:
        """All of it in one line."""
        figures = "  ".join(f"{name} {value:.6g}" for name, value in self.metrics.items())
        return f"step {self.step}  {self.rows} rows  {figures}"


def evaluate(
    spec: JobSpec,
    checkpoint: str,
    *,
    part: Split = "eval",
    batch_size: int | None = None,
) -> Evaluation:
    """Run a checkpoint over `feed(part)`, in inference mode and without gradients.

    Args:
        spec: the job file.
        checkpoint: path or URL of a checkpoint, or of a folder of them: then the newest valid one.
        part: which feed.
        batch_size: rows of a batch, where the feed is a data set.

    Raises:
        JobError: a function of the job file fails.
        UsageError: the feed is empty, or the checkpoint does not fit or does not exist.
        CheckpointUnavailable: the checkpoint cannot be read now.
        CheckpointDamaged: it is broken.
    """
    import paddle

    model, step = restored(spec, checkpoint)
    scores = Scores(spec)
    began, rows, labelled, loss = time.perf_counter(), 0, 0, 0.0
    with paddle.no_grad():
        for batch in batches_of(spec, part, batch_size):
            with spec.blames("model"):
                outputs = batch.forward(model)
            if batch.labels is not None:
                loss += batch.rows * float(spec.loss(outputs, batch.labels))
                labelled += batch.rows
            scores.add(outputs, batch.labels, batch.rows)
            rows += batch.rows
    if not rows:
        raise UsageError(f"feed({part!r}) of {spec.path} has no rows: there is nothing to evaluate")
    own = {"loss": loss / labelled} if labelled else {}
    return Evaluation(step, rows, time.perf_counter() - began, {**own, **scores.values()})


class RankEvaluation:
    """Runs the model over `feed("eval")` and keeps the job's metrics, all ranks together.

    A metric is a function of (outputs, labels) whose values are means over rows: these are weighted
    by rows. An object of `paddle.metric` cannot be put together from parts: where there is one,
    rank 0 sees all the data alone, and tells the others.

    Args:
        spec: the job file.
        feed: makes the batches.
        precision: of the forward pass.

    Raises:
        JobError: `metrics()` of the job fails.
    """

    def __init__(self, spec: JobSpec, feed: Callable[[], Any], precision: Precision) -> None:
        self._spec = spec
        self._scores = Scores(spec)
        self._alone = any(hasattr(one, "accumulate") for one in spec.metrics().values())
        self._feed = feed
        self._precision = precision
        self._patient = True  # ranks may be far apart behind it: how far is not known yet

    def run(self, model: Any, group: Group) -> dict[str, float]:
        """The metrics by name; all ranks call it and have the same. Empty where there are none.

        Raises:
            JobError: a metric fails, or is no number.
            PeerLost: another rank is gone.
        """
        if not self._scores:
            return {}
        began = time.perf_counter()
        told = self._told(model, group) if group.rank == 0 or not self._alone else [0, {}]
        group.patient = self._patient
        all_told = group.gather_json([time.perf_counter() - began, *told])
        self._patient = any(seconds > PATIENT_FROM_S for seconds, _, _ in all_told)
        return _together([(rows, found) for _, rows, found in all_told])

    def _told(self, model: Any, group: Group) -> list[Any]:
        """Rows of this rank, and the metrics over them."""
        import paddle

        self._scores.clear()
        rows, was_training = 0, model.training
        model.eval()
        try:
            with paddle.no_grad():
                for batch in _part(self._feed(), group, self._alone):
                    with self._precision.forward(), self._spec.blames("model"):
                        outputs = batch.forward(model)
                    self._scores.add(outputs, batch.labels, batch.rows)
                    rows += batch.rows
        finally:
            if was_training:
                model.train()
        return [rows, self._scores.values()]


def _part(feed: Any, group: Group, alone: bool) -> Iterator[Parts]:
    """The batches that fall to this rank."""
    world = 1 if alone else group.world
    loader = None if world == 1 else loader_of(feed)
    if loader is not None:
        from ..distill_reader.sources.map_style import MapSource

        reading = MapSource(loader, RankShard(group.rank, world), seed=0).begin(0, 0, None)
        try:
            while True:
                try:
                    batch = next(reading)
                except StopIteration:
                    return
                yield split(batch)
        finally:
            reading.close()
    for number, batch in enumerate(feed if loader is None else ()):
        if world == 1 or number % world == group.rank:
            yield split(batch)


def _together(told: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Means over the rows of all ranks."""
    total = sum(rows for rows, _ in told)
    names = next((list(found) for _, found in told if found), [])
    return {
        name: sum(rows * found[name] for rows, found in told if found) / total for name in names
    }
