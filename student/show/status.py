"""The status of a training, from reports of ranks, and its formatting for users."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from ...runtime.standard_streams import escape_control_characters
from ..messages import Progress

#: The remaining time is estimated from the steps of this many latest seconds.
_PACE_S: Final = 60.0


class TrainingStatus:
    """The status of a training. Displays pass on their calls of `begin` and `progress`.

    Attributes:
        generation: the latest generation with ready ranks; 0: none yet.
        world: number of ranks on all nodes.
        step: the latest reported step.
        steps: steps of the whole training; 0: unknown, or the estimate was exceeded.
        node_waits_for: what the node itself waits for; empty: nothing.
    """

    def __init__(self) -> None:
        self.generation = self.world = self.step = self.steps = 0
        self.node_waits_for = ""
        self._progress: dict[int, Progress] = {}
        self._pace: deque[tuple[float, int]] = deque()

    def begin(self, generation: int, world: int, step: int, steps: int) -> None:
        """Record that the ranks of a generation are ready."""
        self.generation, self.world, self.step = generation, world, step
        self.steps = steps or self.steps
        self._progress.clear()
        self._pace.clear()

    def progress(self, rank: int, progress: Progress, now: float) -> None:
        """Record a report of a rank; `now` is the time of a monotonic clock, in seconds."""
        self._progress[rank] = progress
        self.step = max(self.step, progress.step)
        if self.step > self.steps:  # it was an estimate: an epoch may end with steps of few rows
            self.steps = 0
        if not self._pace or self._pace[-1][1] < self.step:
            self._pace.append((now, self.step))
        while len(self._pace) > 2 and now - self._pace[0][0] > _PACE_S:
            self._pace.popleft()

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return max((one.epoch for one in self._progress.values()), default=0)

    @property
    def losses(self) -> dict[str, float]:
        """Terms of the loss by name: means over the rows of this node's ranks."""
        reports = [one for one in self._progress.values() if one.losses and one.rows]
        names = dict.fromkeys(name for one in reports for name in one.losses)
        return {name: _mean(name, reports) for name in names}

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last evaluation."""
        return next((one.metrics for one in self._newest() if one.metrics), {})

    @property
    def samples_per_s(self) -> float:
        """Rate of all ranks together."""
        return next((one.samples_per_s for one in self._newest()), 0.0)

    @property
    def total(self) -> int:
        """Rows of a step, of all ranks."""
        return next((one.total for one in self._newest() if one.total), 0)

    @property
    def teachers(self) -> tuple[int, int] | None:
        """Present and wanted teachers of this node's ranks; None: no rank uses teachers."""
        reports = [one for one in self._progress.values() if one.teachers is not None]
        if not reports:
            return None
        return sum(one.teachers or 0 for one in reports), sum(one.wanted for one in reports)

    @property
    def buffer(self) -> tuple[int, int] | None:
        """Bytes of labelled, unconsumed batches, and their limit; None: no rank uses teachers."""
        reports = [one for one in self._progress.values() if one.upper_bytes]
        if not reports:
            return None
        return sum(one.volume for one in reports), sum(one.upper_bytes for one in reports)

    def step_times(self) -> Iterator[tuple[int, float, float]]:
        """Yield number, seconds of the step and seconds of waiting for each rank of this node."""
        return ((rank, one.step_s, one.wait_s) for rank, one in sorted(self._progress.items()))

    @property
    def waiting(self) -> str:
        """What the node or one of its ranks waits for, as text; empty: nothing."""
        if self.node_waits_for:
            return self.node_waits_for
        waits = [(rank, one) for rank, one in sorted(self._progress.items()) if one.waiting_for]
        if not waits:
            return ""
        rank, report = waits[0]
        return f"rank {rank}: {escape_control_characters(report.waiting_for)}"

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at the pace of the last minute; None: unknown."""
        if not self.steps or len(self._pace) < 2:
            return None
        (began, first), (ended, last) = self._pace[0], self._pace[-1]
        if last <= first:
            return None
        return max(self.steps - last, 0) * (ended - began) / (last - first)

    def _newest(self) -> list[Progress]:
        return sorted(self._progress.values(), key=lambda one: -one.step)


def _mean(name: str, reports: list[Progress]) -> float:
    named = [one for one in reports if name in one.losses]
    return sum(one.losses[name] * one.rows for one in named) / sum(one.rows for one in named)


_COUNTS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_count(value: float) -> str:
    """Format a number: 12.3, 4.1k, 2.0M."""
    for size, unit in _COUNTS:
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def format_bytes(value: int) -> str:
    """Format bytes: 12 MiB."""
    for unit, name in _BYTES:
        if value >= unit:
            return f"{value / unit:.0f} {name}"
    return f"{value} B"


def format_duration(seconds: float) -> str:
    """Format seconds: 1:02:03, 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figure_texts(status: TrainingStatus) -> Iterator[str]:
    """Yield terms of the loss, such as "total 1.234", the total first, and metrics."""
    losses = sorted(status.losses.items(), key=lambda item: item[0] != "total")
    for name, value in (*losses, *status.metrics.items()):
        yield f"{name} {value:.4g}"


def progress_texts(status: TrainingStatus) -> Iterator[str]:
    """Yield the parts of a line of progress, except step and epoch."""
    yield from figure_texts(status)
    if status.samples_per_s:
        yield f"{format_count(status.samples_per_s)} samples/s"
    if status.world > 1:
        yield f"{status.world} ranks"
    if (text := teachers_text(status)) is not None:
        yield text
    if (buffer := status.buffer) is not None:
        filled, limit = buffer
        yield f"buffer {100 * filled // limit}% of {format_bytes(limit)}"
    if remaining := status.remaining_s:
        yield f"ETA {format_duration(remaining)}"


def teachers_text(status: TrainingStatus) -> str | None:
    """Return present and wanted teachers, such as "teachers 3/4"; None: no rank uses teachers."""
    if status.teachers is None:
        return None
    present, wanted = status.teachers
    return f"teachers {present}/{wanted}" if wanted else f"teachers {present}"


def position_text(status: TrainingStatus) -> str:
    """Return step and epoch, such as "step 120/500  epoch 3"."""
    total = f"/{status.steps}" if status.steps else ""
    return f"step {status.step}{total}  epoch {status.epoch}"
