"""Snapshots at safe points: what of all ranks goes into memory that outlives them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import MemoryRefused
from ...scheduler.students.saving import SaveSchedule
from ..checkpoint.capture import Trained, capture
from ..checkpoint.snapshot import SnapshotWriter
from ..feeding import ShardedSource, UnshardedSource, merged
from ..link import RankLink
from ..messages import Order, Saved
from .learner import Learner
from .loop import Place

log = logging.getLogger(__name__)

#: Keys of a checkpoint's state.
EPOCH: Final = "epoch"
FEED: Final = "feed"
FACTOR: Final = "learning_rate_factor"
METRICS: Final = "metrics"
#: Saves whose cost says what the next one costs; the first one is dearer, as its memory is new.
_COSTS: Final = 2


@dataclass(slots=True)
class Saver:
    """Writes snapshots of this rank's node; all ranks call `save` at the same steps.

    Attributes:
        order: says into which memory, if this rank has any.
        link: is told of each.
        trained: Paddle's objects.
        learner: of this rank.
        source: of this rank.
        base: the feed's part of the checkpoint that the generation began with; None: without one.
        metrics: of the last evaluation.
        began: the step that the generation began with.
    """

    order: Order
    link: RankLink
    trained: Trained
    learner: Learner
    source: ShardedSource | UnshardedSource
    base: Mapping[str, Any] | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    began: int = 0
    _writer: SnapshotWriter | None = None
    _last_step: int = 0
    _last_s: float = 0.0
    _costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=_COSTS))

    def __post_init__(self) -> None:
        self._last_step, self._last_s = self.began, time.monotonic()
        if self.order.snapshot:
            self._writer = SnapshotWriter(self.order.snapshot)

    def due(self, step: int) -> bool:
        """Whether `step` is to be saved; rank 0 decides for all."""
        if self.order.rank:
            return False
        settings = self.order.settings
        rhythm = SaveSchedule(
            settings.save_every_steps, settings.save_every_s, settings.save_overhead
        )
        now_s = time.monotonic()
        return rhythm.due(step, now_s, self._last_step, self._last_s, self._costs_s)

    def save(self, place: Place) -> bool:
        """All ranks stand at `place`; whether the snapshot of this node is whole."""
        began_s = time.monotonic()
        try:
            return self._save(place)
        finally:
            self._last_step, self._last_s = place.step, time.monotonic()
            self._costs_s.append(self._last_s - began_s)

    def _save(self, place: Place) -> bool:
        group = self.learner.group
        group.average(self.learner.float_buffers())
        states = group.gather_json(self.source.state())
        if self._writer is None:
            return True
        began = time.perf_counter()
        state = {
            EPOCH: place.epoch,
            FEED: merged(states, self.base),
            FACTOR: self.learner.rate.factor,
            METRICS: dict(self.metrics),
            "generation": self.order.generation,
        }
        contents = capture(self.trained, step=place.step, world=group.world, state=state)
        try:
            slot = self._writer.write(contents)
        except MemoryRefused as error:
            log.warning("step %d is not saved: %s", place.step, error)
            return False
        self.link.tell(Saved(place.step, slot, time.perf_counter() - began))
        return True
