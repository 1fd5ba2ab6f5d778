"""The job's metrics over its evaluation data, each rank a part of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...distill_reader.sources.map_style import loader_of
from ...scheduler.students.agreement import PATIENT_FROM_S
from ...scheduler.students.shards import RankShard
from ..job.batches import Parts, split
from ..job.scores import Scores
from ..job.spec import JobSpec
from .collective import Group
from .learner import Precision


class Evaluation:
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
        from ...distill_reader.sources.map_style import MapSource

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
