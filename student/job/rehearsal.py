"""One step of a job in this process, without teachers and ranks: does its file work?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .assembly import Assembly
from .sampled import first_batch
from .scores import Scores


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of it.

    Attributes:
        rows: of the first batch.
        loss: the job's own, of this batch with the initial parameters.
        metrics: of the first batch of `feed("eval")`; empty where the job has none.
    """

    rows: int
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """What to print of it."""
        loss = "no labels" if self.loss is None else f"loss {self.loss:.6g}"
        told = f"{loss} in the first batch, of {self.rows} rows"
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"{told}; {figures} in the first batch of evaluation" if figures else told


def rehearse(parts: Assembly, batch_size: int | None = None) -> Rehearsal:
    """Do with a job's parts what a training does, up to one step of the optimizer.

    The job's own loss is what counts, as no teacher is asked.

    Args:
        parts: of the job; they have taken a step then, and are not to be trained on.
        batch_size: rows of a batch, where the feed is a data set.

    Raises:
        JobError: a function of the job file fails.
        UsageError: what they give does not go together.
    """
    spec = parts.spec
    batch = first_batch(spec, "train", batch_size)
    parts.model.train()
    with spec.blames("model"):
        outputs = batch.forward(parts.model)
    loss = None
    if batch.labels is not None:
        loss = spec.loss(outputs, batch.labels)
        with spec.blames("loss"):
            loss.backward()
        with spec.blames("optimizer"):
            parts.optimizer.step()
            parts.optimizer.clear_grad()
    metrics = _metrics(parts, batch_size)
    return Rehearsal(batch.rows, None if loss is None else float(loss), metrics)


def _metrics(parts: Assembly, batch_size: int | None) -> Mapping[str, float]:
    scores = Scores(parts.spec)
    if not scores:
        return {}
    import paddle

    batch = first_batch(parts.spec, "eval", batch_size)
    parts.model.eval()
    with paddle.no_grad(), parts.spec.blames("model"):
        outputs = batch.forward(parts.model)
    scores.add(outputs, batch.labels, batch.rows)
    return scores.values()
