"""How good a checkpoint is: a job's loss and metrics over its feed of held-out samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UsageError
from .job.assembly import restored
from .job.batches import batches_of
from .job.scores import Scores
from .job.spec import JobSpec, Split


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
