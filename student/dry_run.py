"""Description of a training without running it: `edl student train JOB.py --dry-run`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..runtime.errors import UsageError
from ..scheduler.students.shards import rows_of_rank, shard_rows
from ..scheduler.students.world import WorldLimits
from .checkpoint import Repository
from .evaluate import Scores
from .feeding import sample_order, steps_of
from .job.assembly import Assembly, assemble
from .job.batches import first_batch
from .job.spec import NEEDED, OPTIONAL, load_job
from .settings import TrainSettings


def plan(settings: TrainSettings) -> Iterator[str]:
    """Yield lines of the form "subject: value".

    This calls the functions of the job file, and trains one step in this process.

    Raises:
        JobError: a function of the job file fails.
        UsageError: the settings do not fit the job.
        CheckpointUnavailable: the checkpoints cannot be read now.
    """
    spec = load_job(settings.job_file)
    distill = spec.distill()
    teachers_at = settings.coordinator or ", ".join(settings.teachers)
    if distill is not None and distill.needs_labels and not teachers_at:
        raise UsageError(
            "the job distils: give --redis redis://HOST:6379, or --teachers HOST:PORT,..."
        )
    functions = [name for name in (*NEEDED, *OPTIONAL) if spec.has(name)]
    yield f"job: {settings.job}, {settings.job_file} with {', '.join(functions)}"
    feed = spec.feed("train")
    ordered = sample_order(feed, settings)
    batch, total = settings.total_batch, None
    if ordered is not None:
        batch, total = ordered.total_batch, ordered.total(0)
        ordered.close()
    assembly = assemble(spec, steps_of(settings, batch, lambda epoch: total))
    count = sum(math.prod(parameter.shape) for parameter in assembly.model.parameters())
    yield (
        f"model: {type(assembly.model).__name__}, {count:,} parameters;"
        f" {spec.framework.optimizer_class(assembly.optimizer)}, learning rate"
        f" {assembly.optimizer.get_lr():g}"
    )
    yield from _data(settings, feed, batch, total)
    yield f"a step here, without teachers: {rehearse(assembly, settings.total_batch).line()}"
    if distill is None:
        yield "soft labels: none, the job has no distill()"
    elif not distill.needs_labels:
        yield "soft labels: none, the weights of all soft terms are 0"
    else:
        yield f"soft labels: of service {distill.service} at {teachers_at}"
    yield from _world(settings)


def _data(
    settings: TrainSettings, feed: Any, batch: int | None, total: int | None
) -> Iterator[str]:
    """Yield the lines about the data. A step has `batch` rows, an epoch has `total` samples."""
    if total is None or batch is None:
        yield f"data: a {type(feed).__name__}, whose samples have no ids: each rank reads a part"
        return
    yield (
        f"data: {total:,} samples an epoch in {-(-total // batch)} steps of {batch} rows, whatever"
        f" the world; {steps_of(settings, batch, lambda epoch: total)} steps in all"
    )
    least, most = settings.nodes
    capacity = WorldLimits(least, most, ranks=settings.ranks_per_node, rows=batch).capacity
    for nodes in sorted({least, capacity}):
        world = nodes * settings.ranks_per_node
        rows = rows_of_rank(batch, 0, world)
        shard = settings.shard_rows or shard_rows(total, world, batch)
        micro = settings.micro_batch or rows
        passes = f" in {-(-rows // micro)} forward passes" if rows > micro else ""
        parts = f"shards of {shard} samples" if settings.deal == "dynamic" else "fixed equal parts"
        yield (
            f"with {_counted(nodes, 'node')}: {_counted(world, 'rank')} of about {rows}"
            f" rows{passes}; {parts}"
        )
    if capacity < most:
        yield (
            f"more than {_counted(capacity, 'node')}: further nodes wait in reserve, as a step has"
            f" only {batch} rows"
        )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _world(settings: TrainSettings) -> Iterator[str]:
    least, most = settings.nodes
    nodes = f"{least}" if least == most else f"{least} to {most}"
    ranks = _counted(settings.ranks_per_node, "rank")
    meeting = f"; they meet at {settings.coordinator}" if settings.coordinator else ""
    yield f"nodes: {nodes}, each with {ranks}{meeting}"
    intervals = [f"{settings.save_every_steps} steps"] if settings.save_every_steps else []
    intervals += [f"{settings.save_every_s:g} s"] if settings.save_every_s else []
    times = "when the world changes and at the end"
    if intervals:
        times = f"every {' or '.join(intervals)}"
    elif settings.save_overhead:
        part = f"{100 * settings.save_overhead:g} % of the time"
        times = f"after the first step, then as often as {part} allows"
    if settings.checkpoint is None:
        yield f"checkpoints: {times}, in a temporary folder that is deleted at the end"
        return
    newest = Repository(settings.checkpoint, settings.keep).newest_valid()
    start = "from the beginning" if newest is None else f"after step {newest.step}"
    yield (
        f"checkpoints: {times}, {settings.keep} kept, at {settings.checkpoint}; training begins"
        f" {start}"
    )


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Result of `rehearse`.

    Attributes:
        rows: rows of the first batch.
        loss: the job's own loss of this batch, with the initial parameters; None: the batch has no
            labels.
        metrics: metrics of the first batch of `feed("eval")`; empty: the job has none.
    """

    rows: int
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result as one line of text."""
        loss = "no labels" if self.loss is None else f"loss {self.loss:.6g}"
        text = f"{loss} in the first batch, of {self.rows} rows"
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"{text}; {figures} in the first batch of evaluation" if figures else text


def rehearse(parts: Assembly, batch_size: int | None = None) -> Rehearsal:
    """Run a job for one step of the optimizer, with its own loss and without teachers.

    Args:
        parts: parts of the job. The step changes them: do not train with them afterwards.
        batch_size: rows of a batch, if the feed is a data set.

    Raises:
        JobError: a function of the job file fails.
        UsageError: the results of these functions do not fit together.
    """
    spec = parts.spec
    batch = first_batch(spec, "train", batch_size)
    parts.model.train()
    with spec.job_errors("model"):
        outputs = batch.forward(parts.model)
    loss = None
    if batch.labels is not None:
        loss = spec.loss(outputs, batch.labels)
        with spec.job_errors("loss"):
            loss.backward()
        with spec.job_errors("optimizer"):
            parts.optimizer.step()
            parts.optimizer.clear_grad()
    metrics = _metrics(parts, batch_size)
    return Rehearsal(batch.rows, None if loss is None else loss.item(), metrics)


def _metrics(parts: Assembly, batch_size: int | None) -> Mapping[str, float]:
    scores = Scores(parts.spec)
    if not scores:
        return {}
    batch = first_batch(parts.spec, "eval", batch_size)
    parts.model.eval()
    with parts.spec.framework.no_grad(), parts.spec.job_errors("model"):
        outputs = batch.forward(parts.model)
    scores.add(outputs, batch.labels, batch.rows)
    return scores.values()
